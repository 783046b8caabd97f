import { AuthenticationError, InvalidArgumentError } from "./errors.js";

/** How to reach the server, and as whom. What is not given comes from the environment. */
export interface ConnectionOptions {
  /** The API key or sandbox token. Else `BELLJAR_API_KEY`. */
  apiKey?: string;
  /** The server's address. Else `BELLJAR_API_URL`, else `http://127.0.0.1:8787`. */
  apiUrl?: string;
  /** The domain under which the server shows sandboxes' ports. Else `BELLJAR_DOMAIN`, else what the server says. */
  domain?: string;
  /** Milliseconds until an answer must have come; 0 for no limit. 60,000 if not given. Streams count until they begin. */
  requestTimeoutMs?: number;
  /** How often a request that is safe to repeat is repeated. 5 if not given. */
  maxRetries?: number;
  /** The function that carries requests, instead of the runtime's own `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** What can be said of a single call. */
export interface RequestOptions {
  /** Ends the call; it then rejects with the signal's reason. */
  signal?: AbortSignal;
  /** Milliseconds until the answer must have come; 0 for no limit. */
  requestTimeoutMs?: number;
  /** An option of E2B: everything in a sandbox runs as its one user, `user`, and any other is refused. */
  user?: string;
}

/** Only what goes for the one call, out of more options. */
export function ofRequest(options: RequestOptions | undefined): RequestOptions {
  return { signal: options?.signal, requestTimeoutMs: options?.requestTimeoutMs, user: options?.user };
}

/** Options of calls that need no object: how to connect, and what goes for this call. */
export type CallOptions = ConnectionOptions & RequestOptions;

const DEFAULT_URL = "http://127.0.0.1:8787";
const DEFAULT_REQUEST_TIMEOUT_MS = 60_000;
/** Together these last for at least 3 s, which is more than a server's restart takes. */
const DEFAULT_MAX_RETRIES = 5;

/** A checked configuration. The key is private, so that no inspection or serialization shows it. */
export class Configuration {
  readonly #apiKey: string | undefined;
  /** Without a slash at the end. */
  readonly apiUrl: string;
  /** The domain of ports, if one is set here. */
  readonly domain: string | undefined;
  /** Milliseconds until an answer must have come; 0 for no limit. */
  readonly requestTimeoutMs: number;
  /** How often a request is repeated. */
  readonly maxRetries: number;
  readonly #fetch: typeof globalThis.fetch | undefined;

  constructor(options: ConnectionOptions = {}) {
    this.#apiKey = checkKey(options.apiKey ?? environment("BELLJAR_API_KEY"));
    this.apiUrl = checkUrl(options.apiUrl ?? environment("BELLJAR_API_URL") ?? DEFAULT_URL);
    this.domain = options.domain ?? environment("BELLJAR_DOMAIN");
    this.requestTimeoutMs = checkNumber("requestTimeoutMs", options.requestTimeoutMs ?? DEFAULT_REQUEST_TIMEOUT_MS);
    this.maxRetries = checkNumber("maxRetries", options.maxRetries ?? DEFAULT_MAX_RETRIES);
    this.#fetch = options.fetch;
  }

  /** Carries a request. */
  fetch(url: string, init: RequestInit): Promise<Response> {
    return (this.#fetch ?? globalThis.fetch)(url, init);
  }

  /** The headers that say who asks. */
  credentials(): Record<string, string> {
    return this.#apiKey === undefined ? {} : { Authorization: `Bearer ${this.#apiKey}` };
  }

  /** Throws unless there is a key. */
  requireKey(): void {
    if (this.#apiKey === undefined) {
      throw new AuthenticationError("there is no API key; give apiKey or set BELLJAR_API_KEY (`belljar key create` makes one)", { code: "unauthenticated" });
    }
  }

  /** The same for a published port, whose own `Authorization` is left to what listens there. */
  portCredentials(): Record<string, string> {
    return this.#apiKey === undefined ? {} : { "X-Belljar-Token": this.#apiKey };
  }

  /** The text without the key, should it be in there. */
  redact(text: string): string {
    return this.#apiKey === undefined ? text : text.replaceAll(this.#apiKey, "[key]");
  }
}

/** Refuses another user than the one that a sandbox has. */
export function checkUser(user: string | undefined): void {
  if (user !== undefined && user !== "user") {
    throw new InvalidArgumentError(`user is ${JSON.stringify(user)}, but everything in a sandbox runs as its one user, "user"; leave it out`, { field: "user" });
  }
}

/** A key with a line end in it would come back in the words of `fetch`, so it is refused here, without its text. */
function checkKey(key: string | undefined): string | undefined {
  if (key === undefined || key === "") {
    return undefined;
  }
  if (!/^[\x21-\x7e]+$/.test(key)) {
    throw new InvalidArgumentError("the API key has a space, a line end or another character that no key has; give it as it was printed", { field: "apiKey" });
  }
  return key;
}

function checkUrl(given: string): string {
  let url: URL;
  try {
    url = new URL(given);
  } catch {
    throw new InvalidArgumentError("the API address is no URL; give one such as http://127.0.0.1:8787", { field: "apiUrl" });
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new InvalidArgumentError(`the API address begins with ${url.protocol}; it has to be http: or https:`, { field: "apiUrl" });
  }
  if (url.username !== "" || url.password !== "") {
    throw new InvalidArgumentError("the API address has a user name or a password in it; give the key as apiKey", { field: "apiUrl" });
  }
  if (url.search !== "" || url.hash !== "") {
    throw new InvalidArgumentError("the API address has a query or a fragment; give it without", { field: "apiUrl" });
  }
  return url.href.replace(/\/+$/, "");
}

function checkNumber(field: string, value: number): number {
  if (typeof value !== "number" || !(value >= 0)) {
    throw new InvalidArgumentError(`${field} is ${String(value)}; it has to be 0 or more`, { field });
  }
  return value;
}

function environment(name: string): string | undefined {
  // Deno asks for a permission; without it the variable counts as not set.
  try {
    const value = typeof process === "undefined" ? undefined : process.env[name];
    return value === "" ? undefined : value;
  } catch {
    return undefined;
  }
}
