// Retry policy.

import { ConnectionError, RateLimitError, type SandboxError, ServerError, UnavailableError } from "./errors.js";

/** Delay before the first retry, in milliseconds; it doubles with each one. */
export const FIRST_WAIT_MS = 200;
/** Maximum delay chosen by the client, in milliseconds. */
export const LONGEST_WAIT_MS = 5_000;
/** Maximum `Retry-After` to wait for, in milliseconds; with a longer one the error is thrown. */
export const LONGEST_RETRY_AFTER_MS = 30_000;

/** A failed attempt. */
export interface Failure {
  error: SandboxError;
  /** Whether the request may have reached the server. */
  mayHaveArrived: boolean;
}

/** Returns the delay before the next attempt in milliseconds, or undefined to give up. `attempt` counts from 1. */
export function waitBeforeRetry(failure: Failure, attempt: number, repeatable: boolean, random: () => number = Math.random): number | undefined {
  const { error } = failure;
  if (error instanceof RateLimitError || error instanceof UnavailableError) {
    // With Retry-After the server has not started the request.
    if (error.retryAfter !== undefined) {
      const wait = error.retryAfter * 1000;
      return wait <= LONGEST_RETRY_AFTER_MS ? wait + backOff(1, random) : undefined;
    }
    // A quota that is used up stays so, unless the server says when it will not be.
    return repeatable && error instanceof UnavailableError ? backOff(attempt, random) : undefined;
  }
  if (error instanceof ConnectionError) {
    return repeatable || !failure.mayHaveArrived ? backOff(attempt, random) : undefined;
  }
  if (error instanceof ServerError && error.status === 502) {
    return repeatable ? backOff(attempt, random) : undefined;
  }
  return undefined;
}

/** Exponential backoff with jitter, so that clients do not all retry together. `attempt` counts from 1. */
export function backOff(attempt: number, random: () => number = Math.random): number {
  return (0.5 + random() / 2) * Math.min(FIRST_WAIT_MS * 2 ** (attempt - 1), LONGEST_WAIT_MS);
}

/** Parses a `Retry-After` header (a number or a date) to seconds. */
export function retryAfterSeconds(header: string | null, now: number = Date.now()): number | undefined {
  if (header === null || header.trim() === "") {
    return undefined;
  }
  const seconds = Number(header);
  if (Number.isFinite(seconds)) {
    return Math.max(0, seconds);
  }
  const date = Date.parse(header);
  return Number.isNaN(date) ? undefined : Math.max(0, (date - now) / 1000);
}

/** Error names with which runtimes report that no connection was opened. */
const NOT_OPENED = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENETDOWN",
  "UND_ERR_CONNECT_TIMEOUT",
  "ConnectionRefused",
  "FailedToOpenSocket",
]);

/** Reports whether an error of `fetch` means that the connection could not be opened. */
export function neverOpened(error: unknown): boolean {
  for (let current: unknown = error, depth = 0; current instanceof Error && depth < 5; current = current.cause, depth++) {
    const { code, syscall } = current as Error & { code?: unknown; syscall?: unknown };
    // The last is that of a Unix socket that is gone.
    if (typeof code === "string" && (NOT_OPENED.has(code) || (code === "ENOENT" && syscall === "connect"))) {
      return true;
    }
    if (current instanceof AggregateError && current.errors.length > 0 && current.errors.every(neverOpened)) {
      return true;
    }
  }
  return false;
}
