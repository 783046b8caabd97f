import { toBase64 } from "./bytes.js";
import { CommandHandle, type HandleOptions } from "./command-handle.js";
import { ofRequest, type RequestOptions } from "./config.js";
import { processInfo, seconds } from "./convert.js";
import { ConnectionError, InvalidArgumentError } from "./errors.js";
import { errorFromEvent, followOutput, type OnText, type OutputChunk, type OutputOffsets, parseEvent, readEvent, TextOutput } from "./output.js";
import { ProcessApi, type ProcessRef } from "./process-api.js";
import { type CommandResult, resultFromWire, throwUnlessWell } from "./result.js";
import { type ApiRequest, isShort, newIdempotencyKey, route, type Transport } from "./transport.js";
import type { ProcessInfo, Size } from "./types.js";
import type { WireExecResult } from "./wire.js";

/** A command: a line for the shell, or a program and its arguments. */
export type Command = string | readonly string[];

/** What every command takes. */
export interface CommandOptions extends RequestOptions {
  /** Working directory; the home directory if not given. */
  cwd?: string;
  /** Environment variables, beside those of the sandbox. */
  envs?: Record<string, string>;
  /**
   * Milliseconds that it may take; then it is ended. 0 for no limit. If not given: the sandbox's `limits.timeoutMs`, but no limit
   * for a command in the background, which lives as long as the sandbox.
   */
  timeoutMs?: number;
  /** Takes standard output as it comes. If it returns a promise, reading waits for it, and so in the end does the command. */
  onStdout?: OnText;
  /** Takes standard error as it comes. If it returns a promise, reading waits for it, and so in the end does the command. */
  onStderr?: OnText;
  /** Bytes of each output stream that the server keeps, such as `"4m"`. */
  output?: Size;
}

/** A command that is waited for. */
export interface RunOptions extends CommandOptions {
  /** Whether it runs in the background. */
  background?: false;
  /** All of its standard input, at most 1 MiB. */
  stdin?: string | Uint8Array;
  /** `false` hands back a result that is not well, instead of throwing. */
  check?: boolean;
  /** Says that a command is the same as one before, which is then not run again. Made by the SDK if not given. */
  idempotencyKey?: string;
}

/** A command in the background. */
export interface BackgroundOptions extends CommandOptions, HandleOptions {
  /** Whether it runs in the background. */
  background: true;
  /** Its standard input, at most 1 MiB; or `true` to keep it open for `sendStdin`. */
  stdin?: string | Uint8Array | boolean;
}

/** Commands in a sandbox. */
export class Commands {
  readonly #processes: ProcessApi;
  /** Milliseconds that a command may take if it does not say; undefined if not known. */
  readonly #defaultTimeoutMs: number | undefined;

  /** @internal */
  constructor(transport: Transport, sandboxId: string, defaultTimeoutMs: number | undefined) {
    this.#processes = new ProcessApi(transport, sandboxId);
    this.#defaultTimeoutMs = defaultTimeoutMs;
  }

  /**
   * Runs a command and waits for its end. If the call is aborted or the connection breaks for good, the command is ended.
   *
   * @throws {@link CommandExitError} if it does not end with exit code 0, {@link CommandTimeoutError} if its time ran out;
   * with `check: false` neither. What a listener throws ends the command.
   */
  run(command: Command, options?: RunOptions): Promise<CommandResult>;
  /** Starts a command in the background. */
  run(command: Command, options: BackgroundOptions): Promise<CommandHandle>;
  run(command: Command, options: RunOptions | BackgroundOptions = {}): Promise<CommandResult | CommandHandle> {
    return options.background === true ? this.#start(command, options) : this.runIn(undefined, command, options);
  }

  /** @internal Runs a command, in a session if there is one. */
  async runIn(session: number | undefined, command: Command, options: RunOptions): Promise<CommandResult> {
    if (typeof options.stdin === "boolean") {
      throw new InvalidArgumentError("standard input can be kept open only for a command in the background", { field: "stdin" });
    }
    const timeoutMs = options.timeoutMs ?? this.#defaultTimeoutMs;
    const request: ApiRequest = {
      method: "POST",
      path: route`/v1/sandboxes/${this.#processes.sandboxId}/exec`,
      json: { ...execRequest(command, options), timeout: seconds("timeoutMs", options.timeoutMs), session },
      idempotencyKey: options.idempotencyKey ?? newIdempotencyKey(),
      options: ofRequest(options),
    };
    const listened = options.onStdout !== undefined || options.onStderr !== undefined;
    const wire = listened || !isShort(timeoutMs) ? await this.#stream(request, options) : await this.#processes.transport.work<WireExecResult>(request, timeoutMs);
    const result = resultFromWire(wire);
    return options.check === false ? result : throwUnlessWell(result);
  }

  async #start(command: Command, options: BackgroundOptions): Promise<CommandHandle> {
    const open = options.stdin === true;
    const started = await this.#processes.start(
      { ...execRequest(command, options), timeout: seconds("timeoutMs", options.timeoutMs ?? 0), stdin_open: open },
      options,
    );
    return CommandHandle.open(this.#processes, started.process, started.pid, options);
  }

  /** The processes that were started through the interface. */
  async list(options?: RequestOptions): Promise<ProcessInfo[]> {
    return (await this.#processes.list(options)).map(processInfo);
  }

  /** One process, running or not: by its pid, its handle or an older info. */
  async getInfo(process: ProcessRef, options?: RequestOptions): Promise<ProcessInfo> {
    return processInfo(await this.#processes.get(process, options));
  }

  /** Ends a process with all that it started. False if it does not run. */
  async kill(process: ProcessRef, options?: RequestOptions): Promise<boolean> {
    return this.#processes.signal(process, "SIGKILL", options);
  }

  /** Signals a process and all that it started, such as with `"SIGINT"`. False if it does not run. */
  async sendSignal(process: ProcessRef, signal: string | number, options?: RequestOptions): Promise<boolean> {
    return this.#processes.signal(process, signal, options);
  }

  /** Listens to a process that runs already, from the beginning of its output, as far as that was kept. */
  async connect(process: ProcessRef, options: HandleOptions & RequestOptions = {}): Promise<CommandHandle> {
    const { onStdout, onStderr, keepBytes, ...request } = options;
    const found = await this.#processes.get(process, request);
    return CommandHandle.open(this.#processes, found.process, found.pid, { onStdout, onStderr, keepBytes });
  }

  /** Sends bytes to the standard input of a process that was started with `stdin: true`. */
  async sendStdin(process: ProcessRef, data: string | Uint8Array, options?: RequestOptions): Promise<void> {
    await this.#processes.sendStdin(process, data, false, options);
  }

  /** Says that no more input comes. */
  async closeStdin(process: ProcessRef, options?: RequestOptions): Promise<void> {
    await this.#processes.sendStdin(process, "", true, options);
  }

  /**
   * A process's output as a stream. The server waits for whoever reads it.
   *
   * @param options Where to begin; `follow: false` ends with what is there now, else the stream ends with the process.
   */
  output(process: ProcessRef, options: OutputOffsets & { follow?: boolean } & RequestOptions = {}): ReadableStream<OutputChunk> {
    const { follow, signal, requestTimeoutMs, ...offsets } = options;
    const processes = this.#processes;
    const events = (async function* () {
      const number = await processes.number(process, { signal, requestTimeoutMs });
      yield* followOutput(processes.transport, processes.sandboxId, number, offsets, follow ?? true, { signal, requestTimeoutMs });
    })();
    return new ReadableStream<OutputChunk>(
      {
        async pull(controller) {
          const next = await events.next();
          if (next.done || next.value.kind === "exited") {
            await events.return();
            controller.close();
          } else {
            controller.enqueue(next.value.chunk);
          }
        },
        async cancel() {
          await events.return();
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** Runs a command whose output comes as it is written. */
  async #stream(request: ApiRequest, options: RunOptions): Promise<WireExecResult> {
    const output = new TextOutput(options.onStdout, options.onStderr);
    for await (const event of this.#processes.transport.events(request)) {
      if (event.event === "result") {
        await output.end();
        return parseEvent<WireExecResult>(event);
      }
      if (event.event === "error") {
        throw errorFromEvent(event);
      }
      const read = readEvent(event);
      if (read?.kind === "output") {
        await output.push(read.chunk);
      }
    }
    throw new ConnectionError("the stream ended before the command did; the server ends such a command");
  }
}

function execRequest(command: Command, options: CommandOptions & { stdin?: string | Uint8Array | boolean }): Record<string, unknown> {
  const what = typeof command === "string" ? { command } : { argv: command };
  return { ...what, cwd: options.cwd, env: options.envs, output: options.output, ...stdinToWire(options.stdin) };
}

function stdinToWire(stdin: string | Uint8Array | boolean | undefined): Record<string, string> {
  if (stdin === undefined || typeof stdin === "boolean") {
    return {};
  }
  return typeof stdin === "string" ? { stdin } : { stdin_base64: toBase64(stdin) };
}
