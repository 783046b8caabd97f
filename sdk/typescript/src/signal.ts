/** A signal that combines several others with a timeout, and can be released. */
export interface LinkedSignal {
  signal: AbortSignal;
  /** Whether the timeout, and not another signal, aborted it. */
  timedOut(): boolean;
  /** Aborts it. */
  abort(reason: unknown): void;
  /** Removes the timeout; the other signals remain. */
  clearTimer(): void;
  /** Starts the timeout anew, unless it was released. */
  restartTimer(): void;
  /** Removes the timeout and all listeners. */
  release(): void;
}

/** Combines `sources` with a timeout of `timeoutMs` (0: none). `AbortSignal.any` is too new for the oldest supported runtimes. */
export function linkSignals(sources: readonly (AbortSignal | undefined)[], timeoutMs: number): LinkedSignal {
  const controller = new AbortController();
  const given = sources.filter((source): source is AbortSignal => source !== undefined);
  const follow = (event: Event): void => controller.abort((event.target as AbortSignal).reason);
  let byTimer = false;
  let released = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const clearTimer = (): void => clearTimeout(timer);
  const restartTimer = (): void => {
    clearTimer();
    if (timeoutMs > 0 && !released && !controller.signal.aborted) {
      timer = setTimeout(() => {
        byTimer = true;
        controller.abort(new DOMException("the time limit of the request ran out", "TimeoutError"));
      }, Math.min(timeoutMs, LONGEST_TIMER_MS));
    }
  };

  const aborted = given.find((source) => source.aborted);
  if (aborted) {
    controller.abort(aborted.reason);
  } else {
    for (const source of given) {
      source.addEventListener("abort", follow, { once: true });
    }
    restartTimer();
  }

  return {
    signal: controller.signal,
    timedOut: () => byTimer,
    abort: (reason) => controller.abort(reason),
    clearTimer,
    restartTimer,
    release() {
      released = true;
      clearTimer();
      for (const source of given) {
        source.removeEventListener("abort", follow);
      }
    },
  };
}

/** Waits; rejects with the signal's reason if the signal is aborted first. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason as Error);
      return;
    }
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, Math.min(milliseconds, LONGEST_TIMER_MS));
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Returns the promise's value; rejects with the signal's reason if the signal is aborted first. */
export function unlessAborted<Value>(promise: Promise<Value>, signal: AbortSignal | undefined): Promise<Value> {
  if (!signal) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason as Error);
    if (signal.aborted) {
      abort();
      return;
    }
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/** Longer timers fire immediately on common runtimes. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
