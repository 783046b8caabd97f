// Requests to the REST interface. The session is the credential: a cookie that this page cannot read, and a token beside it.

import type { components } from "./schema";

export type Schemas = components["schemas"];

const TOKEN = "belljar.session";

/** The page's token. It is worth nothing without the cookie; the key itself is never stored. */
export const token = {
  get: () => localStorage.getItem(TOKEN),
  set: (value: string) => localStorage.setItem(TOKEN, value),
  remove: () => localStorage.removeItem(TOKEN),
};

/** A refusal of the server, or `unreachable`. */
export class ApiError extends Error {
  constructor(
    readonly code: string,
    detail: string,
    readonly field: string | null = null,
    readonly status = 0,
  ) {
    super(detail);
  }
}

type Watcher = { unauthenticated: () => void; unreachable: () => void };
const watcher: Watcher = { unauthenticated: () => {}, unreachable: () => {} };

/** Sets what happens when the session has ended, or the server cannot be reached. */
export function watch(next: Watcher) {
  Object.assign(watcher, next);
}

export type Init = {
  method?: string;
  json?: unknown;
  body?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
};

/** Sends a request. Fails with an [ApiError] unless the answer is a success. */
export async function send(path: string, init: Init = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const own = token.get();
  if (own && !headers.has("authorization")) headers.set("x-belljar-session", own);
  let body = init.body;
  if (init.json !== undefined) {
    headers.set("content-type", "application/json");
    body = JSON.stringify(init.json);
  }
  let response: Response;
  try {
    response = await fetch(path, {
      method: init.method ?? "GET",
      headers,
      body,
      signal: init.signal,
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
    });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    watcher.unreachable();
    throw new ApiError("unreachable", "the server cannot be reached");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  if (response.status === 401 && !headers.has("authorization") && path !== "/v1/session/redeem") {
    watcher.unauthenticated();
  }
  const detail = problem?.detail ?? `${response.status} ${response.statusText}`;
  throw new ApiError(problem?.code ?? "failed", detail, problem?.field ?? null, response.status);
}

/** Sends a request, and returns the JSON of the answer. */
export async function call<T>(path: string, init: Init = {}): Promise<T> {
  const response = await send(path, init);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

export const post = <T>(path: string, json: unknown = {}) => call<T>(path, { method: "POST", json });
export const remove = (path: string) => send(path, { method: "DELETE" });

/** Longest list that is read to its end. */
const MAX_LISTED = 2000;

/** Reads a list in pages of `limit`: `name` is the field with its entries. `more` says that it goes on after those. */
export async function listed<T>(path: string, name: string, limit = 100): Promise<{ items: T[]; more: boolean }> {
  const items: T[] = [];
  let cursor: string | null | undefined;
  do {
    const next: string = cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
    const page = await call<Record<string, unknown> & { next_cursor?: string | null }>(`${path}${path.includes("?") ? "&" : "?"}limit=${limit}${next}`);
    items.push(...(page[name] as T[]));
    cursor = page.next_cursor;
  } while (cursor && items.length < MAX_LISTED);
  return { items, more: Boolean(cursor) };
}

/** Reads the body of an answer. Null if it has more than `max` bytes, which are not read. */
export async function bodyOf(answer: Response, max: number): Promise<Uint8Array | null> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let length = 0;
  const reader = answer.body?.getReader();
  for (let part = await reader?.read(); part?.value; part = await reader?.read()) {
    length += part.value.length;
    if (length > max) {
      await reader?.cancel();
      return null;
    }
    parts.push(part.value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

export type ServerEvent = { event: string; id: string; data: unknown };

/** Reads server-sent events. `opened` is called when the server has accepted the request. */
export async function* events(path: string, init: Init = {}, opened?: () => void): AsyncGenerator<ServerEvent> {
  const headers = { accept: "text/event-stream", ...init.headers };
  const response = await send(path, { ...init, headers });
  if (!response.body) return;
  opened?.();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const parsed = parse(block);
        if (parsed) yield parsed;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parse(block: string): ServerEvent | null {
  const found = { event: "message", id: "", data: "" };
  for (const text of block.split("\n")) {
    const at = text.indexOf(":");
    if (at <= 0) continue;
    const name = text.slice(0, at);
    const value = text.slice(at + 1).replace(/^ /, "");
    if (name === "event") found.event = value;
    else if (name === "id") found.id = value;
    else if (name === "data") found.data += (found.data ? "\n" : "") + value;
  }
  if (!found.data) return null;
  try {
    return { ...found, data: JSON.parse(found.data) };
  } catch {
    return null;
  }
}

/** A path with its parts encoded: `path\`/v1/sandboxes/${id}\``. */
export function path(texts: TemplateStringsArray, ...parts: (string | number)[]): string {
  return texts.reduce((whole, text, at) => whole + encodeURIComponent(parts[at - 1] ?? "") + text);
}

/** The text of an error. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
