// Frames over the control socket: 4 bytes of length, then JSON.

import fs from "node:fs";
import net from "node:net";
import { JSON } from "./own.mjs";

const MAX_FRAME = 32 * 1024 * 1024;
const pause = new Int32Array(new SharedArrayBuffer(4));

/** Writes all of a buffer, however long that takes; returns false if it cannot be. */
function writeWhole(fd, data) {
  let written = 0;
  while (written < data.length) {
    try {
      written += fs.writeSync(fd, data, written);
    } catch (error) {
      if (error.code === "EAGAIN") Atomics.wait(pause, 0, 0, 1);
      else if (error.code !== "EINTR") return false;
    }
  }
  return true;
}

/** Returns what tells an open file from others; undefined for a closed one. */
function identify(fd) {
  try {
    const { dev, ino } = fs.fstatSync(fd);
    return `${dev}:${ino}`;
  } catch {
    return undefined;
  }
}

/** The control socket. Writes are synchronous; reads are events, or synchronous while code waits. */
export class Wire {
  #fd;
  #chunks = Buffer.alloc(0);
  #marks = 0;
  #pipes = [1, 2].map((fd) => [fd, identify(fd)]);
  #onFrame;
  #onEnd;

  constructor(fd, onFrame, onEnd) {
    this.#fd = fd;
    this.#onFrame = onFrame;
    this.#onEnd = onEnd;
    const socket = new net.Socket({ fd, readable: true, writable: false });
    socket.on("data", (chunk) => this.#received(chunk));
    socket.on("end", onEnd);
    socket.on("error", onEnd);
    socket.on("close", onEnd);
  }

  /** Sends a frame of encoded JSON. */
  send(json) {
    const body = Buffer.from(json, "utf8");
    const frame = Buffer.allocUnsafe(4 + body.length);
    frame.writeUInt32BE(body.length, 0);
    body.copy(frame, 4);
    if (!writeWhole(this.#fd, frame)) this.#onEnd();
  }

  /** Sends a frame of encoded JSON, and before it its mark to the pipes of the guest, wherever the code's output goes. */
  sendMarked(json, token) {
    this.#marks = (this.#marks + 1) >>> 0;
    const mark = Buffer.from(`\x1e${token}${this.#marks.toString(16).padStart(8, "0")}`);
    for (const [fd, identity] of this.#pipes) {
      if (identify(fd) === identity) writeWhole(fd, mark);
    }
    this.send(`${json.slice(0, -1)},"mark":${this.#marks}}`);
  }

  /** Waits synchronously until frames have arrived, which are then handled as usual. */
  waitInPlace() {
    const chunk = Buffer.allocUnsafe(65536);
    for (;;) {
      let count;
      try {
        count = fs.readSync(this.#fd, chunk, 0, chunk.length, null);
      } catch (error) {
        if (error.code !== "EAGAIN" && error.code !== "EINTR") return this.#onEnd();
        Atomics.wait(pause, 0, 0, 2);
        continue;
      }
      if (count === 0) return this.#onEnd();
      this.#received(Buffer.from(chunk.subarray(0, count)));
      return undefined;
    }
  }

  #received(chunk) {
    this.#chunks = this.#chunks.length === 0 ? chunk : Buffer.concat([this.#chunks, chunk]);
    while (this.#chunks.length >= 4) {
      const length = this.#chunks.readUInt32BE(0);
      if (length > MAX_FRAME) return this.#onEnd();
      if (this.#chunks.length < 4 + length) return undefined;
      const body = this.#chunks.toString("utf8", 4, 4 + length);
      this.#chunks = this.#chunks.subarray(4 + length);
      let frame;
      try {
        frame = JSON.parse(body);
      } catch {
        return this.#onEnd();
      }
      this.#onFrame(frame);
    }
    return undefined;
  }
}
