import type { RequestOptions } from "./config.js";
import { secretInfo } from "./convert.js";
import { known, names } from "./options.js";
import { Paginator } from "./paginator.js";
import { route, type Transport } from "./transport.js";
import type { SecretInfo } from "./types.js";
import type { WireSecret } from "./wire.js";

/** Request to store a secret. */
export interface NewSecret {
  /** Its name: 1 to 128 of `a-z`, `0-9`, `-`, `_` and `.`, a letter or digit first. */
  name: string;
  /** The value. No response contains it. */
  value: string;
  /** Notes. */
  metadata?: Record<string, string>;
}

/** Request to change a secret's value. */
export interface SecretUpdate {
  /** The value. No response contains it. */
  value: string;
  /** New metadata; unchanged if absent. */
  metadata?: Record<string, string>;
}

/** Options for listing secrets. */
export interface ListSecretsOptions extends RequestOptions {
  /** Page size, up to 100. */
  limit?: number;
}

const UPDATE_NAMES = names<SecretUpdate>({ value: true, metadata: true });
const SECRET_NAMES = names<NewSecret>({ name: true, ...UPDATE_NAMES });

/** Secrets on the server. Network policies refer to one as `${secrets.NAME}`; the gateway inserts its value into requests. */
export class Secrets {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Stores a secret. */
  async create(secret: NewSecret, options?: RequestOptions): Promise<SecretInfo> {
    const { name, value, metadata } = known("secrets.create", secret, SECRET_NAMES);
    return secretInfo(await this.#transport.json<WireSecret>({ method: "POST", path: "/v1/secrets", json: { name, value, metadata }, options }));
  }

  /** Changes the value of a secret, by name or id. Running sandboxes use it immediately. */
  async update(secret: string, update: SecretUpdate, options?: RequestOptions): Promise<SecretInfo> {
    const { value, metadata } = known("secrets.update", update, UPDATE_NAMES);
    return secretInfo(await this.#transport.json<WireSecret>({ method: "PUT", path: route`/v1/secrets/${secret}`, json: { value, metadata }, options }));
  }

  /** Returns a secret, by name or id. */
  async get(secret: string, options?: RequestOptions): Promise<SecretInfo> {
    return secretInfo(await this.#transport.json<WireSecret>({ method: "GET", path: route`/v1/secrets/${secret}`, options }));
  }

  /** Lists secrets, sorted by name, as a paginated list. */
  list(options: ListSecretsOptions = {}): Paginator<SecretInfo> {
    const { limit, ...request } = options;
    return new Paginator(async (cursor) => {
      const query = { limit, cursor };
      const page = await this.#transport.json<{ secrets: WireSecret[]; next_cursor: string | null }>({ method: "GET", path: "/v1/secrets", query, options: request });
      return { items: page.secrets.map(secretInfo), nextToken: page.next_cursor ?? undefined };
    });
  }

  /** Removes a secret, by name or id, permanently. */
  async delete(secret: string, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/secrets/${secret}`, undefined, options);
  }
}
