// Conversions between bytes and text, for all runtimes.

const encoder = new TextEncoder();

/** Decodes base64. Throws if it is invalid. */
export function fromBase64(text: string): Uint8Array {
  if (typeof Buffer !== "undefined") {
    // A copy, so that the shared pool of small Buffers is not exposed.
    return new Uint8Array(Buffer.from(text, "base64"));
  }
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) {
    bytes[index] = binary.charCodeAt(index);
  }
  return bytes;
}

/** Encodes bytes as base64. */
export function toBase64(bytes: Uint8Array): string {
  if (typeof Buffer !== "undefined") {
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  }
  let binary = "";
  for (let start = 0; start < bytes.length; start += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  }
  return btoa(binary);
}

/** Encodes a string as UTF-8. */
export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

/** Decodes UTF-8; invalid bytes become U+FFFD. */
export function text(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

/** Decodes UTF-8, or returns undefined if the bytes are none. */
export function wholeText(bytes: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { ignoreBOM: true, fatal: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

/** Concatenates byte arrays. */
export function concatenate(pieces: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let position = 0;
  for (const piece of pieces) {
    all.set(piece, position);
    position += piece.length;
  }
  return all;
}

/** Decodes a pair of `encoding` and `data` to bytes. */
export function decodeData(encoding: string, data: string): Uint8Array {
  return encoding === "base64" ? fromBase64(data) : utf8(data);
}

/** Streaming UTF-8 decoder; a character may be split between two pieces. */
export class TextPieces {
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  /** Returns the text that is complete with these bytes. */
  push(bytes: Uint8Array): string {
    return this.#decoder.decode(bytes, { stream: true });
  }

  /** Returns the rest at the end: U+FFFD for a truncated character, else nothing. */
  end(): string {
    return this.#decoder.decode();
  }
}
