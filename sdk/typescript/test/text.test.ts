import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { fromBase64, TextPieces, toBase64 } from "../src/bytes.js";
import { isPlainRelative, relativeTo } from "../src/local-files.js";
import { Tail } from "../src/output.js";

test("text comes out whole, wherever its bytes are cut", () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom("a", "é", "€", "🔔", "\ufeff", "\n") }), fc.array(fc.nat()), (text, cuts) => {
      const bytes = new TextEncoder().encode(text);
      const places = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
      const pieces = new TextPieces();
      const parts = [0, ...places].map((start, index) => pieces.push(bytes.slice(start, places[index] ?? bytes.length)));
      assert.equal(parts.join("") + pieces.end(), new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes));
    }),
  );
});

test("base64 there and back, with and without Buffer", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 100_000, size: "large" }), (bytes) => {
      const expected = Buffer.from(bytes).toString("base64");
      assert.equal(toBase64(bytes), expected);
      assert.deepEqual(fromBase64(expected), bytes);
      const kept = globalThis.Buffer;
      try {
        // As it is where there is no Buffer.
        (globalThis as { Buffer?: unknown }).Buffer = undefined;
        assert.equal(toBase64(bytes), expected);
        assert.deepEqual(fromBase64(expected), bytes);
      } finally {
        globalThis.Buffer = kept;
      }
    }),
    { numRuns: 50 },
  );
});

test("a tail keeps the last bytes and counts the rest", () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 20 })), fc.integer({ min: 1, max: 30 }), (pieces, limit) => {
      const tail = new Tail(limit);
      let offset = 0;
      for (const piece of pieces) {
        tail.push(offset, piece);
        offset += piece.length;
      }
      const all = Buffer.concat(pieces);
      assert.deepEqual(Buffer.from(tail.bytes()), all.subarray(Math.max(0, all.length - limit)));
      assert.equal(tail.omittedBytes() + tail.bytes().length, all.length);
    }),
  );
});

test("paths from inside must stay below where they are written", () => {
  for (const good of ["a", "a/b", "a b/ü", "..a/b..", "...", ".a"]) {
    assert.ok(isPlainRelative(good), good);
  }
  for (const bad of ["", "/", "/a", "..", "a/..", "../a", "a/../b", "./a", "a//b", "a/", "a\\b", "C:a", "a\0b"]) {
    assert.ok(!isPlainRelative(bad), bad);
  }
});

test("entries are told relative to what was listed", () => {
  for (const [directory, entry, expected] of [["/home/user", "/home/user/a/b", "a/b"], ["data/", "data/a", "a"], ["data", "a", "a"], [".", "a", "a"], ["/", "/a", "a"]] as const) {
    assert.equal(relativeTo(directory, entry), expected);
  }
});
