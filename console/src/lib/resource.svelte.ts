// Something that is loaded, and loaded again when events say that it has changed.

import { untrack } from "svelte";
import { reason } from "./api";
import { follow } from "./live.svelte";
import { session } from "./session.svelte";

/** Shortest time from one load to the next, in milliseconds: many events are one change. */
const INTERVAL = 400;

export class Resource<T> {
  data = $state.raw<T | undefined>(undefined);
  error = $state<string | null>(null);
  loading = $state(true);
  #last = 0;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #turn = 0;

  constructor(private readonly load: () => Promise<T>) {}

  /** Loads now. An earlier load that ends later has no effect. */
  reload = async () => {
    this.#last = Date.now();
    this.#turn += 1;
    const turn = this.#turn;
    this.loading = true;
    try {
      const data = await this.load();
      if (turn !== this.#turn) return;
      this.data = data;
      this.error = null;
    } catch (error) {
      if (turn === this.#turn) this.error = reason(error);
    } finally {
      if (turn === this.#turn) this.loading = false;
    }
  };

  /** Loads soon, once for many calls. */
  soon = () => {
    if (this.#timer) return;
    const wait = Math.max(0, this.#last + INTERVAL - Date.now());
    this.#timer = setTimeout(() => {
      this.#timer = null;
      void this.reload();
    }, wait);
  };

  cancel = () => {
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    this.#turn += 1;
  };
}

/** Loads for as long as the component lives: now, when its inputs change, after events of these kinds, and when the server is back. */
export function resource<T>(load: () => Promise<T>, kinds: string[] = []): Resource<T> {
  const own = new Resource(load);
  $effect(() => {
    void session.visits;
    void own.reload();
    const end = untrack(() => follow(kinds, own.soon));
    return () => {
      end();
      own.cancel();
    };
  });
  return own;
}
