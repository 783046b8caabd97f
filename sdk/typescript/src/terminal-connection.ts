// An attached terminal: its output, from any offset, and its input, across broken connections.

import { ConnectionError, errorFromProblem, type Problem, SandboxError } from "./errors.js";
import { decodeFrame, type Frame } from "./frames.js";
import type { ProcessApi } from "./process-api.js";
import { backOff } from "./retry.js";
import { sleep } from "./signal.js";
import { route } from "./transport.js";
import { OPEN, openSocket, type Socket } from "./websocket.js";
import type { WireExited } from "./wire.js";

/** Called with the output of a terminal. If it returns a promise, reading waits for it. */
export type OnData = (data: Uint8Array) => unknown;

/** Maximum number of bytes buffered for the listener. Beyond it, the connection is closed, and resumed later. */
const MOST_WAITING_BYTES = 4 * 1024 * 1024;
/** Maximum number of bytes buffered for sending. */
const MOST_UNSENT_BYTES = 1024 * 1024;
/** Maximum size of one input message in bytes; the server accepts 1 MiB at most. */
const INPUT_PIECE_BYTES = 64 * 1024;

/** A message from a socket. */
type Message = Frame | { exited: WireExited } | { failed: SandboxError };

/** A connection to a terminal that lasts until the process ends or it is closed. */
export class TerminalConnection {
  readonly #processes: ProcessApi;
  readonly #process: number;
  readonly #onData: OnData | undefined;
  readonly #stop = new AbortController();
  /** How the process ended. Rejects if the connection was closed, or cannot be restored. */
  readonly exited: Promise<WireExited>;
  #offset = 0;
  /** The current connection, if any. */
  #socket: Socket | undefined;
  /** Why no further connection is possible. */
  #over: { reason: unknown } | undefined;
  /** Callers waiting for a connection. */
  #waiting: (() => void)[] = [];
  /** Input is sent in order. */
  #lastInput: Promise<void> = Promise.resolve();

  constructor(processes: ProcessApi, process: number, onData: OnData | undefined, offset: number) {
    this.#processes = processes;
    this.#process = process;
    this.#onData = onData;
    this.#offset = offset;
    this.exited = this.#run();
    this.exited.then(
      () => this.#end(new SandboxError("the terminal's process has ended", { code: "process_ended" })),
      (error: unknown) => this.#end(error),
    );
  }

  /** Sends input. Input in flight when a connection breaks is sent at most once. */
  send(data: Uint8Array): Promise<void> {
    const sent = this.#lastInput.then(() => this.#send(data));
    this.#lastInput = sent.catch(() => undefined);
    return sent;
  }

  /** Disconnects from the terminal; the process keeps running. */
  close(): void {
    this.#stop.abort(new SandboxError("the terminal was disconnected before it ended; connect again to wait for it", { code: "disconnected" }));
  }

  async #send(data: Uint8Array): Promise<void> {
    for (let start = 0; start < data.length; start += INPUT_PIECE_BYTES) {
      const socket = await this.#connected();
      socket.send(data.slice(start, start + INPUT_PIECE_BYTES));
      while (socket.readyState === OPEN && socket.bufferedAmount > MOST_UNSENT_BYTES) {
        await sleep(5, this.#stop.signal);
      }
    }
  }

  async #run(): Promise<WireExited> {
    for (let broken = 0; ; ) {
      const before = this.#offset;
      try {
        const exited = await this.#attach();
        if (exited) {
          return exited;
        }
      } catch (error) {
        this.#stop.signal.throwIfAborted();
        if (!(error instanceof ConnectionError)) {
          throw error;
        }
        broken = this.#offset > before ? 1 : broken + 1;
        if (broken > this.#processes.transport.configuration.maxRetries) {
          throw error;
        }
        // A refused WebSocket gives no reason; an ordinary request does.
        await this.#processes.get({ process: this.#process }, { signal: this.#stop.signal });
        await sleep(backOff(broken), this.#stop.signal);
      }
    }
  }

  /** Runs one connection. Returns undefined if it was closed because the listener is slow. */
  async #attach(): Promise<WireExited | undefined> {
    const { transport, sandboxId } = this.#processes;
    const { url, headers } = transport.webSocket(route`/v1/sandboxes/${sandboxId}/processes/${this.#process}/attach`, { terminal: this.#offset });
    const messages = new Messages();
    const socket = await openSocket(url, headers, transport.configuration.requestTimeoutMs, this.#stop.signal, (opened) => messages.take(opened), transport.configuration.socketPath);
    const stop = (): void => socket.close(1000);
    this.#stop.signal.addEventListener("abort", stop, { once: true });
    this.#socket = socket;
    this.#wake();
    try {
      for (let message = await messages.next(); message; message = await messages.next()) {
        this.#stop.signal.throwIfAborted();
        if ("exited" in message) {
          return message.exited;
        }
        if ("failed" in message) {
          throw message.failed;
        }
        this.#offset = message.offset + message.data.length;
        await this.#onData?.(message.data);
      }
      this.#stop.signal.throwIfAborted();
      if (messages.letGo) {
        return undefined;
      }
      throw new ConnectionError("the connection to the terminal broke");
    } finally {
      this.#socket = undefined;
      this.#stop.signal.removeEventListener("abort", stop);
      socket.close(1000);
    }
  }

  async #connected(): Promise<Socket> {
    while (!this.#socket) {
      if (this.#over) {
        throw this.#over.reason;
      }
      await new Promise<void>((resolve) => {
        this.#waiting.push(resolve);
      });
    }
    return this.#socket;
  }

  #end(reason: unknown): void {
    this.#over = { reason };
    this.#wake();
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) {
      resolve();
    }
  }
}

/** The messages of a socket, buffered until read. */
class Messages {
  /** Whether the client closed the socket because too much was buffered. */
  letGo = false;
  readonly #waiting: Message[] = [];
  #waitingBytes = 0;
  #closed = false;
  #wake: () => void = () => undefined;

  /** Listens to a socket. */
  take(socket: Socket): void {
    socket.addEventListener("message", ({ data }) => {
      // After it was closed, a gap would follow.
      if (this.letGo) {
        return;
      }
      const message = readMessage(data);
      if (!message) {
        return;
      }
      this.#waiting.push(message);
      this.#waitingBytes += "data" in message ? message.data.length : 0;
      if (this.#waitingBytes > MOST_WAITING_BYTES) {
        this.letGo = true;
        socket.close(1000);
      }
      this.#wake();
    });
    socket.addEventListener("close", () => {
      this.#closed = true;
      this.#wake();
    });
  }

  /** Returns the next message, or undefined at the end. */
  async next(): Promise<Message | undefined> {
    while (this.#waiting.length === 0 && !this.#closed) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    const message = this.#waiting.shift();
    if (message && "data" in message) {
      this.#waitingBytes -= message.data.length;
    }
    return message;
  }
}

function readMessage(data: unknown): Message | undefined {
  try {
    if (data instanceof ArrayBuffer) {
      return decodeFrame(data);
    }
    const event = JSON.parse(String(data)) as { event?: string } & WireExited & Problem;
    if (event.event === "exited") {
      return { exited: event };
    }
    if (event.event === "error") {
      return { failed: errorFromProblem(event, event.status ?? 500) };
    }
    return undefined;
  } catch (error) {
    return { failed: error instanceof SandboxError ? error : new SandboxError("invalid message of the terminal", { code: "bad_answer", cause: error }) };
  }
}
