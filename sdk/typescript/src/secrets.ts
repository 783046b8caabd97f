import type { RequestOptions } from "./config.js";
import { secretInfo } from "./convert.js";
import { Paginator } from "./paginator.js";
import { route, type Transport } from "./transport.js";
import type { SecretInfo } from "./types.js";
import type { WireSecret } from "./wire.js";

/** Request to store a secret. */
export interface NewSecret {
  /** Its name: 1 to 128 of `a-z`, `0-9`, `-`, `_` and `.`, a letter or digit first. */
  name: string;
  /** The value. No answer has it. */
  value: string;
  /** Notes. */
  metadata?: Record<string, string>;
}

/** Request to change a secret's value. */
export interface SecretUpdate {
  /** The value. No answer has it. */
  value: string;
  /** New metadata; unchanged if absent. */
  metadata?: Record<string, string>;
}

/** How secrets are listed. */
export interface ListSecretsOptions extends RequestOptions {
  /** How many come in one page, up to 100. */
  limit?: number;
}

/** Secrets stored on the server: a network policy names one as `${secrets.NAME}`, and the gateway puts its value into requests. */
export class Secrets {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Stores a secret. */
  async create(secret: NewSecret, options?: RequestOptions): Promise<SecretInfo> {
    const { name, value, metadata } = secret;
    return secretInfo(await this.#transport.json<WireSecret>({ method: "POST", path: "/v1/secrets", json: { name, value, metadata }, options }));
  }

  /** Gives a secret, by name or id, another value, which running sandboxes have at once. */
  async update(secret: string, update: SecretUpdate, options?: RequestOptions): Promise<SecretInfo> {
    const { value, metadata } = update;
    return secretInfo(await this.#transport.json<WireSecret>({ method: "PUT", path: route`/v1/secrets/${secret}`, json: { value, metadata }, options }));
  }

  /** A secret, by name or id. */
  async get(secret: string, options?: RequestOptions): Promise<SecretInfo> {
    return secretInfo(await this.#transport.json<WireSecret>({ method: "GET", path: route`/v1/secrets/${secret}`, options }));
  }

  /** Lists secrets by their names, as they come page by page. */
  list(options: ListSecretsOptions = {}): Paginator<SecretInfo> {
    const { limit, ...request } = options;
    return new Paginator(async (cursor) => {
      const query = { limit, cursor };
      const page = await this.#transport.json<{ secrets: WireSecret[]; next_cursor: string | null }>({ method: "GET", path: "/v1/secrets", query, options: request });
      return { items: page.secrets.map(secretInfo), nextToken: page.next_cursor ?? undefined };
    });
  }

  /** Removes a secret, by name or id, for good. */
  async delete(secret: string, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/secrets/${secret}`, undefined, options);
  }
}
