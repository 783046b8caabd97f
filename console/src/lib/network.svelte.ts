// What a network policy would reach: the server is asked, and decides.

import { ApiError, post, reason } from "./api";
import type { Forecast, Network } from "./network";

/** Time without another keystroke after which the server is asked, in milliseconds. */
const PAUSE = 250;

/** A question that is asked again when it changes, after a pause. */
export class Question {
  answer = $state.raw<Forecast | null>(null);
  error = $state<string | null>(null);
  busy = $state(false);
  #timer: ReturnType<typeof setTimeout> | null = null;
  #turn = 0;

  /** Asks; nothing is asked, and nothing known, if there is no question. */
  ask(body: { network?: Network | undefined; sandbox?: string | undefined; hosts: string[] } | null) {
    if (this.#timer) clearTimeout(this.#timer);
    this.#turn += 1;
    const turn = this.#turn;
    if (!body) {
      this.answer = this.error = null;
      this.busy = false;
      return;
    }
    this.busy = true;
    this.#timer = setTimeout(() => {
      post<Forecast>("/v1/network/check", body).then(
        (answer) => this.#end(turn, answer, null),
        (error) => this.#end(turn, null, error instanceof ApiError && error.field === "hosts" ? error.message.replace(/^hosts: /, "") : reason(error)),
      );
    }, PAUSE);
  }

  #end(turn: number, answer: Forecast | null, error: string | null) {
    if (turn !== this.#turn) return;
    this.answer = answer;
    this.error = error;
    this.busy = false;
  }
}
