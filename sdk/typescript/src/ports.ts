import type { RequestOptions } from "./config.js";
import { portInfo } from "./convert.js";
import { InvalidArgumentError } from "./errors.js";
import { route, type Transport } from "./transport.js";
import type { PortInfo, Span } from "./types.js";
import type { WirePort } from "./wire.js";

/** Published and listening ports of a sandbox. */
export interface PortList {
  /** Published ports. */
  ports: PortInfo[];
  /** Listening ports, published or not. */
  listening: number[];
}

/** Temporary access to one port without a key. */
export interface PortToken {
  /** Send it as `X-Belljar-Token`. */
  token: string;
  /** The port's URL, including the token. */
  url: string;
  /** Time of expiry. */
  expiresAt: Date;
}

/** Ports of a sandbox. */
export class Ports {
  readonly #transport: Transport;
  readonly #sandboxId: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
  }

  /** Publishes a port: with credentials, or without if `public` is true. */
  async publish(port: number, options: RequestOptions & { public?: boolean } = {}): Promise<PortInfo> {
    const { public: open, ...request } = options;
    return portInfo(await this.#transport.json<WirePort>({ method: "POST", path: route`/v1/sandboxes/${this.#sandboxId}/ports`, json: { port, public: open ?? false }, options: request }));
  }

  /** Returns the published ports, and the listening ones. */
  async list(options?: RequestOptions): Promise<PortList> {
    const answer = await this.#transport.json<{ ports: WirePort[]; listening: number[] }>({ method: "GET", path: route`/v1/sandboxes/${this.#sandboxId}/ports`, options });
    return { ports: answer.ports.map(portInfo), listening: answer.listening ?? [] };
  }

  /** Unpublishes a port. */
  async unpublish(port: number, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/sandboxes/${this.#sandboxId}/ports/${port}`, undefined, options);
  }

  /** Creates a token for one published port. `expires` defaults to 3,600 seconds. */
  async createToken(port: number, options: RequestOptions & { expires?: Span } = {}): Promise<PortToken> {
    const { expires, ...request } = options;
    const made = await this.#transport.json<{ token: string; url: string; expires_at: string }>({
      method: "POST",
      path: route`/v1/sandboxes/${this.#sandboxId}/ports/${port}/tokens`,
      json: { expires },
      options: request,
    });
    return { token: made.token, url: this.#transport.configuration.publicUrl(made.url), expiresAt: new Date(made.expires_at) };
  }

  /** Sends a request to a published port through the server, like `fetch`. The key is not passed into the sandbox. */
  async fetch(port: number, path: string, init: RequestInit = {}): Promise<Response> {
    const prefix = route`/v1/sandboxes/${this.#sandboxId}/ports/${port}/proxy/`;
    const base = new URL(this.#transport.configuration.apiUrl + prefix);
    const url = new URL(`${base.href}${path.replace(/^\/+/, "")}`);
    if (!url.pathname.startsWith(base.pathname)) {
      throw new InvalidArgumentError(`the path ${JSON.stringify(path)} leads out of the port; give it without ".."`, { field: "path" });
    }
    const headers = new Headers(init.headers);
    for (const [name, value] of Object.entries(this.#transport.configuration.portCredentials())) {
      headers.set(name, value);
    }
    // A redirect from inside must not send the key to another server.
    return this.#transport.configuration.fetch(url.href, { redirect: "manual", ...init, headers });
  }
}
