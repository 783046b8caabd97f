import type { RequestOptions } from "./config.js";
import { keyInfo, quotasToWire } from "./convert.js";
import { route, type Transport } from "./transport.js";
import type { KeyInfo, Quotas, Role, Span } from "./types.js";
import type { WireKey } from "./wire.js";

/** A new key. */
export interface NewKey {
  /** What it is for. */
  name: string;
  /** What it may do; `user` if not given. */
  role?: Role;
  /** Whose it is; `default` if not given. Tenants do not see each other's sandboxes. */
  tenant?: string;
  /** How long it is good; for ever if not given. */
  expires?: Span;
  quotas?: Quotas;
}

/** A key that was just made. */
export interface CreatedKey extends KeyInfo {
  /** The key itself. It is never told again. */
  key: string;
}

/** API keys. Needs an admin key. */
export class Keys {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Makes a key. */
  async create(key: NewKey, options?: RequestOptions): Promise<CreatedKey> {
    const json = { name: key.name, role: key.role ?? "user", tenant: key.tenant, expires: key.expires, quotas: quotasToWire(key.quotas) };
    const made = await this.#transport.json<WireKey & { key: string }>({ method: "POST", path: "/v1/keys", json, options });
    return { ...keyInfo(made), key: made.key };
  }

  /** All keys, revoked ones too. */
  async list(options?: RequestOptions): Promise<KeyInfo[]> {
    const answer = await this.#transport.json<{ keys: WireKey[] }>({ method: "GET", path: "/v1/keys", options });
    return answer.keys.map(keyInfo);
  }

  /** Makes a key worthless, at once and for ever. */
  async revoke(id: string, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/keys/${id}`, undefined, options);
  }
}
