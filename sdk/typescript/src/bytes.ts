// Bytes and text, on any runtime.

const encoder = new TextEncoder();

/** The bytes of base64 text. Throws if it is none. */
export function fromBase64(text: string): Uint8Array {
  if (typeof Buffer !== "undefined") {
    // A copy of its own, so that nobody sees the pool that small Buffers are cut from.
    return new Uint8Array(Buffer.from(text, "base64"));
  }
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) {
    bytes[index] = binary.charCodeAt(index);
  }
  return bytes;
}

/** Base64 text of bytes. */
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

/** Text as UTF-8. */
export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

/** Text of bytes; what is no UTF-8 becomes U+FFFD. */
export function text(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

/** Pieces, joined. */
export function concatenate(pieces: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let position = 0;
  for (const piece of pieces) {
    all.set(piece, position);
    position += piece.length;
  }
  return all;
}

/** The bytes that a pair of `encoding` and `data` stands for. */
export function decodeData(encoding: string, data: string): Uint8Array {
  return encoding === "base64" ? fromBase64(data) : utf8(data);
}

/** A stream of bytes that become text; a character may be split anywhere between two pieces. */
export class TextPieces {
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  /** The text that is complete with these bytes. */
  push(bytes: Uint8Array): string {
    return this.#decoder.decode(bytes, { stream: true });
  }

  /** What is left at the end: U+FFFD for a character that was cut off, else nothing. */
  end(): string {
    return this.#decoder.decode();
  }
}
