import "./dispose.js";
import type { RequestOptions } from "./config.js";
import { SandboxError } from "./errors.js";
import { known } from "./options.js";
import { followOutput, type OnText, type OutputChunk, type OutputEvent, Tail, TextOutput } from "./output.js";
import type { InputData, ProcessApi } from "./process-api.js";
import { type CommandResult, throwUnlessWell, withError } from "./result.js";
import { unlessAborted } from "./signal.js";
import { outcome } from "./convert.js";
import type { WireExited } from "./wire.js";

/** Listeners of a background command, and the amount of output kept by the client. */
export interface HandleOptions {
  /** Called with standard output. If it returns a promise, reading waits for it. */
  onStdout?: OnText;
  /** Called with standard error. If it returns a promise, reading waits for it. */
  onStderr?: OnText;
  /** Number of bytes at the end of each stream that the handle keeps. Default: 16 MiB. */
  keepBytes?: number;
}

const DEFAULT_KEEP_BYTES = 16 * 1024 * 1024;

/** A background command. Its output is read from the beginning, across broken connections. */
export class CommandHandle {
  /** The process id inside the sandbox. It can be reused once the process has ended. */
  readonly pid: number;
  /** Belljar's own id of the process, never reused in a sandbox. */
  readonly process: number;
  readonly #processes: ProcessApi;
  readonly #stop = new AbortController();
  readonly #stdout: Tail;
  readonly #stderr: Tail;
  readonly #finished: Promise<CommandResult>;
  #onListening: () => void = () => undefined;
  #result: CommandResult | undefined;
  #disconnected = false;

  /**
   * @internal A handle whose output stream is open, or has failed: later operations on the sandbox, such as pausing it, cannot be
   * overtaken by a request in flight.
   */
  static async open(processes: ProcessApi, process: number, pid: number, options: HandleOptions = {}): Promise<CommandHandle> {
    const handle = new CommandHandle(processes, process, pid, options);
    await new Promise<void>((resolve) => {
      handle.#onListening = resolve;
      handle.#finished.then(() => resolve(), () => resolve());
    });
    return handle;
  }

  private constructor(processes: ProcessApi, process: number, pid: number, options: HandleOptions = {}) {
    this.process = process;
    this.pid = pid;
    this.#processes = processes;
    this.#stdout = new Tail(options.keepBytes ?? DEFAULT_KEEP_BYTES);
    this.#stderr = new Tail(options.keepBytes ?? DEFAULT_KEEP_BYTES);
    this.#finished = this.#read(options);
    // The error goes to the waiter, if there is one.
    this.#finished.catch(() => undefined);
  }

  /** Standard output so far, or its end. */
  get stdout(): string {
    return this.#stdout.text();
  }

  /** Standard error so far, or its end. */
  get stderr(): string {
    return this.#stderr.text();
  }

  /** The exit code, once the command has ended by itself. */
  get exitCode(): number | null | undefined {
    return this.#result?.exitCode;
  }

  /**
   * Waits for the end.
   *
   * @param options `check: false` returns a failed result instead of throwing. A signal ends the wait, not the command.
   * @throws {@link CommandExitError} if the exit code is not 0, {@link CommandTimeoutError} if it timed out, and the error of a listener.
   */
  async wait(options: { check?: boolean; signal?: AbortSignal } = {}): Promise<CommandResult> {
    known("wait", options, { check: true, signal: true });
    const result = await unlessAborted(this.#finished, options.signal);
    return options.check === false ? result : throwUnlessWell(result);
  }

  /** Kills it and all its descendants. Returns false if it has already ended. */
  async kill(options?: RequestOptions): Promise<boolean> {
    return this.#processes.signal(this, "SIGKILL", options);
  }

  /** Signals it and all its descendants, such as with `"SIGINT"`. Returns false if it has already ended. */
  async sendSignal(signal: string | number, options?: RequestOptions): Promise<boolean> {
    return this.#processes.signal(this, signal, options);
  }

  /** Sends bytes to its standard input, which has to be open (`stdin: true`). */
  async sendStdin(data: string | Uint8Array, options?: RequestOptions): Promise<void> {
    await this.#processes.sendStdin(this, data, false, options);
  }

  /** Sends data piece by piece to its standard input, as {@link Commands.streamInput} does. */
  async streamInput(data: InputData, options: RequestOptions & { close?: boolean } = {}): Promise<number> {
    const { close, ...request } = options;
    return this.#processes.streamInput(this, data, close ?? false, request);
  }

  /** Closes standard input. */
  async closeStdin(options?: RequestOptions): Promise<void> {
    await this.#processes.sendStdin(this, "", true, options);
  }

  /** Stops listening. The command keeps running; `sandbox.commands.connect` reconnects. */
  disconnect(): void {
    this.#disconnected = true;
    this.#stop.abort(new DOMException("disconnected", "AbortError"));
  }

  async #read(options: HandleOptions): Promise<CommandResult> {
    const output = new TextOutput(options.onStdout, options.onStderr);
    try {
      for await (const event of this.#events()) {
        if (this.#disconnected) {
          break;
        }
        if (event.kind === "output") {
          this.#keep(event.chunk);
          await output.push(event.chunk);
        } else {
          await output.end();
          this.#result = this.#makeResult(event.exited);
          return this.#result;
        }
      }
    } catch (error) {
      if (!this.#disconnected) {
        throw error;
      }
    }
    throw new SandboxError("the handle was disconnected before the command ended; connect again to wait for it", { code: "disconnected" });
  }

  #events(): AsyncGenerator<OutputEvent, void, undefined> {
    return followOutput(this.#processes.transport, this.#processes.sandboxId, this.process, {}, true, { signal: this.#stop.signal }, () => this.#onListening());
  }

  #keep(chunk: OutputChunk): void {
    (chunk.stream === "stderr" ? this.#stderr : this.#stdout).push(chunk.offset, chunk.data);
  }

  #makeResult(exited: WireExited): CommandResult {
    const stdout = this.#stdout.bytes();
    const stderr = this.#stderr.bytes();
    return withError({
      process: this.process,
      exitCode: exited.exit_code ?? null,
      stdout: this.#stdout.text(),
      stderr: this.#stderr.text(),
      stdoutBytes: stdout,
      stderrBytes: stderr,
      stdoutOmittedBytes: this.#stdout.omittedBytes(),
      stderrOmittedBytes: this.#stderr.omittedBytes(),
      signal: exited.signal ?? null,
      outcome: exited.outcome ? outcome(exited.outcome) : { kind: "infrastructure", cause: "the server did not say how it ended" },
    });
  }
}
