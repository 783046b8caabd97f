import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { EventParser, type ServerSentEvent } from "../src/sse.js";

function parse(...pieces: string[]): ServerSentEvent[] {
  const parser = new EventParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

test("events are read", () => {
  const cases: [string, ServerSentEvent[]][] = [
    ["", []],
    ["data: a\n\n", [{ event: "message", data: "a" }]],
    ["event: x\ndata: a\n\n", [{ event: "x", data: "a" }]],
    ["event: x\r\ndata: a\r\n\r\n", [{ event: "x", data: "a" }]],
    ["event: x\rdata: a\r\r", [{ event: "x", data: "a" }]],
    ["data: a\ndata: b\n\n", [{ event: "message", data: "a\nb" }]],
    ["data:a\n\n", [{ event: "message", data: "a" }]],
    ["data:  a\n\n", [{ event: "message", data: " a" }]],
    ["data\n\n", [{ event: "message", data: "" }]],
    [": a comment\n\ndata: a\n\n", [{ event: "message", data: "a" }]],
    [":\n:\n\n", []],
    // A name without data is no event, and is not kept for the next one.
    ["event: x\n\ndata: a\n\n", [{ event: "message", data: "a" }]],
    ["id: 7\nretry: 5\nunknown: z\ndata: a\n\n", [{ event: "message", data: "a" }]],
    ["\ufeffdata: a\n\n", [{ event: "message", data: "a" }]],
    // The last one is not complete.
    ["data: a\n\ndata: b\n", [{ event: "message", data: "a" }]],
    ["data: a\n\n\n\ndata: b\n\n", [{ event: "message", data: "a" }, { event: "message", data: "b" }]],
  ];
  for (const [text, expected] of cases) {
    assert.deepEqual(parse(text), expected, JSON.stringify(text));
  }
});

test("it does not matter where the text is cut", () => {
  const line = fc.constantFrom("data: a", "data: héllo 🔔", "data:", "data", "event: x", "event:y", ": comment", "id: 1", "", "", "odd");
  const end = fc.constantFrom("\n", "\r\n", "\r");
  const stream = fc.array(fc.tuple(line, end)).map((lines) => lines.map(([text, stop]) => text + stop).join(""));
  fc.assert(
    fc.property(stream, fc.array(fc.nat()), (text, cuts) => {
      // "\r" at the end of the whole may be the first half of "\r\n": both give the same events.
      const places = [...new Set(cuts.map((cut) => cut % (text.length + 1)))].sort((a, b) => a - b);
      const pieces = [0, ...places].map((start, index) => text.slice(start, places[index] ?? text.length));
      assert.equal(pieces.join(""), text);
      assert.deepEqual(parse(...pieces), parse(text));
    }),
    { numRuns: 2000 },
  );
});

test("what is sent comes back, cut into single characters", () => {
  fc.assert(
    fc.property(fc.array(fc.record({ event: fc.stringMatching(/^[a-z]{1,9}$/), value: fc.json() })), (sent) => {
      const text = sent.map(({ event, value }) => `event: ${event}\ndata: ${value}\n\n`).join("");
      assert.deepEqual(
        parse(...text),
        sent.map(({ event, value }) => ({ event, data: value })),
      );
    }),
  );
});

test("a long line in many pieces takes no quadratic time", () => {
  const parser = new EventParser();
  const piece = "x".repeat(1024);
  const begin = performance.now();
  parser.push("data: ");
  for (let count = 0; count < 32 * 1024; count++) {
    parser.push(piece);
  }
  const [event] = parser.push("\n\n");
  assert.equal(event?.data.length, 32 * 1024 * 1024);
  assert.ok(performance.now() - begin < 5_000, "took more than 5 s");
});
