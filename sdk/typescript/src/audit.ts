import type { RequestOptions } from "./config.js";
import { Paginator } from "./paginator.js";
import type { Transport } from "./transport.js";
import type { AuditHead, AuditRecord, AuditVerdict } from "./types.js";

/** Which records to list. */
export interface AuditOptions extends RequestOptions {
  /** Only those after this number. */
  after?: number;
  /** Records a page. */
  limit?: number;
  /** Only those about this sandbox. */
  sandbox?: string;
  /** Only those of this action. */
  action?: string;
  /** Only those of this tenant. */
  tenant?: string;
}

/** The audit log: who did what. Needs an admin key. */
export class Audit {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists records, oldest first, as they come page by page. */
  list(options: AuditOptions = {}): Paginator<AuditRecord> {
    const { after, signal, requestTimeoutMs, ...query } = options;
    return new Paginator(
      async (token) => {
        const page = await this.#transport.json<{ records: AuditRecord[]; next: number }>({
          method: "GET",
          path: "/v1/audit",
          query: { ...query, after: token },
          options: { signal, requestTimeoutMs },
        });
        const ended = page.records.length === 0;
        return { items: page.records, nextToken: ended ? undefined : String(page.next) };
      },
      after === undefined ? undefined : String(after),
    );
  }

  /** The end of the chain, to compare with later. */
  async head(options?: RequestOptions): Promise<AuditHead> {
    return (await this.#transport.json<{ head: AuditHead }>({ method: "GET", path: "/v1/audit", query: { limit: 1 }, options })).head;
  }

  /** All of it as JSON lines. The server waits for whoever reads the stream. */
  async export(options?: RequestOptions): Promise<ReadableStream<Uint8Array>> {
    return (await this.#transport.stream({ method: "GET", path: "/v1/audit/export", headers: { Accept: "*/*" }, options })).body;
  }

  /** Checks that no record was changed, taken out or moved. */
  async verify(options?: RequestOptions): Promise<AuditVerdict> {
    return this.#transport.json({ method: "POST", path: "/v1/audit/verify", json: {}, options });
  }
}
