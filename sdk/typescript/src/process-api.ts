// Processes of one sandbox, over the REST interface.

import { utf8 } from "./bytes.js";
import type { RequestOptions } from "./config.js";
import { ProcessNotFoundError } from "./errors.js";
import { wrongType } from "./options.js";
import { route, type Transport } from "./transport.js";
import type { WireProcess } from "./wire.js";

/** A process: its pid inside the sandbox, or a handle or an info, which identify it permanently. */
export type ProcessRef = number | { readonly process: number };

/** Sources from which the input of a command can be streamed. */
export type InputData = string | Uint8Array | Iterable<string | Uint8Array> | AsyncIterable<string | Uint8Array> | ReadableStream<string | Uint8Array>;

/** Common parts of commands and terminals. */
export class ProcessApi {
  readonly transport: Transport;
  readonly sandboxId: string;

  constructor(transport: Transport, sandboxId: string) {
    this.transport = transport;
    this.sandboxId = sandboxId;
  }

  /** Starts a process in the background. */
  start(request: Record<string, unknown>, options?: RequestOptions): Promise<WireProcess> {
    return this.transport.json({ method: "POST", path: route`/v1/sandboxes/${this.sandboxId}/processes`, json: request, options });
  }

  async get(ref: ProcessRef, options?: RequestOptions): Promise<WireProcess> {
    // The list has all information about a process.
    return typeof ref === "number" ? this.#find(ref, options) : this.transport.json({ method: "GET", path: this.#route(ref.process), options });
  }

  /** Returns Belljar's own id of a process. */
  async number(ref: ProcessRef, options?: RequestOptions): Promise<number> {
    return typeof ref === "number" ? (await this.#find(ref, options)).process : ref.process;
  }

  async list(options?: RequestOptions): Promise<WireProcess[]> {
    const answer = await this.transport.json<{ processes: WireProcess[] }>({ method: "GET", path: route`/v1/sandboxes/${this.sandboxId}/processes`, options });
    return answer.processes;
  }

  /** Signals a process and all its descendants. Returns false if it is not running. */
  async signal(ref: ProcessRef, signal: string | number, options?: RequestOptions): Promise<boolean> {
    try {
      const process = await this.number(ref, options);
      await this.transport.done({ method: "POST", path: this.#route(process, "/signal"), json: { signal, tree: true }, options });
      return true;
    } catch (error) {
      if (error instanceof ProcessNotFoundError) {
        return false;
      }
      throw error;
    }
  }

  async sendStdin(ref: ProcessRef, data: string | Uint8Array, close: boolean, options?: RequestOptions): Promise<void> {
    await this.#feed(await this.number(ref, options), data, close, options);
  }

  async streamInput(ref: ProcessRef, data: InputData, close: boolean, options?: RequestOptions): Promise<number> {
    const process = await this.number(ref, options);
    let sent = 0;
    for await (const piece of piecesOf(data)) {
      sent += await this.#feed(process, piece, false, options);
    }
    if (close) {
      await this.#feed(process, "", true, options);
    }
    return sent;
  }

  /** Sends one piece of input, and returns its size in bytes. */
  async #feed(process: number, data: string | Uint8Array, close: boolean, options?: RequestOptions): Promise<number> {
    const body = typeof data === "string" ? utf8(data) : data;
    if (!(body instanceof Uint8Array)) {
      throw wrongType("data", data, "a string or bytes");
    }
    await this.transport.done({ method: "POST", path: this.#route(process, "/stdin"), query: { close }, body, options });
    return body.length;
  }

  async resize(ref: ProcessRef, rows: number, columns: number, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: "POST", path: this.#route(await this.number(ref, options), "/resize"), json: { rows, columns }, options });
  }

  #route(process: number, rest = ""): string {
    return route`/v1/sandboxes/${this.sandboxId}/processes/${process}` + rest;
  }

  /** Returns the running process with this pid, else the last one that had it. */
  async #find(pid: number, options?: RequestOptions): Promise<WireProcess> {
    const fitting = (await this.list(options)).filter((one) => one.pid === pid);
    const found = fitting.sort((one, other) => Number(other.running) - Number(one.running) || other.process - one.process)[0];
    if (!found) {
      throw new ProcessNotFoundError(`there is no process with pid ${pid} in the sandbox`, { code: "process_not_found" });
    }
    return found;
  }
}

async function* piecesOf(data: InputData): AsyncGenerator<string | Uint8Array, void, undefined> {
  if (typeof data === "string" || data instanceof Uint8Array) {
    yield data;
  } else if (data instanceof ReadableStream) {
    // Not every runtime can iterate over a stream.
    const reader = data.getReader();
    try {
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        yield piece.value;
      }
    } finally {
      await reader.cancel().catch(() => undefined);
    }
  } else if (typeof data === "object" && data !== null && (Symbol.asyncIterator in data || Symbol.iterator in data)) {
    yield* data;
  } else {
    throw wrongType("data", data, "a string, bytes, a stream, or an iterator over strings or bytes");
  }
}
