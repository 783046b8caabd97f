// Cells of the run screen: code, and what it has shown.

import { ApiError, call, events, path, post, reason, type Schemas } from "./api";
import { session } from "./session.svelte";

/** Maximum number of characters of a stream that a cell keeps: the beginning and the end are shown. */
const MAX_KEPT = 200_000;
/** Maximum number of parts of the output, results among them, that a cell keeps. */
const MAX_PARTS = 200;

let made = 0;

export type Piece = { offset: number; data: string; encoding: string };

/** A part of a cell's output: what was written to a stream without a result in between, or a result. */
export type Part = { stream: "stdout" | "stderr"; text: string } | { result: Schemas["CodeResult"] };

export class Cell {
  /** Unique in the page. */
  id = (made += 1);
  code = $state("");
  language = $state("python");
  context = $state("");
  running = $state(false);
  waiting = $state<string | null>(null);
  /** In the order in which the code has shown them. */
  parts = $state.raw<Part[]>([]);
  error = $state.raw<Schemas["CodeError"] | null>(null);
  end = $state.raw<Schemas["CodeEnd"] | null>(null);
  refused = $state<string | null>(null);
  count = $state<number | null>(null);
  rebuilt = $state<string | null>(null);
  prompt = $state<{ text: string; password: boolean } | null>(null);
  execution = 0;
  /** The sandbox in which it runs or has run, and the context there once it has started. */
  sandbox = $state("");
  started = $state("");

  constructor(code = "", language = "python") {
    this.code = code;
    this.language = language;
  }

  clear() {
    this.parts = [];
    this.sandbox = this.started = "";
    this.error = this.end = this.refused = this.rebuilt = this.waiting = this.prompt = this.count = null;
  }

  /** Runs the code in a sandbox, and shows what it shows. */
  async run(sandbox: string, timeout: string) {
    this.clear();
    this.running = true;
    this.sandbox = sandbox;
    // An approval covers no later input.
    const waits = (session.me?.approval ?? "never") !== "never";
    const json: Schemas["CodeRequest"] = { code: this.code, allow_input: !waits, on_disconnect: "kill" };
    if (this.context) json.context = this.context;
    else json.language = this.language;
    if (timeout) json.timeout = timeout;
    try {
      for await (const { event, data } of events(path`/v1/sandboxes/${sandbox}/code`, { method: "POST", json })) {
        this.take(event, data);
      }
    } catch (error) {
      this.refused = reason(error);
      if (error instanceof ApiError && error.code === "sandbox_gone") throw error;
    } finally {
      this.running = false;
      this.waiting = this.prompt = null;
    }
  }

  take(event: string, data: unknown) {
    switch (event) {
      case "waiting":
        this.waiting = (data as { approval: string }).approval;
        break;
      case "started": {
        const started = data as { execution: number; count: number; rebuilt?: string; context: Schemas["Context"] };
        this.waiting = null;
        this.execution = started.execution;
        this.count = started.count || null;
        this.rebuilt = started.rebuilt || null;
        this.started = started.context.id;
        break;
      }
      case "stdout":
      case "stderr":
        this.parts = written(this.parts, event, textOf(data as Piece));
        break;
      case "result":
        this.parts = shown(this.parts, data as Schemas["CodeResult"]);
        break;
      case "input_requested": {
        const asked = data as { prompt: string; password: boolean };
        this.prompt = { text: asked.prompt, password: asked.password };
        break;
      }
      case "error": {
        const error = data as Schemas["CodeError"] & Schemas["Problem"];
        if (typeof error.traceback === "string") this.error = error;
        else this.refused = error.detail;
        break;
      }
      case "ended":
        this.end = data as Schemas["CodeEnd"];
        break;
    }
  }

  async answer(value: string) {
    this.prompt = null;
    const json = { execution: this.execution, value };
    await post(path`/v1/sandboxes/${this.sandbox}/contexts/${this.started}/answer`, json);
  }

  interrupt = () =>
    call(path`/v1/sandboxes/${this.sandbox}/contexts/${this.started || this.language}/interrupt`, { method: "POST" });

  restart = () => call(path`/v1/sandboxes/${this.sandbox}/contexts/${this.started}/restart`, { method: "POST" });
}

function textOf(piece: Piece): string {
  if (piece.encoding !== "base64") return piece.data;
  return new TextDecoder().decode(Uint8Array.from(atob(piece.data), (character) => character.charCodeAt(0)));
}

/** The text with the next part. Of long texts the middle goes. */
function kept(before: string, next: string): string {
  const whole = before + next;
  if (whole.length <= MAX_KEPT) return whole;
  const half = MAX_KEPT / 2;
  return `${whole.slice(0, half)}\n…\n${whole.slice(-half)}`;
}

/** The parts with more text. What follows text of the same stream continues it. */
function written(parts: Part[], stream: "stdout" | "stderr", text: string): Part[] {
  const last = parts.at(-1);
  if (last && "stream" in last && last.stream === stream) return [...parts.slice(0, -1), { stream, text: kept(last.text, text) }];
  return [...parts, { stream, text }].slice(-MAX_PARTS);
}

/** The parts with a result, which may take the place of one that is there. */
function shown(parts: Part[], next: Schemas["CodeResult"]): Part[] {
  if (next.update && next.display_id) {
    return parts.map((part) => ("result" in part && part.result.display_id === next.display_id ? { result: next } : part));
  }
  return [...parts, { result: next }].slice(-MAX_PARTS);
}
