import "./dispose.js";
import { ofRequest, type RequestOptions } from "./config.js";
import { ConnectionError } from "./errors.js";
import { errorFromEvent, parseEvent } from "./output.js";
import { linkSignals } from "./signal.js";
import type { ApiRequest, Transport } from "./transport.js";

/** What happened in a watched directory. */
export type WatchEvent =
  | {
      type: "created" | "changed" | "removed" | "moved_from" | "moved_to";
      /** Relative to the watched directory. */
      path: string;
      /** Whether it is a directory. */
      directory: boolean;
    }
  | {
      /** Events came faster than they could be told; some are missing. Look at the directory itself. */
      type: "overflow";
    };

/** Takes what happened. If it returns a promise, reading waits for it. */
export type OnWatchEvent = (event: WatchEvent) => unknown;

/** How to watch. */
export interface WatchOptions extends RequestOptions {
  /** Whether directories below are watched too; no if not given. */
  recursive?: boolean;
  /** Called once when the watch is over, with an error unless it was stopped. */
  onExit?: (error?: unknown) => unknown;
}

/** A watch that is in place. */
export class WatchHandle {
  readonly #stop: () => void;
  readonly #finished: Promise<void>;

  /** @internal */
  constructor(stop: () => void, finished: Promise<void>) {
    this.#stop = stop;
    this.#finished = finished;
  }

  /** Ends the watch. After it has resolved no event comes any more. Do not wait for it in the listener itself. */
  async stop(): Promise<void> {
    this.#stop();
    await this.#finished;
  }

  /** Ends the watch. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}

/** Starts a watch, and resolves when the server says that it is in place. */
export async function startWatch(transport: Transport, request: ApiRequest, onEvent: OnWatchEvent, options: WatchOptions): Promise<WatchHandle> {
  const stop = new AbortController();
  const linked = linkSignals([stop.signal, options.signal], 0);
  const events = transport.events({ ...request, options: { ...ofRequest(options), signal: linked.signal } });

  const ready = await events.next().catch((error: unknown) => {
    linked.release();
    throw error;
  });
  if (ready.done || ready.value.event !== "ready") {
    linked.release();
    await events.return();
    throw !ready.done && ready.value.event === "error" ? errorFromEvent(ready.value) : new ConnectionError("the watch ended before it was in place");
  }

  const listen = async (): Promise<void> => {
    for await (const event of events) {
      if (linked.signal.aborted) {
        return;
      }
      if (event.event === "error") {
        throw errorFromEvent(event);
      }
      if (event.event === "overflow") {
        await onEvent({ type: "overflow" });
      } else if (isChange(event.event)) {
        const { path, directory } = parseEvent<{ path: string; directory: boolean }>(event);
        await onEvent({ type: event.event, path, directory });
      }
    }
    throw new ConnectionError("the server ended the watch");
  };
  const finished = listen()
    .then(
      () => options.onExit?.(),
      (error: unknown) => options.onExit?.(stop.signal.aborted ? undefined : error),
    )
    // What the listener of the end throws has nobody to go to.
    .catch(() => undefined)
    .finally(() => linked.release());
  return new WatchHandle(() => stop.abort(new DOMException("stopped", "AbortError")), finished.then(() => undefined));
}

const CHANGES = ["created", "changed", "removed", "moved_from", "moved_to"] as const;

function isChange(name: string): name is (typeof CHANGES)[number] {
  return (CHANGES as readonly string[]).includes(name);
}
