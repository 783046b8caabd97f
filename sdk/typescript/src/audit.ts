import { REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { known, names } from "./options.js";
import { Paginator } from "./paginator.js";
import type { Transport } from "./transport.js";
import type { AuditHead, AuditRecord, AuditVerdict } from "./types.js";

/** Filter for listing records. */
export interface AuditOptions extends RequestOptions {
  /** Only entries after this number. */
  after?: number;
  /** Page size. */
  limit?: number;
  /** Only records of this sandbox. */
  sandbox?: string;
  /** Only records of this action. */
  action?: string;
  /** Only records of this tenant. */
  tenant?: string;
}

const AUDIT_OPTIONS = names<Omit<AuditOptions, keyof RequestOptions>>({ after: true, limit: true, sandbox: true, action: true, tenant: true });

/** The audit log. Needs an admin key. */
export class Audit {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists records, oldest first, as a paginated list. */
  list(options: AuditOptions = {}): Paginator<AuditRecord> {
    const { after, signal, requestTimeoutMs, user, ...query } = known("audit.list", options, AUDIT_OPTIONS, REQUEST_OPTIONS);
    return new Paginator(
      async (token) => {
        const page = await this.#transport.json<{ records: AuditRecord[]; next: number }>({
          method: "GET",
          path: "/v1/audit",
          query: { ...query, after: token },
          options: { signal, requestTimeoutMs, user },
        });
        const ended = page.records.length === 0;
        return { items: page.records, nextToken: ended ? undefined : String(page.next) };
      },
      after === undefined ? undefined : String(after),
    );
  }

  /** Returns the head of the chain, for a later comparison. */
  async head(options?: RequestOptions): Promise<AuditHead> {
    return (await this.#transport.json<{ head: AuditHead }>({ method: "GET", path: "/v1/audit", query: { limit: 1 }, options })).head;
  }

  /** Exports the whole log as JSON lines. The stream has back pressure. */
  async export(options?: RequestOptions): Promise<ReadableStream<Uint8Array>> {
    return (await this.#transport.stream({ method: "GET", path: "/v1/audit/export", headers: { Accept: "*/*" }, options })).body;
  }

  /** Verifies that no record was changed, removed or moved. */
  async verify(options?: RequestOptions): Promise<AuditVerdict> {
    return this.#transport.longWork({ method: "POST", path: "/v1/audit/verify", json: {}, options });
  }
}
