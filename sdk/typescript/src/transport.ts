// Requests to the server: addresses, credentials, timeouts, retries, errors.

import { concatenate } from "./bytes.js";
import { checkUser, type Configuration, REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { ConflictError, ConnectionError, errorFromProblem, InvalidArgumentError, NotFoundError, type Problem, SandboxError, SandboxGoneError, TimeoutError } from "./errors.js";
import { checkRest, wrongType } from "./options.js";
import { type Failure, neverOpened, retryAfterSeconds, waitBeforeRetry } from "./retry.js";
import { type LinkedSignal, linkSignals, sleep, unlessAborted } from "./signal.js";
import { EventParser, type ServerSentEvent } from "./sse.js";

/** Values of a query; undefined ones are omitted, lists are repeated. */
export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** A request to the server. */
export interface ApiRequest {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** From {@link route}. */
  path: string;
  query?: Query | undefined;
  /** Sent as JSON. */
  json?: unknown;
  /** Sent as it is. */
  body?: Blob | Uint8Array | ReadableStream<Uint8Array> | undefined;
  headers?: Record<string, string>;
  /** Makes a POST safe to repeat. */
  idempotencyKey?: string | undefined;
  options?: RequestOptions | undefined;
}

/** A response whose body has not been read. Call `release` after reading it. */
interface OpenAnswer {
  response: Response;
  linked: LinkedSignal;
}

/** The attempts of one call. */
interface Attempts {
  made: number;
  /** Whether one of them may have reached the server without a response. */
  lost: boolean;
}

function newAttempts(): Attempts {
  return { made: 0, lost: false };
}

/** The server sends a comment every 15 s; after four missing ones the connection counts as broken. */
const STREAM_SILENCE_MS = 60_000;

/** The slowest connection that a body of known size is given time for. `fetch` does not say how much of it has been sent. */
const SLOWEST_BYTES_PER_SECOND = 64 * 1024;

/** Some runtimes give up if a response takes longer than this; a stream with keep-alives is not affected. */
const LONGEST_SILENT_WAIT_MS = 240_000;

/** Reports whether a request with this time limit may be sent without keep-alives. */
export function isShort(timeoutMs: number | undefined): timeoutMs is number {
  return timeoutMs !== undefined && timeoutMs > 0 && timeoutMs <= LONGEST_SILENT_WAIT_MS;
}

/** Builds a path with each value percent-encoded as one segment. */
export function route(strings: TemplateStringsArray, ...values: (string | number)[]): string {
  return String.raw({ raw: strings }, ...values.map(segment));
}

function segment(value: string | number): string {
  if (typeof value !== "string" && typeof value !== "number") {
    throw wrongType("id", value, "a string or a number");
  }
  const text = String(value);
  // "." and ".." would be resolved and lead to another route.
  if (text === "" || text === "." || text === "..") {
    throw new InvalidArgumentError(`${JSON.stringify(text)} is no id and no name`, { field: "id" });
  }
  return encodeURIComponent(text);
}

/** Returns a unique idempotency key. */
export function newIdempotencyKey(): string {
  if (typeof globalThis.crypto?.randomUUID === "function") {
    return globalThis.crypto.randomUUID();
  }
  // Node 18 hides its generator behind a flag. The key is not secret, it only must be unique.
  const part = (): string => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, "0");
  return `${part()}${part()}${part()}${part()}`;
}

/** Sends requests to one server with one credential. */
export class Transport {
  readonly configuration: Configuration;
  /** Milliseconds of silence after which a stream of events counts as broken. */
  readonly streamSilenceMs: number;

  constructor(configuration: Configuration, streamSilenceMs: number = STREAM_SILENCE_MS) {
    this.configuration = configuration;
    this.streamSilenceMs = streamSilenceMs;
  }

  /** Sends a request, and parses the response as JSON. */
  async json<Answer>(request: ApiRequest): Promise<Answer> {
    return this.#complete(request, async (response) => (await response.json()) as Answer);
  }

  /** Sends a request for work of up to `timeoutMs`, which is added to the request timeout, and parses the response as JSON. */
  async work<Answer>(request: ApiRequest, timeoutMs: number): Promise<Answer> {
    const own = request.options?.requestTimeoutMs ?? this.configuration.requestTimeoutMs;
    return this.json({ ...request, options: { ...request.options, requestTimeoutMs: own === 0 ? 0 : own + timeoutMs } });
  }

  /** Sends a request for work of any duration, and parses the response as JSON. Only the call's own `requestTimeoutMs` limits it. */
  async longWork<Answer>(request: ApiRequest): Promise<Answer> {
    return this.json({ ...request, options: { ...request.options, requestTimeoutMs: request.options?.requestTimeoutMs ?? 0 } });
  }

  /** Sends a request, and returns the response as text. */
  async text(request: ApiRequest): Promise<string> {
    return this.#complete(request, (response) => response.text());
  }

  /** Sends a request, and returns the response's bytes. The time limit is that of each piece, because there may be very many. */
  async bytes(request: ApiRequest): Promise<Uint8Array> {
    return this.#complete(request, async (response, linked) => {
      if (!response.body) {
        return new Uint8Array(await response.arrayBuffer());
      }
      const reader = bodyReader(response, linked.signal);
      const pieces: Uint8Array[] = [];
      for (;;) {
        linked.restartTimer();
        const piece = await reader.read();
        if (piece.done) {
          return concatenate(pieces);
        }
        pieces.push(piece.value);
      }
    });
  }

  /** Sends a request, and ignores the response. */
  async done(request: ApiRequest): Promise<void> {
    await this.#complete(request, async (response) => response.arrayBuffer());
  }

  /** Sends a deletion. If an earlier attempt was lost and the object is now missing, that attempt has deleted it. */
  async delete(path: string, query: Query | undefined, options: RequestOptions | undefined): Promise<void> {
    const attempts = newAttempts();
    try {
      await this.#complete({ method: "DELETE", path, query, options }, async (response) => response.arrayBuffer(), attempts);
    } catch (error) {
      if (!(attempts.lost && (error instanceof NotFoundError || error instanceof SandboxGoneError))) {
        throw error;
      }
    }
  }

  /** Sends a request, and returns the response as a stream of bytes. */
  async stream(request: ApiRequest): Promise<{ response: Response; body: ReadableStream<Uint8Array> }> {
    const { response, linked } = await this.#open(request);
    linked.clearTimer();
    const reader = bodyReader(response, linked.signal);
    const body = new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          try {
            const piece = await reader.read();
            if (piece.done) {
              linked.release();
              controller.close();
            } else {
              controller.enqueue(piece.value);
            }
          } catch (error) {
            linked.release();
            controller.error(this.#failure(error, linked, request));
          }
        },
        async cancel(reason) {
          linked.release();
          linked.abort(reason ?? new DOMException("the stream was left", "AbortError"));
        },
      },
      // Reads only on demand, which gives back pressure.
      { highWaterMark: 0 },
    );
    return { response, body };
  }

  /** Sends a request, and yields the events of the response, after `onOpen`. Leaving the loop ends the request. */
  async *events(request: ApiRequest, onOpen?: () => void): AsyncGenerator<ServerSentEvent, void, undefined> {
    const { response, linked } = await this.#open({ ...request, headers: { Accept: "text/event-stream", ...request.headers } });
    linked.clearTimer();
    onOpen?.();
    const reader = bodyReader(response, linked.signal);
    const decoder = new TextDecoder();
    const parser = new EventParser();
    let silent = false;
    let complete = false;
    try {
      for (;;) {
        const timer = setTimeout(() => {
          silent = true;
          linked.abort(new DOMException("nothing came", "TimeoutError"));
        }, this.streamSilenceMs);
        const piece = await reader.read().finally(() => clearTimeout(timer));
        if (piece.done) {
          complete = true;
          return;
        }
        yield* parser.push(decoder.decode(piece.value, { stream: true }));
      }
    } catch (error) {
      if (silent) {
        throw new ConnectionError(`nothing came from the server for ${this.streamSilenceMs} ms in an event stream, not even a keep-alive; the connection counts as broken`);
      }
      throw this.#failure(error, linked, request);
    } finally {
      linked.release();
      if (!complete) {
        // Informs the server, and releases the connection.
        linked.abort(new DOMException("the stream was left", "AbortError"));
      }
    }
  }


  /** Returns the URL of a WebSocket, and its headers. */
  webSocket(path: string, query?: Query): { url: string; headers: Record<string, string> } {
    return { url: this.#url(path, query).replace(/^http/, "ws"), headers: this.configuration.credentials() };
  }

  async #complete<Answer>(request: ApiRequest, read: (response: Response, linked: LinkedSignal) => Promise<Answer>, attempts: Attempts = newAttempts()): Promise<Answer> {
    for (;;) {
      const { response, linked } = await this.#open(request, attempts);
      try {
        return await unlessAborted(read(response, linked), linked.signal);
      } catch (error) {
        const failure = this.#failure(error, linked, request);
        const wait = failure instanceof ConnectionError ? this.#wait({ error: failure, mayHaveArrived: true }, request, attempts) : undefined;
        if (wait === undefined) {
          throw failure;
        }
        attempts.lost = true;
        await sleep(wait, request.options?.signal);
      } finally {
        linked.release();
      }
    }
  }

  /** Sends a request, with retries, until it succeeds. */
  async #open(request: ApiRequest, attempts: Attempts = newAttempts()): Promise<OpenAnswer> {
    checkRest(request.options, REQUEST_OPTIONS);
    checkUser(request.options?.user);
    if (request.path.startsWith("/v1/")) {
      this.configuration.requireKey();
    }
    for (;;) {
      attempts.made += 1;
      const outcome = await this.#attempt(request);
      if ("response" in outcome) {
        return outcome;
      }
      const wait = this.#wait(outcome, request, attempts);
      if (wait === undefined) {
        throw outcome.error;
      }
      attempts.lost ||= outcome.mayHaveArrived;
      await sleep(wait, request.options?.signal);
    }
  }

  /** Returns the delay before the next attempt in milliseconds, or undefined to give up. */
  #wait(failure: Failure, request: ApiRequest, attempts: Attempts): number | undefined {
    // A stream can be sent only once.
    if (attempts.made > this.configuration.maxRetries || request.body instanceof ReadableStream) {
      return undefined;
    }
    const repeatable = request.method === "GET" || request.method === "DELETE" || request.idempotencyKey !== undefined;
    // The lost attempt is still being executed, and this one has the same key.
    if (attempts.lost && failure.error instanceof ConflictError && failure.error.code === "idempotency_running") {
      return waitBeforeRetry({ error: new ConnectionError(""), mayHaveArrived: true }, attempts.made, repeatable);
    }
    return waitBeforeRetry(failure, attempts.made, repeatable);
  }

  async #attempt(request: ApiRequest): Promise<OpenAnswer | Failure> {
    const options = request.options ?? {};
    options.signal?.throwIfAborted();
    const timeoutMs = options.requestTimeoutMs ?? this.configuration.requestTimeoutMs;
    const linked = linkSignals([options.signal], timeoutMs === 0 ? 0 : timeoutMs + sendingMs(request.body));
    let response: Response;
    try {
      response = await this.configuration.fetch(this.#url(request.path, request.query), this.#init(request, linked));
    } catch (error) {
      linked.release();
      const failure = this.#failure(error, linked, request);
      if (!(failure instanceof SandboxError)) {
        throw failure;
      }
      return { error: failure, mayHaveArrived: !neverOpened(error) };
    }
    if (response.ok) {
      return { response, linked };
    }
    try {
      const error = await readProblem(response, this.configuration);
      return { error, mayHaveArrived: response.status >= 500 && response.status !== 503 };
    } finally {
      linked.release();
    }
  }

  #url(path: string, query?: Query): string {
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(query ?? {})) {
      for (const one of Array.isArray(value) ? (value as readonly string[]) : [value]) {
        if (one !== undefined) {
          parameters.append(name, String(one));
        }
      }
    }
    const text = parameters.toString();
    return `${this.configuration.apiUrl}${path}${text === "" ? "" : `?${text}`}`;
  }

  #init(request: ApiRequest, linked: LinkedSignal): RequestInit {
    const headers: Record<string, string> = { Accept: "application/json", ...request.headers, ...this.configuration.credentials() };
    const init: RequestInit & { duplex?: "half" } = { method: request.method, headers, signal: linked.signal, redirect: "error" };
    if (request.idempotencyKey !== undefined) {
      headers["Idempotency-Key"] = request.idempotencyKey;
    }
    if (request.json !== undefined) {
      headers["Content-Type"] = "application/json";
      init.body = JSON.stringify(request.json);
    } else if (request.body !== undefined) {
      headers["Content-Type"] ??= "application/octet-stream";
      if (request.body instanceof ReadableStream) {
        init.body = timed(request.body, linked);
        init.duplex = "half";
      } else {
        init.body = request.body as BodyInit;
      }
    }
    return init;
  }

  /** Converts an error of `fetch` or of a body. The caller's own abort reason is passed through. */
  #failure(error: unknown, linked: LinkedSignal, request: ApiRequest): unknown {
    if (error instanceof SandboxError) {
      return error;
    }
    const signal = request.options?.signal;
    if (signal?.aborted && linked.signal.aborted && !linked.timedOut()) {
      return signal.reason;
    }
    const what = `${request.method} ${request.path}`;
    if (linked.timedOut()) {
      return new TimeoutError(`${what} was not answered in time; raise requestTimeoutMs if it needs longer`);
    }
    if (error instanceof RangeError || error instanceof SyntaxError) {
      return new SandboxError(`the answer to ${what} is not what this package understands; is ${this.configuration.apiUrl} a Belljar server?`, { code: "bad_answer", cause: error });
    }
    const reason = this.configuration.redact(deepestMessage(error));
    return neverOpened(error)
      ? new ConnectionError(`no connection to ${this.configuration.apiUrl} (${reason}); is the server running, and is BELLJAR_API_URL right?`, { cause: error })
      : new ConnectionError(`the connection broke during ${what} (${reason})`, { cause: error });
  }
}

/** Returns the milliseconds that sending a body of known size may take. */
function sendingMs(body: ApiRequest["body"]): number {
  const bytes = body instanceof Blob ? body.size : body instanceof Uint8Array ? body.length : 0;
  return (bytes / SLOWEST_BYTES_PER_SECOND) * 1000;
}

/** Passes on a body, and applies the time limit to the sending of each piece, and to the response. Its source may take any time. */
function timed(body: ReadableStream<Uint8Array>, linked: LinkedSignal): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        linked.clearTimer();
        const piece = await reader.read();
        linked.restartTimer();
        if (piece.done) {
          controller.close();
        } else {
          controller.enqueue(piece.value);
        }
      },
      cancel: (reason) => reader.cancel(reason),
    },
    { highWaterMark: 0 },
  );
}

/** Reads a body until the signal is aborted; then a read rejects with its reason, and the connection is released. */
function bodyReader(response: Response, signal: AbortSignal): { read(): Promise<ReadableStreamReadResult<Uint8Array>> } {
  const reader = response.body?.getReader();
  // With Node 20 a read that begins at the moment of the abort may never end. Cancelling always ends it.
  const cancel = (): void => void reader?.cancel(signal.reason).catch(() => undefined);
  signal.addEventListener("abort", cancel, { once: true });
  return {
    async read() {
      signal.throwIfAborted();
      const piece = await (reader?.read() ?? Promise.resolve({ done: true as const, value: undefined }));
      signal.throwIfAborted();
      return piece;
    },
  };
}

async function readProblem(response: Response, configuration: Configuration): Promise<SandboxError> {
  let problem: Problem = {};
  try {
    const parsed: unknown = JSON.parse(await response.text());
    if (typeof parsed === "object" && parsed !== null) {
      problem = parsed as Problem;
    }
  } catch {
    // A proxy in between may respond with its own page; the status is sufficient.
  }
  if (typeof problem.detail === "string") {
    problem.detail = configuration.redact(problem.detail);
  }
  return errorFromProblem(problem, response.status, response.headers.get("X-Request-Id") ?? undefined, retryAfterSeconds(response.headers.get("Retry-After")));
}

/** Returns the message at the end of the chain of causes: `fetch` itself only reports that it failed. */
function deepestMessage(error: unknown): string {
  let current = error;
  for (let depth = 0; depth < 5 && current instanceof Error && current.cause instanceof Error; depth++) {
    current = current.cause;
  }
  if (current instanceof AggregateError && current.errors[0] instanceof Error) {
    current = current.errors[0];
  }
  return current instanceof Error ? current.message || current.name : String(current);
}
