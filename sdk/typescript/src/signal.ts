/** A signal that follows several others and a time limit, and can be let go of. */
export interface LinkedSignal {
  signal: AbortSignal;
  /** Whether the time limit, and not one of the others, ended it. */
  timedOut(): boolean;
  /** Aborts it from here. */
  abort(reason: unknown): void;
  /** Takes the time limit away; the other signals still count. */
  clearTimer(): void;
  /** Takes the time limit and all listeners away. */
  release(): void;
}

/** Links `sources` and a limit of `timeoutMs` (0: none). `AbortSignal.any` is too new for the oldest runtimes that we support. */
export function linkSignals(sources: readonly (AbortSignal | undefined)[], timeoutMs: number): LinkedSignal {
  const controller = new AbortController();
  const given = sources.filter((source): source is AbortSignal => source !== undefined);
  const follow = (event: Event): void => controller.abort((event.target as AbortSignal).reason);
  let byTimer = false;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const aborted = given.find((source) => source.aborted);
  if (aborted) {
    controller.abort(aborted.reason);
  } else {
    for (const source of given) {
      source.addEventListener("abort", follow, { once: true });
    }
    if (timeoutMs > 0) {
      timer = setTimeout(() => {
        byTimer = true;
        controller.abort(new DOMException("the time limit of the request ran out", "TimeoutError"));
      }, Math.min(timeoutMs, LONGEST_TIMER_MS));
    }
  }

  const clearTimer = (): void => clearTimeout(timer);
  return {
    signal: controller.signal,
    timedOut: () => byTimer,
    abort: (reason) => controller.abort(reason),
    clearTimer,
    release() {
      clearTimer();
      for (const source of given) {
        source.removeEventListener("abort", follow);
      }
    },
  };
}

/** Waits, unless the signal comes first; then it rejects with the signal's reason. */
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

/** Longer timers fire at once on the common runtimes. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
