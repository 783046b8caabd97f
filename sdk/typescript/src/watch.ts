import "./dispose.js";
import { ofRequest, type RequestOptions } from "./config.js";
import { ConnectionError } from "./errors.js";
import { names } from "./options.js";
import { errorFromEvent, parseEvent } from "./output.js";
import { linkSignals } from "./signal.js";
import type { ApiRequest, Transport } from "./transport.js";

/** An event in a watched directory. */
export type WatchEvent =
  | {
      type: "created" | "changed" | "removed" | "moved_from" | "moved_to";
      /** Relative to the watched directory. */
      path: string;
      /** Whether it is a directory. */
      directory: boolean;
    }
  | {
      /** Events were lost. List the directory again. */
      type: "overflow";
    };

/** Called with each event. If it returns a promise, reading waits for it. */
export type OnWatchEvent = (event: WatchEvent) => unknown;

/** Options of a watch. */
export interface WatchOptions extends RequestOptions {
  /** Whether subdirectories are watched too; default: no. */
  recursive?: boolean;
  /** Called once when the watch ends, with an error unless it was stopped. */
  onExit?: (error?: unknown) => unknown;
}

/** The names of the options of a watch. */
export const WATCH_OPTIONS = names<Omit<WatchOptions, keyof RequestOptions>>({ recursive: true, onExit: true });

/** An active watch. */
export class WatchHandle {
  readonly #stop: () => void;
  readonly #finished: Promise<void>;

  /** @internal */
  constructor(stop: () => void, finished: Promise<void>) {
    this.#stop = stop;
    this.#finished = finished;
  }

  /** Ends the watch. No events follow once it has resolved. Do not await it in the listener itself. */
  async stop(): Promise<void> {
    this.#stop();
    await this.#finished;
  }

  /** Ends the watch. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}

/** Starts a watch, and resolves when the server reports that it is active. */
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
    // An error of the end listener is ignored.
    .catch(() => undefined)
    .finally(() => linked.release());
  return new WatchHandle(() => stop.abort(new DOMException("stopped", "AbortError")), finished.then(() => undefined));
}

const CHANGES = ["created", "changed", "removed", "moved_from", "moved_to"] as const;

function isChange(name: string): name is (typeof CHANGES)[number] {
  return (CHANGES as readonly string[]).includes(name);
}
