import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { decodeFrame } from "../src/frames.js";
import { SandboxError } from "../src/errors.js";
import { frame } from "./double.js";

function arrayBuffer(buffer: Buffer): ArrayBuffer {
  return new Uint8Array(buffer).buffer;
}

test("frames come out as they went in", () => {
  const names = ["", "stdout", "stderr", "terminal"];
  fc.assert(
    fc.property(fc.constantFrom(1, 2, 3), fc.maxSafeNat(), fc.uint8Array(), (stream, offset, data) => {
      assert.deepEqual(decodeFrame(arrayBuffer(frame(stream as 1 | 2 | 3, offset, data))), { stream: names[stream], offset, data });
    }),
  );
});

test("what is no frame is refused", () => {
  const tooFar = Buffer.concat([Buffer.from([1]), Buffer.alloc(8, 0xff)]);
  for (const wrong of [Buffer.alloc(0), Buffer.alloc(8, 1), Buffer.alloc(9), Buffer.concat([Buffer.from([4]), Buffer.alloc(8)]), tooFar]) {
    assert.throws(() => decodeFrame(arrayBuffer(wrong)), (error) => error instanceof SandboxError && error.code === "bad_frame");
  }
});

test("any bytes are a frame or are refused", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 32 }), (bytes) => {
      try {
        decodeFrame(arrayBuffer(Buffer.from(bytes)));
      } catch (error) {
        assert.ok(error instanceof SandboxError);
      }
    }),
  );
});
