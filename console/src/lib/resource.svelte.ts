// Something that is loaded, and loaded again when events say that it has changed.

import { untrack } from "svelte";
import { reason } from "./api";
import { follow } from "./live.svelte";
import { session } from "./session.svelte";

/** Shortest time from one load to the next, in milliseconds: many events are one change. */
const INTERVAL = 400;
/** Rest after a load, in multiples of the time that it took. */
const REST = 10;
/** Longest rest, in milliseconds. */
const MAX_REST = 3000;

export class Resource<T> {
  data = $state.raw<T | undefined>(undefined);
  error = $state<string | null>(null);
  loading = $state(true);
  #next = 0;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #turn = 0;
  #busy = false;
  #again = false;

  constructor(private readonly load: () => Promise<T>) {}

  /** Loads now. An earlier load that ends later has no effect. */
  reload = async () => {
    const began = Date.now();
    this.#turn += 1;
    const turn = this.#turn;
    this.loading = this.#busy = true;
    this.#again = false;
    try {
      const data = await this.load();
      if (turn !== this.#turn) return;
      this.data = data;
      this.error = null;
    } catch (error) {
      if (turn === this.#turn) this.error = reason(error);
    } finally {
      if (turn === this.#turn) {
        this.loading = this.#busy = false;
        const ended = Date.now();
        this.#next = Math.max(began + INTERVAL, ended + Math.min(REST * (ended - began), MAX_REST));
        if (this.#again) this.soon();
      }
    }
  };

  /** Loads soon, once for many calls. A load that goes on is not given up for it. */
  soon = () => {
    if (this.#timer) return;
    if (this.#busy) {
      this.#again = true;
      return;
    }
    const wait = Math.max(0, this.#next - Date.now());
    this.#timer = setTimeout(() => {
      this.#timer = null;
      void this.reload();
    }, wait);
  };

  cancel = () => {
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    this.#turn += 1;
    this.#busy = this.#again = false;
  };
}

/**
 * Loads for as long as the component lives: now, when its inputs change, after events of these kinds, of all sandboxes or of one, and when the
 * server is back.
 */
export function resource<T>(load: () => Promise<T>, kinds: string[] = [], sandbox?: string): Resource<T> {
  const own = new Resource(load);
  $effect(() => {
    void session.visits;
    void own.reload();
    const end = untrack(() => follow(kinds, own.soon, sandbox));
    return () => {
      end();
      own.cancel();
    };
  });
  return own;
}
