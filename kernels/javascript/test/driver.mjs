// Simulates the guest: starts a kernel and talks to it over the control socket.

import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const KERNEL = fileURLToPath(new URL("../kernel.mjs", import.meta.url));
const DEADLINE = 20_000;

const homes = [];
process.on("exit", () => homes.forEach((home) => fs.rmSync(home, { recursive: true, force: true })));

/** A temporary home directory for these tests. */
function newHome() {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), "kernel-js-"));
  homes.push(home);
  return home;
}

export class Kernel {
  static async start({ language = "javascript", env = {}, home, allowFailure = false, node } = {}) {
    const kernel = new Kernel();
    kernel.home = home ?? newHome();
    const program = fs.openSync(KERNEL, "r");
    kernel.child = spawn(node ?? process.env.KERNEL_NODE ?? process.execPath, ["--input-type=module"], {
      cwd: kernel.home,
      env: { PATH: process.env.PATH, HOME: kernel.home, BELLJAR_KERNEL_FD: "9", BELLJAR_KERNEL_LANGUAGE: language, ...env },
      stdio: [program, "pipe", "pipe", "ignore", "ignore", "ignore", "ignore", "ignore", "ignore", "pipe"],
    });
    fs.closeSync(program);
    kernel.frames = [];
    kernel.stdout = "";
    kernel.stderr = "";
    kernel.turn = 0;
    kernel.waiting = new Set();
    kernel.nextId = 0;
    let buffer = Buffer.alloc(0);
    kernel.control = kernel.child.stdio[9];
    kernel.control.on("error", () => {});
    kernel.control.on("data", (chunk) => {
      buffer = Buffer.concat([buffer, chunk]);
      while (buffer.length >= 4 && buffer.length >= 4 + buffer.readUInt32BE(0)) {
        const length = buffer.readUInt32BE(0);
        kernel.frames.push({ size: length, ...JSON.parse(buffer.toString("utf8", 4, 4 + length)) });
        buffer = buffer.subarray(4 + length);
      }
      kernel.wake();
    });
    for (const name of ["stdout", "stderr"]) {
      kernel.child[name].setEncoding("utf8");
      kernel.child[name].on("data", (text) => {
        kernel[name] += text;
        kernel.turn += 1;
        kernel.wake();
      });
    }
    kernel.ended = new Promise((resolve) => {
      kernel.child.on("exit", (code, signal) => {
        kernel.exit = { code, signal };
        kernel.wake();
        resolve(kernel.exit);
      });
    });
    kernel.ready = await kernel.until(() => kernel.frames.shift() ?? (kernel.exit ? { op: "gone", ...kernel.exit } : undefined), "ready");
    if (kernel.ready.op !== "ready" && !allowFailure) throw new Error(JSON.stringify(kernel.ready));
    return kernel;
  }

  wake() {
    for (const one of [...this.waiting]) one();
  }

  /** Waits until `look` returns a value. */
  until(look, what) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.waiting.delete(check);
        reject(new Error(`no ${what} in time; standard error: ${this.stderr}; frames: ${JSON.stringify(this.frames).slice(0, 2000)}`));
      }, DEADLINE);
      const check = () => {
        const found = look();
        if (found === undefined || found === false) return;
        clearTimeout(timer);
        this.waiting.delete(check);
        resolve(found);
      };
      this.waiting.add(check);
      check();
    });
  }

  send(frame) {
    const body = Buffer.from(JSON.stringify(frame));
    const head = Buffer.alloc(4);
    head.writeUInt32BE(body.length);
    this.control.write(Buffer.concat([head, body]));
  }

  /** Sends code, without waiting for its end. */
  begin(code, more = {}) {
    this.nextId += 1;
    this.stdout = "";
    this.stderr = "";
    this.send({ op: "execute", id: this.nextId, code, ...more });
    return this.nextId;
  }

  /** Waits for the end of the execution, and returns its whole outcome. */
  async end({ onInput, onTool } = {}) {
    const out = { results: [], inputs: [] };
    for (;;) {
      const frame = await this.until(() => this.frames.shift() ?? (this.exit ? { op: "gone" } : undefined), "frame");
      if (frame.op === "started") out.count = frame.count;
      else if (frame.op === "result") out.results.push(frame);
      else if (frame.op === "error") out.error = frame;
      else if (frame.op === "tool") {
        this.send({ op: "tool", id: frame.id, call: frame.call, ...onTool?.(frame) });
      } else if (frame.op === "input") {
        out.inputs.push(frame);
        onInput?.(frame);
      } else {
        out.status = frame.status;
        out.exiting = frame.exiting;
        out.gone = frame.op === "gone";
        break;
      }
    }
    // Output printed before the end is already in the pipes: read until they are empty.
    for (let quiet = 0, seen = this.turn; quiet < 3; ) {
      await new Promise((resolve) => setImmediate(resolve));
      if (seen === this.turn) quiet += 1;
      else quiet = 0;
      seen = this.turn;
    }
    out.stdout = this.stdout;
    out.stderr = this.stderr;
    const main = out.results.find((one) => one.main);
    out.text = main?.data["text/plain"];
    out.json = main?.data["application/json"];
    return out;
  }

  async run(code, more = {}, hooks = {}) {
    this.begin(code, more);
    return this.end(hooks);
  }

  interrupt() {
    this.child.kill("SIGINT");
  }

  async stop() {
    this.control.destroy();
    if (!this.exit) this.child.kill("SIGKILL");
    await this.ended;
  }
}
