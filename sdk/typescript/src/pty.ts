import { utf8 } from "./bytes.js";
import { ofCommand, ofRequest, REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { outcome, seconds } from "./convert.js";
import { checkTexts, known, names } from "./options.js";
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

/** Options of a new terminal. */
export interface PtyOptions extends PtySize, RequestOptions {
  /** Called with the output of the terminal. If it returns a promise, reading waits for it. */
  onData: OnData;
  /** A shell command line; default: an interactive shell. */
  command?: string;
  /** Working directory; default: the home directory. */
  cwd?: string;
  /** Environment variables, added to those of the sandbox. `TERM` defaults to `xterm-256color`. */
  envs?: Record<string, string>;
  /** Time limit in milliseconds; 0, the default, for no limit. */
  timeoutMs?: number;
}

const PTY_OPTIONS = names<Omit<PtyOptions, keyof RequestOptions>>({ rows: true, cols: true, onData: true, command: true, cwd: true, envs: true, timeoutMs: true });

/** How a terminal's process ended. */
export interface PtyResult {
  /** The exit code; null if it did not end by itself. */
  exitCode: number | null;
  /** The name of the signal that ended it. */
  signal: string | null;
  /** How it ended. */
  outcome: Outcome;
}

/** The default shell of a terminal: bash if installed. */
const INTERACTIVE_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi";

/** A connected terminal. */
export class PtyHandle {
  /** The process id inside the sandbox. It can be reused once the process has ended. */
  readonly pid: number;
  /** Belljar's own id of the process, never reused in a sandbox. */
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

  /** Sends input. Control characters work as on a keyboard: `"\x03"` is Ctrl-C. */
  async sendInput(data: string | Uint8Array): Promise<void> {
    await this.#connection.send(typeof data === "string" ? utf8(data) : data);
  }

  /** Changes the size. */
  async resize(size: PtySize, options?: RequestOptions): Promise<void> {
    await this.#processes.resize(this, size.rows, size.cols, options);
  }

  /** Waits for the end, with any exit code. A signal ends the wait, not the terminal. */
  async wait(options: { signal?: AbortSignal } = {}): Promise<PtyResult> {
    const exited = await unlessAborted(this.#connection.exited, options.signal);
    return {
      exitCode: exited.exit_code ?? null,
      signal: exited.signal ?? null,
      outcome: exited.outcome ? outcome(exited.outcome) : { kind: "infrastructure", cause: "the server did not say how it ended" },
    };
  }

  /** Kills it and all its descendants. Returns false if it has already ended. */
  async kill(options?: RequestOptions): Promise<boolean> {
    return this.#processes.signal(this, "SIGKILL", options);
  }

  /** Disconnects from it. It keeps running; `sandbox.pty.connect` reconnects. */
  disconnect(): void {
    this.#connection.close();
  }
}

/** Terminals in a sandbox. */
export class Pty {
  readonly #processes: ProcessApi;
  /** Open connections of this client, by process. */
  readonly #open = new Map<number, { pid: number; connection: TerminalConnection }>();

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#processes = new ProcessApi(transport, sandboxId);
  }

  /** Starts a shell, or a command, on a terminal. */
  async create(options: PtyOptions): Promise<PtyHandle> {
    known("pty.create", options, PTY_OPTIONS, REQUEST_OPTIONS);
    const started = await this.#processes.start(
      {
        command: options.command ?? INTERACTIVE_SHELL,
        cwd: options.cwd,
        user: options.user,
        env: { TERM: "xterm-256color", ...checkTexts("envs", options.envs) },
        timeout: seconds("timeoutMs", options.timeoutMs ?? 0),
        stdin_open: true,
        terminal: { rows: options.rows, columns: options.cols },
      },
      ofCommand(options),
    );
    return this.#attach(started.process, started.pid, options.onData, 0);
  }

  /** Connects to a running terminal; `offset` is the first byte of its output to read, default: 0. */
  async connect(process: ProcessRef, options: { onData: OnData; offset?: number } & RequestOptions): Promise<PtyHandle> {
    known("pty.connect", options, { onData: true, offset: true }, REQUEST_OPTIONS);
    const found = await this.#processes.get(process, ofRequest(options));
    return this.#attach(found.process, found.pid, options.onData, options.offset ?? 0);
  }

  /** Sends input to a terminal. */
  async sendInput(process: ProcessRef, data: string | Uint8Array, options?: RequestOptions): Promise<void> {
    const bytes = typeof data === "string" ? utf8(data) : data;
    const connection = this.#connection(process);
    await (connection ? connection.send(bytes) : this.#processes.sendStdin(process, bytes, false, options));
  }

  /** Resizes a terminal. */
  async resize(process: ProcessRef, size: PtySize, options?: RequestOptions): Promise<void> {
    await this.#processes.resize(process, size.rows, size.cols, options);
  }

  /** Kills a terminal's process and all its descendants. Returns false if it is not running. */
  async kill(process: ProcessRef, options?: RequestOptions): Promise<boolean> {
    return this.#processes.signal(process, "SIGKILL", options);
  }

  /** Returns this client's open connection, if any. Of two processes with the same pid at most one is running. */
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
