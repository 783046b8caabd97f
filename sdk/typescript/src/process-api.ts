// Processes of one sandbox, as the REST interface has them.

import { utf8 } from "./bytes.js";
import type { RequestOptions } from "./config.js";
import { NotFoundError } from "./errors.js";
import { route, type Transport } from "./transport.js";
import type { WireProcess } from "./wire.js";

/** A process: the pid that the sandbox's own programs see, or a handle or an info of it, which mean it for ever. */
export type ProcessRef = number | { readonly process: number };

/** What commands and terminals have in common. */
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
    // The list has all that can be told of one.
    return typeof ref === "number" ? this.#find(ref, options) : this.transport.json({ method: "GET", path: this.#route(ref.process), options });
  }

  /** Belljar's number of a process. */
  async number(ref: ProcessRef, options?: RequestOptions): Promise<number> {
    return typeof ref === "number" ? (await this.#find(ref, options)).process : ref.process;
  }

  async list(options?: RequestOptions): Promise<WireProcess[]> {
    const answer = await this.transport.json<{ processes: WireProcess[] }>({ method: "GET", path: route`/v1/sandboxes/${this.sandboxId}/processes`, options });
    return answer.processes;
  }

  /** Signals a process and all that it started. False if it does not run. */
  async signal(ref: ProcessRef, signal: string | number, options?: RequestOptions): Promise<boolean> {
    try {
      const process = await this.number(ref, options);
      await this.transport.done({ method: "POST", path: this.#route(process, "/signal"), json: { signal, tree: true }, options });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.code === "process_not_found") {
        return false;
      }
      throw error;
    }
  }

  async sendStdin(ref: ProcessRef, data: string | Uint8Array, close: boolean, options?: RequestOptions): Promise<void> {
    const body = typeof data === "string" ? utf8(data) : data;
    await this.transport.done({ method: "POST", path: this.#route(await this.number(ref, options), "/stdin"), query: { close }, body, options });
  }

  async resize(ref: ProcessRef, rows: number, columns: number, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: "POST", path: this.#route(await this.number(ref, options), "/resize"), json: { rows, columns }, options });
  }

  #route(process: number, rest = ""): string {
    return route`/v1/sandboxes/${this.sandboxId}/processes/${process}` + rest;
  }

  /** The process with this pid that runs, else the one that had it last. */
  async #find(pid: number, options?: RequestOptions): Promise<WireProcess> {
    const fitting = (await this.list(options)).filter((one) => one.pid === pid);
    const found = fitting.sort((one, other) => Number(other.running) - Number(one.running) || other.process - one.process)[0];
    if (!found) {
      throw new NotFoundError(`there is no process with pid ${pid} in the sandbox`, { code: "process_not_found" });
    }
    return found;
  }
}
