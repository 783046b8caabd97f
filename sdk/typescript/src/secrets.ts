import type { RequestOptions } from "./config.js";
import { secretInfo } from "./convert.js";
import { checkList, checkTexts, known, names } from "./options.js";
import { listPages, type PageOptions, type Paginator } from "./paginator.js";
import { route, type Transport } from "./transport.js";
import type { SecretInfo } from "./types.js";
import type { WireSecret } from "./wire.js";

/** Request to store a secret. */
export interface NewSecret {
  /** Its name: 1 to 128 of `a-z`, `0-9`, `-`, `_` and `.`, a letter or digit first. */
  name: string;
  /** The value. No response contains it. */
  value: string;
  /** The only hosts that it may be sent to, such as `api.example.com` and `*.example.com`. Without hosts only this key and administrators may use it, for any host. */
  hosts?: string[];
  /** The only header that it may be put into; default: any. Only with `hosts`. */
  header?: string;
  /** Notes. */
  metadata?: Record<string, string>;
}

/** Request to change a secret's value. */
export interface SecretUpdate {
  /** The value. No response contains it. */
  value: string;
  /** New hosts; unchanged if absent. Sandboxes that use the secret for another host no longer reach that host. */
  hosts?: string[];
  /** The header that belongs to the new hosts. */
  header?: string;
  /** New metadata; unchanged if absent. */
  metadata?: Record<string, string>;
}

const UPDATE_NAMES = names<SecretUpdate>({ value: true, hosts: true, header: true, metadata: true });
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
    const { name, ...rest } = known("secrets.create", secret, SECRET_NAMES);
    return secretInfo(await this.#transport.json<WireSecret>({ method: "POST", path: "/v1/secrets", json: { name, ...toWire(rest) }, options }));
  }

  /** Changes the value of a secret, by name or id. Running sandboxes use it immediately. */
  async update(secret: string, update: SecretUpdate, options?: RequestOptions): Promise<SecretInfo> {
    const json = toWire(known("secrets.update", update, UPDATE_NAMES));
    return secretInfo(await this.#transport.json<WireSecret>({ method: "PUT", path: route`/v1/secrets/${secret}`, json, options }));
  }

  /** Returns a secret, by name or id. */
  async get(secret: string, options?: RequestOptions): Promise<SecretInfo> {
    return secretInfo(await this.#transport.json<WireSecret>({ method: "GET", path: route`/v1/secrets/${secret}`, options }));
  }

  /** Lists secrets, sorted by name, as a paginated list. */
  list(options: PageOptions = {}): Paginator<SecretInfo> {
    return listPages(this.#transport, "secrets", secretInfo, options);
  }

  /** Removes a secret, by name or id, permanently. */
  async delete(secret: string, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/secrets/${secret}`, undefined, options);
  }
}

function toWire({ value, hosts, header, metadata }: SecretUpdate): SecretUpdate {
  return { value, hosts: checkList("hosts", hosts, "api.example.com"), header, metadata: checkTexts("metadata", metadata) };
}
