import { utf8 } from "./bytes.js";
import { ofRequest, type RequestOptions } from "./config.js";
import { outcome, seconds } from "./convert.js";
import { ProcessApi, type ProcessRef } from "./process-api.js";
import { unlessAborted } from "./signal.js";
import { type OnData, TerminalConnection } from "./terminal-connection.js";
import type { Transport } from "./transport.js";
import type { Outcome } from "./types.js";

/** The size of a terminal in characters. */
export interface PtySize {
  /** Lines. */
  rows: number;
  /** Characters in a line. */
  cols: number;
}

/** A new terminal. */
export interface PtyOptions extends PtySize, RequestOptions {
  /** Takes the bytes that the terminal shows. If it returns a promise, reading waits for it. */
  onData: OnData;
  /** What runs on it, as a line for the shell; an interactive shell if not given. */
  command?: string;
  /** Working directory; the home directory if not given. */
  cwd?: string;
  /** Environment variables, beside those of the sandbox. `TERM` is `xterm-256color` unless it is given. */
  envs?: Record<string, string>;
  /** Milliseconds until it is ended; 0, which is also the default, for no limit. */
  timeoutMs?: number;
}

/** How a terminal's process ended. */
export interface PtyResult {
  /** The exit code; null if it did not end by itself. */
  exitCode: number | null;
  /** The name of the signal that ended it. */
  signal: string | null;
  /** How it ended. */
  outcome: Outcome;
}

/** The shell that a terminal has if nothing else is asked for: bash where there is one. */
const INTERACTIVE_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi";

/** A terminal that somebody sits in front of. */
export class PtyHandle {
  /** The process id that the sandbox's own programs see. It may come again once the process has ended. */
  readonly pid: number;
  /** Belljar's number of the process, which never comes twice in a sandbox. */
  readonly process: number;
  readonly #processes: ProcessApi;
  readonly #connection: TerminalConnection;

  /** @internal */
  constructor(processes: ProcessApi, process: number, pid: number, connection: TerminalConnection) {
    this.#processes = processes;
    this.process = process;
    this.pid = pid;
    this.#connection = connection;
  }

  /** Types. Control characters do what they do on a keyboard: `"\x03"` is Ctrl-C. */
  async sendInput(data: string | Uint8Array): Promise<void> {
    await this.#connection.send(typeof data === "string" ? utf8(data) : data);
  }

  /** Changes the size. */
  async resize(size: PtySize, options?: RequestOptions): Promise<void> {
    await this.#processes.resize(this, size.rows, size.cols, options);
  }

  /** Waits for the end, whatever the exit code. A signal ends the waiting, not the terminal. */
  async wait(options: { signal?: AbortSignal } = {}): Promise<PtyResult> {
    const exited = await unlessAborted(this.#connection.exited, options.signal);
    return {
      exitCode: exited.exit_code ?? null,
      signal: exited.signal ?? null,
      outcome: exited.outcome ? outcome(exited.outcome) : { kind: "infrastructure", cause: "the server did not say how it ended" },
    };
  }

  /** Ends it with all that it started. False if it had ended already. */
  async kill(options?: RequestOptions): Promise<boolean> {
    return this.#processes.signal(this, "SIGKILL", options);
  }

  /** Lets go of it. It goes on; `sandbox.pty.connect` takes it up again. */
  disconnect(): void {
    this.#connection.close();
  }
}

/** Terminals in a sandbox. */
export class Pty {
  readonly #processes: ProcessApi;
  /** Connections that are open from here, by process. */
  readonly #open = new Map<number, { pid: number; connection: TerminalConnection }>();

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#processes = new ProcessApi(transport, sandboxId);
  }

  /** Starts a shell, or a command, on a terminal. */
  async create(options: PtyOptions): Promise<PtyHandle> {
    const started = await this.#processes.start(
      {
        command: options.command ?? INTERACTIVE_SHELL,
        cwd: options.cwd,
        env: { TERM: "xterm-256color", ...options.envs },
        timeout: seconds("timeoutMs", options.timeoutMs ?? 0),
        stdin_open: true,
        terminal: { rows: options.rows, columns: options.cols },
      },
      options,
    );
    return this.#attach(started.process, started.pid, options.onData, 0);
  }

  /** Takes up a terminal that runs already; `offset` is the byte of its output to begin with, the first one if not given. */
  async connect(process: ProcessRef, options: { onData: OnData; offset?: number } & RequestOptions): Promise<PtyHandle> {
    const found = await this.#processes.get(process, ofRequest(options));
    return this.#attach(found.process, found.pid, options.onData, options.offset ?? 0);
  }

  /** Types into a terminal. */
  async sendInput(process: ProcessRef, data: string | Uint8Array, options?: RequestOptions): Promise<void> {
    const bytes = typeof data === "string" ? utf8(data) : data;
    const connection = this.#connection(process);
    await (connection ? connection.send(bytes) : this.#processes.sendStdin(process, bytes, false, options));
  }

  /** Changes a terminal's size. */
  async resize(process: ProcessRef, size: PtySize, options?: RequestOptions): Promise<void> {
    await this.#processes.resize(process, size.rows, size.cols, options);
  }

  /** Ends a terminal's process with all that it started. False if it does not run. */
  async kill(process: ProcessRef, options?: RequestOptions): Promise<boolean> {
    return this.#processes.signal(process, "SIGKILL", options);
  }

  /** The connection that is open from here, if there is one. Of two processes that have had one pid, one runs at most. */
  #connection(process: ProcessRef): TerminalConnection | undefined {
    if (typeof process !== "number") {
      return this.#open.get(process.process)?.connection;
    }
    return [...this.#open.values()].find((one) => one.pid === process)?.connection;
  }

  #attach(process: number, pid: number, onData: OnData, offset: number): PtyHandle {
    const connection = new TerminalConnection(this.#processes, process, onData, offset);
    this.#open.set(process, { pid, connection });
    const forget = (): void => {
      if (this.#open.get(process)?.connection === connection) {
        this.#open.delete(process);
      }
    };
    connection.exited.then(forget, forget);
    return new PtyHandle(this.#processes, process, pid, connection);
  }
}
