import { ofRequest, REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { approvalInfo } from "./convert.js";
import { known, names } from "./options.js";
import { type PageOptions, Paginator } from "./paginator.js";
import { route, type Transport } from "./transport.js";
import type { ApprovalInfo, ApprovalState, BudgetScope, Span } from "./types.js";
import type { WireApproval } from "./wire.js";

/** Options of a list of approvals. */
export interface ApprovalListOptions extends PageOptions {
  /** Only those in this state; default: all. */
  state?: ApprovalState;
}

/** An approval that a person gives: for the call that waits, or with `uses` and `within` for further calls of that person, too. */
export interface Approve {
  /** Why, for the audit log. */
  note?: string;
  /** Number of calls with the one that waits, from 2 to 1000. */
  uses?: number;
  /** Time within which they must begin, at most 24 h. */
  within?: Span;
  /** Which calls; default: `call`. */
  scope?: BudgetScope;
}

/** A refusal. */
export interface Deny {
  /** Why, for the caller and the audit log. */
  note?: string;
}

const LIST_NAMES = names<Omit<ApprovalListOptions, keyof RequestOptions>>({ limit: true, nextToken: true, state: true });
const APPROVE_NAMES = names<Approve>({ note: true, uses: true, within: true, scope: true });
const DENY_NAMES = names<Deny>({ note: true });

/** Calls that wait until a person approves them. */
export class Approvals {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists approvals, newest first: all of the tenant for the role `approver`, else those of one's own calls. */
  list(options: ApprovalListOptions = {}): Paginator<ApprovalInfo> {
    const { limit, nextToken, state } = known("approvals.list", options, LIST_NAMES, REQUEST_OPTIONS);
    return new Paginator(async (cursor) => {
      const query = { state, limit, cursor };
      const page = await this.#transport.json<{ approvals: WireApproval[]; next_cursor?: string | null }>({ method: "GET", path: "/v1/approvals", query, options: ofRequest(options) });
      return { items: page.approvals.map(approvalInfo), nextToken: page.next_cursor ?? undefined };
    }, nextToken);
  }

  /** Returns an approval, with the call as it would run. */
  async get(id: string, options?: RequestOptions): Promise<ApprovalInfo> {
    return approvalInfo(await this.#transport.json<WireApproval>({ method: "GET", path: route`/v1/approvals/${id}`, options }));
  }

  /** Approves a call that waits, which then runs once. Another person than the one who made it has to do that. */
  async approve(id: string, approve: Approve = {}, options?: RequestOptions): Promise<ApprovalInfo> {
    const { note, uses, within, scope } = known("approvals.approve", approve, APPROVE_NAMES);
    const json = { note, uses, within, scope };
    return approvalInfo(await this.#transport.json<WireApproval>({ method: "POST", path: route`/v1/approvals/${id}/approve`, json, options }));
  }

  /** Denies a call that waits, or ends the further calls of an approval. */
  async deny(id: string, deny: Deny = {}, options?: RequestOptions): Promise<ApprovalInfo> {
    const { note } = known("approvals.deny", deny, DENY_NAMES);
    return approvalInfo(await this.#transport.json<WireApproval>({ method: "POST", path: route`/v1/approvals/${id}/deny`, json: { note }, options }));
  }
}
