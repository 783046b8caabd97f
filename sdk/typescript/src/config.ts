import { environment } from "./environment.js";
import { AuthenticationError, InvalidArgumentError, SandboxError } from "./errors.js";
import { names } from "./options.js";
import { canStart, type OwnServer, ownServer } from "./own-server.js";

/** Connection settings. Missing ones are taken from the environment. */
export interface ConnectionOptions {
  /** The API key or sandbox token. Default: `BELLJAR_API_KEY`. */
  apiKey?: string;
  /** The server's address. Default: `BELLJAR_API_URL`, else `http://127.0.0.1:8787` with a key, and without one the server of this user's home. */
  apiUrl?: string;
  /** The domain under which the server publishes sandboxes' ports. Default: `BELLJAR_DOMAIN`, else the server's own. */
  domain?: string;
  /**
   * Milliseconds to wait for a response; 0 for no limit. Default: 60,000. For streams, until they begin; for the bytes of files, and for bodies
   * that are streams, it limits each piece. Bodies of known size get more: a second for 64 KiB.
   */
  requestTimeoutMs?: number;
  /** Number of retries of a request that is safe to repeat. Default: 5. */
  maxRetries?: number;
  /** The function that sends requests, instead of the runtime's own `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** Options of a single call. */
export interface RequestOptions {
  /** Ends the call; it then rejects with the signal's reason. */
  signal?: AbortSignal;
  /** Milliseconds to wait for the response; 0 for no limit. */
  requestTimeoutMs?: number;
  /** The user who does it, by default the sandbox's own, `user`. Only commands and terminals of machines can have another, such as `root`. */
  user?: string;
}

/** The names of connection settings. */
export const CONNECTION_OPTIONS = names<ConnectionOptions>({ apiKey: true, apiUrl: true, domain: true, requestTimeoutMs: true, maxRetries: true, fetch: true });

/** The names of the options of every call. */
export const REQUEST_OPTIONS = names<RequestOptions>({ signal: true, requestTimeoutMs: true, user: true });

/** Selects the options of a single call. */
export function ofRequest(options: RequestOptions | undefined): RequestOptions {
  return { signal: options?.signal, requestTimeoutMs: options?.requestTimeoutMs, user: options?.user };
}

/** Selects the options of a call whose user is in its body. */
export function ofCommand(options: RequestOptions): RequestOptions {
  return { ...ofRequest(options), user: undefined };
}

/** Options of static calls: connection settings, and options of the call. */
export type CallOptions = ConnectionOptions & RequestOptions;

const DEFAULT_URL = "http://127.0.0.1:8787";
/** The origin of requests through a socket, if the server has no address. */
const NO_HOST = "http://localhost";
const DEFAULT_REQUEST_TIMEOUT_MS = 60_000;
/** Together these last for at least 3 s, longer than a restart of the server takes. */
const DEFAULT_MAX_RETRIES = 5;

/** A checked configuration. The key is private, so that no inspection or serialization shows it. */
export class Configuration {
  readonly #apiKey: string | undefined;
  /** Without a trailing slash. */
  readonly apiUrl: string;
  /** The domain of ports, if one is set here. */
  readonly domain: string | undefined;
  /** Milliseconds to wait for a response; 0 for no limit. */
  readonly requestTimeoutMs: number;
  /** Number of retries of a request. */
  readonly maxRetries: number;
  readonly #fetch: typeof globalThis.fetch | undefined;
  /** The server of this user's home, if neither a server nor a key is named. It needs no key. */
  readonly #own: OwnServer | undefined;

  constructor(options: ConnectionOptions = {}) {
    this.#apiKey = checkKey(options.apiKey ?? environment("BELLJAR_API_KEY"));
    const url = options.apiUrl ?? environment("BELLJAR_API_URL");
    this.#own = url === undefined && this.#apiKey === undefined && options.fetch === undefined && canStart() ? ownServer() : undefined;
    this.apiUrl = checkUrl(url ?? DEFAULT_URL);
    this.domain = options.domain ?? environment("BELLJAR_DOMAIN");
    this.requestTimeoutMs = checkNumber("requestTimeoutMs", options.requestTimeoutMs ?? DEFAULT_REQUEST_TIMEOUT_MS);
    this.maxRetries = checkNumber("maxRetries", options.maxRetries ?? DEFAULT_MAX_RETRIES);
    this.#fetch = options.fetch;
  }

  /** Sends a request. */
  fetch(url: string, init: RequestInit): Promise<Response> {
    return this.#own ? this.#own.fetch(url, init) : (this.#fetch ?? globalThis.fetch)(url, init);
  }

  /** The Unix socket of the server, if it is that of this user's home and has been found. */
  get socketPath(): string | undefined {
    return this.#own?.socketPath;
  }

  /**
   * Returns the URL under which other programs reach what the server has named with `url`.
   *
   * @throws {@link SandboxError} if the server has no address but its socket.
   */
  publicUrl(url: string): string {
    if (this.#own === undefined) {
      return new URL(url, `${this.apiUrl}/`).href;
    }
    const full = new URL(url, `${NO_HOST}/`);
    if (full.origin !== NO_HOST) {
      return full.href;
    }
    const { address } = this.#own;
    if (address === undefined) {
      throw new SandboxError("this server has no address but its socket, so no URL leads to it; start one with `belljar serve`, or use `belljar sandbox port-forward`");
    }
    return `${address.replace(/\/+$/, "")}${full.href.slice(NO_HOST.length)}`;
  }

  /** The grade of limits that the user's environment asks for, which does not concern other users' servers. */
  get defaultGrade(): string | undefined {
    return this.#own ? environment("BELLJAR_LIMITS") : undefined;
  }

  /** Returns the authentication headers. */
  credentials(): Record<string, string> {
    return this.#apiKey === undefined ? {} : { Authorization: `Bearer ${this.#apiKey}` };
  }

  /** Throws unless there is a key. */
  requireKey(): void {
    if (this.#apiKey === undefined && this.#own === undefined) {
      throw new AuthenticationError("there is no API key; give apiKey or set BELLJAR_API_KEY (`belljar key create` makes one)", { code: "unauthenticated" });
    }
  }

  /** Returns the authentication headers for a published port, without `Authorization`, which belongs to the program there. */
  portCredentials(): Record<string, string> {
    return this.#apiKey === undefined ? {} : { "X-Belljar-Token": this.#apiKey };
  }

  /** Removes the key from a text. */
  redact(text: string): string {
    return this.#apiKey === undefined ? text : text.replaceAll(this.#apiKey, "[key]");
  }
}

/** Refuses any user other than the sandbox's own, where that is the only one. */
export function checkUser(user: string | undefined): void {
  if (user !== undefined && user !== "user") {
    throw new InvalidArgumentError(`user is ${JSON.stringify(user)}, but this call is done as the sandbox's own user, "user"; omit it, or use commands.run in a machine`, { field: "user" });
  }
}

/** A key that contains a line end would appear in the error of `fetch`, so it is refused here without being quoted. */
function checkKey(key: string | undefined): string | undefined {
  if (key === undefined || key === "") {
    return undefined;
  }
  if (!/^[\x21-\x7e]+$/.test(key)) {
    throw new InvalidArgumentError("the API key contains a space, a line end or another invalid character; pass it exactly as printed", { field: "apiKey" });
  }
  return key;
}

function checkUrl(given: string): string {
  let url: URL;
  try {
    url = new URL(given);
  } catch {
    throw new InvalidArgumentError("the API address is not a URL; use one such as http://127.0.0.1:8787", { field: "apiUrl" });
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new InvalidArgumentError(`the API address begins with ${url.protocol}; it must be http: or https:`, { field: "apiUrl" });
  }
  if (url.username !== "" || url.password !== "") {
    throw new InvalidArgumentError("the API address must not contain a user name or password; pass the key as apiKey", { field: "apiUrl" });
  }
  if (url.search !== "" || url.hash !== "") {
    throw new InvalidArgumentError("the API address must not have a query or a fragment", { field: "apiUrl" });
  }
  return url.href.replace(/\/+$/, "");
}

function checkNumber(field: string, value: number): number {
  if (typeof value !== "number" || !(value >= 0)) {
    throw new InvalidArgumentError(`${field} is ${String(value)}; it has to be 0 or more`, { field });
  }
  return value;
}
