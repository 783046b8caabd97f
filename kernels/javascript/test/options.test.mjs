// The options of NODE_OPTIONS: a kernel starts with each one that node itself starts with.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, describe, test } from "node:test";
import { Kernel } from "./driver.mjs";

const node = process.env.KERNEL_NODE ?? process.execPath;
const home = fs.mkdtempSync(path.join(os.tmpdir(), "options-"));

// They wait for a debugger, deny what every kernel needs, or end the process at each error.
const EXCEPT = /^--(inspect|debug|permission|experimental-permission|abort-on-uncaught-exception)/;
const MORE = ["--no-warnings --throw-deprecation", "--max-old-space-size=200", "--unhandled-rejections=strict", "--disable-proto=delete"];
const CELL = "const a = await Promise.resolve(20); import os from 'node:os'; [a * 2 + 2, typeof require('fs').statSync, typeof os.cpus]";

/** Reports whether node runs a program, and a thread, with these options. */
function works(options) {
  const program = "import { Worker } from 'node:worker_threads'; new Worker('', { eval: true, execArgv: [], env: {} })";
  const env = { PATH: process.env.PATH, NODE_OPTIONS: options };
  return spawnSync(node, ["--input-type=module"], { cwd: home, env, input: program, timeout: 20_000 }).status === 0;
}

describe("options", { concurrency: 4 }, () => {
  let usable = 0;
  after(() => {
    fs.rmSync(home, { recursive: true, force: true });
    // The others need a value.
    assert.ok(usable > 60, `only ${usable} options were tried`);
  });

  const named = [...process.allowedNodeEnvironmentFlags].filter((name) => name.startsWith("--") && !EXCEPT.test(name));
  for (const options of new Set([...named, "--no-deprecation", ...MORE])) {
    test(options, async () => {
      const kernel = await Kernel.start({ home, env: { NODE_OPTIONS: options }, node, allowFailure: true });
      try {
        if (kernel.ready.op !== "ready" && options !== "--no-deprecation" && !works(options)) return;
        assert.equal(kernel.ready.op, "ready", kernel.stderr);
        usable += 1;
        const got = await kernel.run(CELL);
        assert.deepEqual(got.json, [42, "function", "function"], got.error?.traceback);
        assert.equal((await kernel.run("throw new TypeError('mine')")).error.value, "mine");
        assert.equal((await kernel.run("a")).text, "20");
      } finally {
        await kernel.stop();
      }
    });
  }
});
