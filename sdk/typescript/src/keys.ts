import type { RequestOptions } from "./config.js";
import { keyInfo, quotasToWire } from "./convert.js";
import { known, names } from "./options.js";
import { listPages, type PageOptions, type Paginator } from "./paginator.js";
import { route, type Transport } from "./transport.js";
import type { ApprovalRule, KeyInfo, Quotas, Role, Span } from "./types.js";
import type { WireKey } from "./wire.js";

/** Options of a new key. */
export interface NewKey {
  /** A description. */
  name: string;
  /** The role; default: `user`. */
  role?: Role;
  /** The tenant; default: `default`. Tenants do not see each other's sandboxes. */
  tenant?: string;
  /** The lifetime; default: unlimited. */
  expires?: Span;
  /** The quotas. */
  quotas?: Quotas;
  /** The person to whom it belongs, who cannot approve calls made with it; default: it is a person of its own. */
  owner?: string;
  /** Which calls with it wait until another person approves them; default: `never`. */
  approval?: ApprovalRule;
}

/** Request to change a key. What is not given stays. */
export interface KeyUpdate {
  /** A description. */
  name?: string;
  /** The role. */
  role?: Role;
  /** The lifetime from now on; 0: unlimited. */
  expires?: Span;
  /** Its quotas, which replace all earlier ones. */
  quotas?: Quotas;
  /** The person to whom it belongs; empty: none. */
  owner?: string;
  /** Which calls with it wait until another person approves them. */
  approval?: ApprovalRule;
}

/** A newly created key. */
export interface CreatedKey extends KeyInfo {
  /** The key itself. It is never shown again. */
  key: string;
}

const KEY_NAMES = names<NewKey>({ name: true, role: true, tenant: true, expires: true, quotas: true, owner: true, approval: true });
const UPDATE_NAMES = names<KeyUpdate>({ name: true, role: true, expires: true, quotas: true, owner: true, approval: true });

/** API keys. Needs an admin key. */
export class Keys {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Creates a key. */
  async create(key: NewKey, options?: RequestOptions): Promise<CreatedKey> {
    known("keys.create", key, KEY_NAMES);
    const { name, role, tenant, expires, quotas, owner, approval } = key;
    const json = { name, role: role ?? "user", tenant, expires, quotas: quotasToWire(quotas), owner, approval };
    const made = await this.#transport.json<WireKey & { key: string }>({ method: "POST", path: "/v1/keys", json, options });
    return { ...keyInfo(made), key: made.key };
  }

  /** Changes a key, from its next request on. */
  async update(id: string, update: KeyUpdate, options?: RequestOptions): Promise<KeyInfo> {
    const { name, role, expires, quotas, owner, approval } = known("keys.update", update, UPDATE_NAMES);
    const json = { name, role, expires, quotas: quotasToWire(quotas), owner, approval };
    return keyInfo(await this.#transport.json<WireKey>({ method: "PATCH", path: route`/v1/keys/${id}`, json, options }));
  }

  /** Lists keys, including revoked ones, oldest first, as a paginated list; without `limit` in one page. */
  list(options: PageOptions = {}): Paginator<KeyInfo> {
    return listPages(this.#transport, "keys", keyInfo, options);
  }

  /** Revokes a key, immediately and permanently. */
  async revoke(id: string, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/keys/${id}`, undefined, options);
  }
}
