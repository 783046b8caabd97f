// The binary messages of an attached process: one byte for the stream, eight for the offset (big-endian), then data.

import { SandboxError } from "./errors.js";

/** The streams of a process, by the first byte of a frame. */
const STREAMS = ["", "stdout", "stderr", "terminal"] as const;

/** A stream of a process. */
export type StreamName = "stdout" | "stderr" | "terminal";

/** A piece of output from an attached connection. */
export interface Frame {
  stream: StreamName;
  /** Offset of this piece in the stream, including bytes that were not kept. */
  offset: number;
  data: Uint8Array;
}

const HEADER_BYTES = 9;

/** Parses one binary message. */
export function decodeFrame(message: ArrayBuffer): Frame {
  if (message.byteLength < HEADER_BYTES) {
    throw new SandboxError(`received a message of ${message.byteLength} bytes over the attached connection, shorter than its header`, { code: "bad_frame" });
  }
  const view = new DataView(message);
  const stream = STREAMS[view.getUint8(0)];
  if (!stream) {
    throw new SandboxError(`received a message for the unknown stream ${view.getUint8(0)}; a newer version of this package may support it`, { code: "bad_frame" });
  }
  const offset = view.getBigUint64(1);
  if (offset > BigInt(Number.MAX_SAFE_INTEGER)) {
    throw new SandboxError(`a message has an offset that is too large: ${offset}`, { code: "bad_frame" });
  }
  return { stream, offset: Number(offset), data: new Uint8Array(message, HEADER_BYTES) };
}
