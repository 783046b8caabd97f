// The server's events: one stream for the whole page, which goes on where it broke off.

import { ApiError, events } from "./api";

export type LiveEvent = { id: string; at: string; kind: string; tenant: string; sandbox?: string; process?: number; detail?: string };
type Follower = { kinds: string[]; sandbox: string | undefined; act: (event: LiveEvent) => void };

const followers = new Set<Follower>();
let abort: AbortController | null = null;

export const live = $state<{ connected: boolean }>({ connected: false });

/** Calls a function for each event of these kinds, or of those that begin with them, of all sandboxes or of one. Returns how to end that. */
export function follow(kinds: string[], act: (event: LiveEvent) => void, sandbox?: string): () => void {
  const follower = { kinds, sandbox, act };
  followers.add(follower);
  return () => followers.delete(follower);
}

/** Begins to read events. `since` lost ones, everything is to be loaded anew. */
export function start(missed: () => void) {
  stop();
  const own = new AbortController();
  abort = own;
  void read(own.signal, missed);
}

export function stop() {
  abort?.abort();
  abort = null;
  live.connected = false;
}

async function read(signal: AbortSignal, missed: () => void) {
  let last = "";
  let isFirst = true;
  let pause = 500;
  while (!signal.aborted) {
    try {
      const headers: Record<string, string> = last ? { "last-event-id": last } : {};
      const opened = () => {
        live.connected = true;
        pause = 500;
        // Without the id of an event, the stream does not go on where it broke off.
        if (!isFirst && !last) missed();
      };
      for await (const { event, id, data } of events("/v1/events", { headers, signal }, opened)) {
        if (id) last = id;
        if (event === "missed") missed();
        else dispatch(data as LiveEvent);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status === 401) return;
    }
    live.connected = false;
    isFirst = false;
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, 10_000);
  }
}

function dispatch(event: LiveEvent) {
  for (const { kinds, sandbox, act } of followers) {
    if (sandbox !== undefined && event.sandbox !== sandbox) continue;
    if (kinds.some((kind) => event.kind === kind || event.kind.startsWith(`${kind}.`))) act(event);
  }
}
