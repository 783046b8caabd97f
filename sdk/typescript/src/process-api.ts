// Processes of one sandbox, as the REST interface has them.

import { utf8 } from "./bytes.js";
import type { RequestOptions } from "./config.js";
import { NotFoundError } from "./errors.js";
import { route, type Transport } from "./transport.js";
import type { WireProcess } from "./wire.js";

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

  get(pid: number, options?: RequestOptions): Promise<WireProcess> {
    return this.transport.json({ method: "GET", path: route`/v1/sandboxes/${this.sandboxId}/processes/${pid}`, options });
  }

  async list(options?: RequestOptions): Promise<WireProcess[]> {
    const answer = await this.transport.json<{ processes: WireProcess[] }>({ method: "GET", path: route`/v1/sandboxes/${this.sandboxId}/processes`, options });
    return answer.processes;
  }

  /** Signals a process and all that it started. False if it does not run. */
  async signal(pid: number, signal: string | number, options?: RequestOptions): Promise<boolean> {
    try {
      await this.transport.done({ method: "POST", path: route`/v1/sandboxes/${this.sandboxId}/processes/${pid}/signal`, json: { signal, tree: true }, options });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.code === "process_not_found") {
        return false;
      }
      throw error;
    }
  }

  async sendStdin(pid: number, data: string | Uint8Array, close: boolean, options?: RequestOptions): Promise<void> {
    const body = typeof data === "string" ? utf8(data) : (data as Uint8Array<ArrayBuffer>);
    await this.transport.done({ method: "POST", path: route`/v1/sandboxes/${this.sandboxId}/processes/${pid}/stdin`, query: { close }, body, options });
  }

  async resize(pid: number, rows: number, columns: number, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: "POST", path: route`/v1/sandboxes/${this.sandboxId}/processes/${pid}/resize`, json: { rows, columns }, options });
  }
}
