// What may be sent again, and when.

import { ConnectionError, RateLimitError, type SandboxError, ServerError, UnavailableError } from "./errors.js";

/** First wait before another attempt, in milliseconds; it doubles with each one. */
export const FIRST_WAIT_MS = 200;
/** The longest wait that is chosen here, in milliseconds. */
export const LONGEST_WAIT_MS = 5_000;
/** The longest `Retry-After` that is waited for, in milliseconds; with a longer one the error goes to the caller. */
export const LONGEST_RETRY_AFTER_MS = 30_000;

/** What is known of a failed attempt. */
export interface Failure {
  error: SandboxError;
  /** Whether the request may have reached the server. */
  mayHaveArrived: boolean;
}

/** Milliseconds to wait before the next attempt, or undefined if there must be none. `attempt` counts from 1. */
export function waitBeforeRetry(failure: Failure, attempt: number, repeatable: boolean, random: () => number = Math.random): number | undefined {
  const { error } = failure;
  if (error instanceof RateLimitError || error instanceof UnavailableError) {
    // With a Retry-After the server says that it has not begun.
    if (error.retryAfter !== undefined) {
      const wait = error.retryAfter * 1000;
      return wait <= LONGEST_RETRY_AFTER_MS ? wait + backOff(1, random) : undefined;
    }
    return repeatable ? backOff(attempt, random) : undefined;
  }
  if (error instanceof ConnectionError) {
    return repeatable || !failure.mayHaveArrived ? backOff(attempt, random) : undefined;
  }
  if (error instanceof ServerError && error.status === 502) {
    return repeatable ? backOff(attempt, random) : undefined;
  }
  return undefined;
}

/** Doubling waits, of which half is random, so that many clients do not come back at once. `attempt` counts from 1. */
export function backOff(attempt: number, random: () => number = Math.random): number {
  return (0.5 + random() / 2) * Math.min(FIRST_WAIT_MS * 2 ** (attempt - 1), LONGEST_WAIT_MS);
}

/** The seconds of a `Retry-After` header, which is a number or a date. */
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

/** Names of errors with which runtimes say that there was no connection at all. */
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

/** Whether an error of `fetch` says that the connection could not be opened. */
export function neverOpened(error: unknown): boolean {
  for (let current: unknown = error, depth = 0; current instanceof Error && depth < 5; current = current.cause, depth++) {
    const code = (current as Error & { code?: unknown }).code;
    if (typeof code === "string" && NOT_OPENED.has(code)) {
      return true;
    }
    if (current instanceof AggregateError && current.errors.length > 0 && current.errors.every(neverOpened)) {
      return true;
    }
  }
  return false;
}
