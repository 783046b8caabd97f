// The output of a process, across broken connections.

import { concatenate, decodeData, text, TextPieces } from "./bytes.js";
import type { RequestOptions } from "./config.js";
import { ConnectionError, errorFromProblem, type Problem, SandboxError, ServerError, TimeoutError, UnavailableError } from "./errors.js";
import type { StreamName } from "./frames.js";
import { backOff } from "./retry.js";
import { sleep } from "./signal.js";
import type { ServerSentEvent } from "./sse.js";
import { type ApiRequest, route, type Transport } from "./transport.js";
import type { WireExited, WirePiece } from "./wire.js";

/** A piece of a process's output. */
export interface OutputChunk {
  /** The stream that it was written to. */
  stream: StreamName;
  /** Its offset in the stream, including bytes that were not kept. */
  offset: number;
  /** Its bytes. */
  data: Uint8Array;
}

/** Where to begin in each stream, in bytes. */
export interface OutputOffsets {
  /** In standard output. */
  stdout?: number;
  /** In standard error. */
  stderr?: number;
  /** In the output of its terminal. */
  terminal?: number;
}

/** Data from a process: output, and finally how it ended. */
export type OutputEvent = { kind: "output"; chunk: OutputChunk } | { kind: "exited"; exited: WireExited };

/** Reads a process's output from `offsets`, and resumes after a broken connection. `onOpen` is called each time the server responds. */
export async function* followOutput(
  transport: Transport,
  sandboxId: string,
  process: number,
  offsets: OutputOffsets,
  follow: boolean,
  options: RequestOptions,
  onOpen?: () => void,
): AsyncGenerator<OutputEvent, void, undefined> {
  const next: Required<OutputOffsets> = { stdout: offsets.stdout ?? 0, stderr: offsets.stderr ?? 0, terminal: offsets.terminal ?? 0 };
  let broken = 0;
  for (;;) {
    let problem: SandboxError;
    try {
      const request: ApiRequest = {
        method: "GET",
        path: route`/v1/sandboxes/${sandboxId}/processes/${process}/output`,
        query: { ...next, follow },
        options,
      };
      const events = transport.events(request, onOpen);
      for await (const event of events) {
        const read = readEvent(event);
        if (!read) {
          continue;
        }
        broken = 0;
        if (read.kind === "output") {
          next[read.chunk.stream] = read.chunk.offset + read.chunk.data.length;
        }
        yield read;
        if (read.kind === "exited") {
          return;
        }
      }
      if (!follow) {
        return;
      }
      problem = new ConnectionError("the stream of output ended before the process did");
    } catch (error) {
      if (!(error instanceof ConnectionError || error instanceof TimeoutError || error instanceof UnavailableError)) {
        throw error;
      }
      problem = error;
    }
    broken += 1;
    if (broken > transport.configuration.maxRetries) {
      throw problem;
    }
    await sleep(backOff(broken), options.signal);
  }
}

/** Parses an event of a stream; undefined for an unknown kind of a newer server. */
export function readEvent(event: ServerSentEvent): OutputEvent | undefined {
  switch (event.event) {
    case "stdout":
    case "stderr":
    case "terminal": {
      const piece = parseEvent<WirePiece>(event);
      return { kind: "output", chunk: { stream: event.event, offset: piece.offset, data: decodeData(piece.encoding, piece.data) } };
    }
    case "exited":
      return { kind: "exited", exited: parseEvent<WireExited>(event) };
    case "error":
      throw errorFromEvent(event);
    default:
      return undefined;
  }
}

/** Returns the error of an event `error` of a stream. */
export function errorFromEvent(event: ServerSentEvent): SandboxError {
  const problem = parseEvent<Problem>(event);
  return problem.status === undefined ? new ServerError(problem.detail ?? "the server ended the stream with an error", { code: problem.code }) : errorFromProblem(problem, problem.status);
}

/** Parses the JSON of an event. */
export function parseEvent<Data>(event: ServerSentEvent): Data {
  try {
    return JSON.parse(event.data) as Data;
  } catch (error) {
    throw new SandboxError(`an event ${event.event} of the server is not JSON`, { code: "bad_answer", cause: error });
  }
}

/** Called with the text of pieces of output. It may return a promise; the next piece then waits for it. */
export type OnText = (text: string) => unknown;

/** Passes on output as text, without splitting characters. */
export class TextOutput {
  readonly #stdout = new TextPieces();
  readonly #stderr = new TextPieces();
  readonly #onStdout: OnText | undefined;
  readonly #onStderr: OnText | undefined;

  constructor(onStdout?: OnText, onStderr?: OnText) {
    this.#onStdout = onStdout;
    this.#onStderr = onStderr;
  }

  /** Passes on a piece. Resolves when the listener has handled it. */
  async push(chunk: OutputChunk): Promise<void> {
    if (chunk.stream === "stderr") {
      await call(this.#onStderr, this.#stderr.push(chunk.data));
    } else {
      await call(this.#onStdout, this.#stdout.push(chunk.data));
    }
  }

  /** Passes on the rest. */
  async end(): Promise<void> {
    await call(this.#onStdout, this.#stdout.end());
    await call(this.#onStderr, this.#stderr.end());
  }
}

async function call(listener: OnText | undefined, piece: string): Promise<void> {
  if (piece !== "") {
    await listener?.(piece);
  }
}

/** Keeps the last bytes of a stream. */
export class Tail {
  readonly #limitBytes: number;
  #pieces: Uint8Array[] = [];
  #keptBytes = 0;
  /** Offset in the stream at which the kept part ends. */
  #end = 0;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  /** Adds a piece that begins at `offset` of the stream. */
  push(offset: number, data: Uint8Array): void {
    this.#pieces.push(data);
    this.#keptBytes += data.length;
    this.#end = offset + data.length;
    while (this.#keptBytes > this.#limitBytes) {
      const first = this.#pieces[0] as Uint8Array;
      const excess = this.#keptBytes - this.#limitBytes;
      if (first.length <= excess) {
        this.#pieces.shift();
        this.#keptBytes -= first.length;
      } else {
        this.#pieces[0] = first.slice(excess);
        this.#keptBytes -= excess;
      }
    }
  }

  /** Returns the kept bytes. */
  bytes(): Uint8Array {
    const all = concatenate(this.#pieces);
    // Joined once; the next call finds a single piece.
    this.#pieces = [all];
    return all;
  }

  /** Returns the kept bytes as text. */
  text(): string {
    return text(this.bytes());
  }

  /** Returns the number of bytes that are not kept. */
  omittedBytes(): number {
    return this.#end - this.#keptBytes;
  }
}

/** Keeps the first and the last bytes of a stream, half of the limit each. */
export class HeadAndTail {
  #headRoom: number;
  readonly #head: Uint8Array[] = [];
  #headBytes = 0;
  readonly #tail: Tail;
  /** Offset in the stream at which the kept part ends. */
  #end = 0;

  constructor(limitBytes: number) {
    this.#headRoom = Math.ceil(limitBytes / 2);
    this.#tail = new Tail(Math.floor(limitBytes / 2));
  }

  /** Adds a piece that begins at `offset` of the stream. */
  push(offset: number, data: Uint8Array): void {
    if (offset > this.#end) {
      // The server did not keep the bytes in between. These are the tail.
      this.#headRoom = this.#headBytes;
    }
    this.#end = offset + data.length;
    const first = data.subarray(0, this.#headRoom - this.#headBytes);
    if (first.length > 0) {
      this.#head.push(first);
      this.#headBytes += first.length;
    }
    if (first.length < data.length) {
      this.#tail.push(offset + first.length, data.subarray(first.length));
    }
  }

  /** Returns the kept bytes as text. */
  text(): string {
    return text(concatenate([...this.#head, this.#tail.bytes()]));
  }

  /** Reports whether some bytes are not kept. */
  isTruncated(): boolean {
    return this.#end > this.#headBytes + this.#tail.bytes().length;
  }
}
