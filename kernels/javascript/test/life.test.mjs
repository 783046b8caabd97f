// Interrupts, questions, environment, the end of a kernel.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import vm from "node:vm";
import { Kernel } from "./driver.mjs";

describe("life", () => {
  test("globals that code replaces are not the kernel's", async () => {
    const kernel = await Kernel.start();
    for (const code of ["JSON.stringify = () => { throw 1 }", "JSON.parse = () => { throw 1 }", "globalThis.JSON = undefined"]) {
      assert.equal((await kernel.run(`${code}; 5`)).text, "5");
    }
    assert.equal((await kernel.run("'after'")).text, "'after'");
    await kernel.stop();
  });

  let kernel;
  before(async () => {
    kernel = await Kernel.start();
  });
  after(() => kernel.stop());

  const LOOPS = {
    "a busy loop": "console.log('runs'); while (true) {}",
    "a busy loop after an await": "await null; console.log('runs'); while (true) {}",
    "a busy loop in a timer": "setTimeout(() => { console.log('runs'); for (;;) {} }, 1); await new Promise(() => {})",
    "a promise that is never done": "console.log('runs'); await new Promise(() => {})",
    "a loop that catches everything": "console.log('runs'); for (;;) { try { while (true) {} } catch {} finally { for (;;) {} } }",
    "a loop in a regular expression": "console.log('runs'); /^(a+)+$/.test('a'.repeat(60) + 'b')",
    "a wait for a thread": "console.log('runs'); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
    "microtasks without end": "console.log('runs'); const again = () => Promise.resolve().then(again); await again()",
  };
  for (const [name, code] of Object.entries(LOOPS)) {
    test(`an interrupt stops ${name}, and variables stay`, async () => {
      await kernel.run("const before = 42");
      kernel.begin(code);
      await kernel.until(() => kernel.stdout.includes("runs"), "output");
      kernel.interrupt();
      const got = await kernel.end();
      assert.equal(got.status, "interrupted");
      assert.equal(got.error.name, "Interrupted");
      assert.equal((await kernel.run("before")).text, "42");
    });
  }

  test("an interrupted cell does not go on at its next await", async () => {
    kernel.begin("let ticks = 0; async function tick() { for (;;) { await new Promise(r => setTimeout(r, 1)); ticks += 1; console.log('t') } }\nawait tick()");
    await kernel.until(() => kernel.stdout.includes("t"), "output");
    kernel.interrupt();
    assert.equal((await kernel.end()).status, "interrupted");
    const got = await kernel.run("await new Promise(r => setTimeout(r, 20)); const seen = ticks; await new Promise(r => setTimeout(r, 60)); ticks - seen");
    assert.equal(got.text, "0");
    assert.equal((await kernel.run("async function f() { await null; return 'again' }\nawait f()")).text, "'again'");
  });

  test("interrupts between executions do not hurt", async () => {
    await kernel.run("const held = 3");
    for (let round = 0; round < 8; round += 1) kernel.interrupt();
    // The signals are in flight when the next execution begins, and may still reach it.
    let got;
    for (let round = 0; round < 8 && got?.status !== "ok"; round += 1) got = await kernel.run("held");
    assert.equal(got.text, "3");
  });

  test("many interrupts at once are one", async () => {
    for (let round = 0; round < 10; round += 1) {
      kernel.begin("console.log('runs'); while (true) {}");
      await kernel.until(() => kernel.stdout.includes("runs"), "output");
      for (let signal = 0; signal < 5; signal += 1) kernel.interrupt();
      assert.equal((await kernel.end()).status, "interrupted");
    }
    let got;
    for (let round = 0; round < 8 && got?.status !== "ok"; round += 1) got = await kernel.run("'whole'");
    assert.equal(got.text, "'whole'");
  });

  test("a listener of the code's own does not take interrupts over", async () => {
    await kernel.run("process.on('SIGINT', () => {})");
    kernel.begin("console.log('runs'); while (true) {}");
    await kernel.until(() => kernel.stdout.includes("runs"), "output");
    kernel.interrupt();
    assert.equal((await kernel.end()).status, "interrupted");
  });

  test("tools are called", async () => {
    const answers = { f: ({ x }) => ({ result: { y: x + 1 } }), g: () => ({ error: "no such city" }) };
    const onTool = (frame) => answers[frame.name](frame.arguments);
    const code = "const all = await Promise.all([belljar.tools.f({ x: 1 }), belljar.tools.g().catch((error) => error instanceof belljar.ToolError && error.message)]); [all, Object.keys(belljar.tools)]";
    kernel.begin(code, { tools: ["f", "g"] });
    assert.deepEqual((await kernel.end({ onTool })).json, [[{ y: 2 }, "no such city"], ["f", "g"]]);
    const failed = async (text, more) => {
      kernel.begin(text, more);
      return (await kernel.end({ onTool })).error;
    };
    assert.equal((await failed("await belljar.tools.g()", { tools: ["g"] })).name, "ToolError");
    assert.equal((await failed("await belljar.tools.f([1])", { tools: ["f"] })).value, "f() takes its arguments by name, in an object");
    assert.match((await failed("await belljar.tools.f({ x: 'y'.repeat(300000) })", { tools: ["f"] })).value, /300008 bytes as JSON/);
    const none = await failed("belljar.tools.f()", {});
    assert.deepEqual([none.name, none.value], ["TypeError", "this execution may call no tools"]);
    assert.equal((await failed("belljar.tools.nosuch({})", { tools: ["f", "g"] })).value, 'this execution may not call "nosuch", but f, g');
    // As the last line, a call need not be awaited.
    kernel.begin("belljar.tools.f({ x: 2 })", { tools: ["f"] });
    assert.deepEqual((await kernel.end({ onTool })).json, { y: 3 });
    assert.equal((await failed("belljar.tools.g()", { tools: ["g"] })).value, "no such city");
    // Looking at them is no call.
    kernel.begin("[JSON.stringify(belljar.tools), 'f' in belljar.tools, 'x' in belljar.tools, String(belljar.tools), await belljar.tools === belljar.tools]", { tools: ["f"] });
    assert.deepEqual((await kernel.end()).json, ["{}", true, false, "[object Object]", true]);
    // One that is kept calls nothing in a later execution.
    kernel.begin("globalThis.kept = belljar.tools.f; 1", { tools: ["f"] });
    await kernel.end();
    assert.match((await failed("await kept({})", { tools: ["f"] })).value, /has ended/);
  });

  test("calls that are made together say so, and 16 wait at a time", async () => {
    const next = () => kernel.until(() => kernel.frames.shift(), "frame");
    const answer = (one) => kernel.send({ op: "tool", id: one.id, call: one.call, result: one.arguments.n });
    kernel.begin("const all = await Promise.all([...Array(40).keys()].map(async (n) => { await null; return belljar.tools.f({ n }); })); all.join()", { tools: ["f"] });
    assert.equal((await next()).op, "started");
    const made = [];
    while (made.length < 16) made.push(await next());
    // Further ones come as these are answered.
    answer(made[0]);
    made.push(await next());
    assert.equal(kernel.frames.length, 0);
    made.slice(1).forEach(answer);
    while (made.length < 40) {
      made.push(await next());
      answer(made.at(-1));
    }
    assert.deepEqual(made.map((one) => [one.op, one.arguments.n, one.more]), [...Array(40).keys()].map((n) => ["tool", n, n < 39 ? true : undefined]));
    assert.equal((await kernel.end()).text, `'${[...Array(40).keys()].join()}'`);
  });

  test("calls that nobody waits for are made, before a question and before the end", async () => {
    const seen = [];
    const onTool = (frame) => ({ result: seen.push(frame.arguments.n) });
    const onInput = (frame) => {
      seen.push(frame.prompt);
      kernel.send({ op: "input", id: frame.id, value: "" });
    };
    kernel.begin("belljar.tools.f({ n: 1 }); prompt('a? '); belljar.tools.f({ n: 2 }); process.exitCode", { tools: ["f"], input: true });
    assert.equal((await kernel.end({ onTool, onInput })).status, "ok");
    assert.deepEqual(seen, [1, "a? ", 2]);
  });

  test("input and prompt are answered", async () => {
    kernel.begin("const a = await input('a? '); const b = prompt('b? '); const c = await input('c? ', {password: true}); [a, b, c]", { input: true });
    const got = await kernel.end({ onInput: (frame) => kernel.send({ op: "input", id: frame.id, value: `<${frame.prompt}>` }) });
    assert.deepEqual(got.json, ["<a? >", "<b? >", "<c? >"]);
    assert.deepEqual(got.inputs.map((one) => one.password), [false, false, true]);
  });

  test("nobody answers: an error for input, null for prompt", async () => {
    const eof = (frame) => kernel.send({ op: "input", id: frame.id, eof: true });
    kernel.begin("await input('a? ')", { input: true });
    assert.equal((await kernel.end({ onInput: eof })).error.name, "EOFError");
    kernel.begin("prompt('b? ')", { input: true });
    assert.equal((await kernel.end({ onInput: eof })).text, "null");
  });

  test("questions that nobody may answer are refused at once", async () => {
    for (const code of ["await input('a? ')", "prompt('a? ')"]) {
      const got = await kernel.run(code);
      assert.equal(got.error.name, "InputError");
      assert.equal(got.inputs.length, 0);
    }
  });

  test("an interrupt stops a question", async () => {
    for (const code of ["await input('a? ')", "prompt('a? ')"]) {
      kernel.begin(code, { input: true });
      const got = await kernel.end({ onInput: () => kernel.interrupt() });
      assert.equal(got.status, "interrupted");
    }
    assert.equal((await kernel.run("1")).text, "1");
  });

  test("env and cwd are those of one execution", async () => {
    await kernel.run("process.env.MINE = 'mine'; process.env.OWN = 'own'");
    const code = "process.env.OTHER = 'stays'; [process.env.GIVEN, process.env.OWN, process.cwd()]";
    assert.deepEqual((await kernel.run(code, { env: { GIVEN: "g", OWN: "over" }, cwd: "/usr" })).json, ["g", "over", "/usr"]);
    const got = await kernel.run("[process.env.GIVEN ?? null, process.env.OWN, process.env.MINE, process.env.OTHER, process.cwd() === '/usr']");
    assert.deepEqual(got.json, [null, "own", "mine", "stays", false]);
  });

  test("a directory that is not there is an error of the execution", async () => {
    const got = await kernel.run("1", { cwd: "/not/there" });
    assert.match(got.error.value, /cannot be entered: \/not\/there: ENOENT/);
    assert.equal((await kernel.run("2")).text, "2");
  });

  test("the kernel's own variables and start are out of sight", async () => {
    const got = await kernel.run("[Object.keys(process.env).filter(one => one.startsWith('BELLJAR')), process.execArgv]");
    assert.deepEqual(got.json, [[], []]);
  });

  test("workers start as in node, without the kernel's own options", async () => {
    const source = "const { parentPort, workerData } = require('worker_threads'); parentPort.postMessage([typeof module, workerData, process.execArgv])";
    const kinds = ["new (require('worker_threads').Worker)", "new worker.Worker", "new Imported", "new namespace.Worker"];
    await kernel.run("const worker = require('node:worker_threads')\nimport { Worker as Imported } from 'worker_threads'\nimport * as namespace from 'node:worker_threads'");
    for (const kind of kinds) {
      const got = await kernel.run(`await new Promise((resolve, reject) => ${kind}(${JSON.stringify(source)}, { eval: true, workerData: 7 }).on("message", resolve).on("error", reject))`);
      assert.deepEqual(got.json, ["object", 7, []], got.error?.traceback);
    }
    const got = await kernel.run("await new Promise((resolve) => new worker.Worker('require(\"worker_threads\").parentPort.postMessage(process.execArgv)', { eval: true, execArgv: ['--no-warnings'] }).on('message', resolve))");
    assert.deepEqual(got.json, ["--no-warnings"]);
    assert.deepEqual((await kernel.run("[worker.Worker.name, new worker.Worker('', { eval: true }) instanceof worker.Worker]")).json, ["Worker", true]);
  });

  test("packages of NODE_PATH are found by require and import alike", async () => {
    const home = fs.mkdtempSync(path.join(os.tmpdir(), "node-path-"));
    const write = (name, text) => {
      fs.mkdirSync(path.dirname(path.join(home, name)), { recursive: true });
      fs.writeFileSync(path.join(home, name), text);
    };
    write("lib/node_modules/first/index.js", "exports.value = 'first'");
    write("lib/node_modules/@scope/both/package.json", JSON.stringify({ exports: { ".": { import: "./i.mjs", require: "./r.cjs" }, "./sub": "./sub.js" } }));
    write("lib/node_modules/@scope/both/i.mjs", "export const value = 'imported'");
    write("lib/node_modules/@scope/both/r.cjs", "exports.value = 'required'");
    write("lib/node_modules/@scope/both/sub.js", "exports.value = 'sub'");
    write("plain/second.js", "exports.value = 'second'");
    const own = await Kernel.start({ env: { NODE_PATH: `${home}/lib/node_modules:${home}/plain` } });
    try {
      for (const name of ["first", "@scope/both/sub", "second"]) {
        const value = path.basename(name);
        assert.equal((await own.run(`require('${name}').value`)).text, `'${value}'`);
        const got = await own.run(`import { value as v } from '${name}'\n[v, (await import('${name}')).value]`);
        assert.deepEqual(got.json, [value, value], got.error?.traceback);
      }
      assert.equal((await own.run("require('@scope/both').value")).text, "'required'");
      // Older versions of Node cannot import from another directory.
      const imported = vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ? "imported" : "required";
      assert.equal((await own.run("(await import('@scope/both')).value")).text, `'${imported}'`);
      assert.equal((await own.run("await import('third')")).error.value.includes("third"), true);
    } finally {
      await own.stop();
      fs.rmSync(home, { recursive: true });
    }
  });

  test("children do not get the control socket", async () => {
    const got = await kernel.run("require('child_process').execFileSync('ls', ['-l', '/proc/self/fd']).toString()");
    assert.doesNotMatch(got.text, / 9 -> /);
  });

  test("code that breaks globals does not break the kernel", async () => {
    const own = await Kernel.start();
    await own.run("JSON.parse = null; globalThis.setImmediate = null; Buffer.from = Buffer.from; process.cwd = null; console = null");
    const got = await own.run("1 + 1");
    await own.stop();
    assert.ok(got.text === "2" || got.gone, "works on, or ends");
  });

  test("executions are counted", async () => {
    const first = await kernel.run("1");
    assert.equal((await kernel.run("1")).count, first.count + 1);
  });

  test("end of file on the control socket ends the kernel", async () => {
    const own = await Kernel.start();
    await own.run("setInterval(() => {}, 1000)");
    own.control.end();
    await own.until(() => own.exit, "end");
    assert.equal(own.exit.code, 0);
  });

  for (const [code, status] of [["process.exit(3)", 3], ["process.exitCode = 4; process.exit()", 4], ["await null; process.exit(0)", 0]]) {
    test(`${code} ends the context, and says so`, async () => {
      const own = await Kernel.start();
      const got = await own.run(code);
      assert.deepEqual([got.status, got.exiting, got.error.name], ["error", true, "Exit"]);
      await own.ended;
      assert.deepEqual(own.exit, { code: status, signal: null });
      assert.equal(own.stderr, "");
    });
  }

  test("code that kills the process leaves no end", async () => {
    const own = await Kernel.start();
    assert.equal((await own.run("process.kill(process.pid, 'SIGKILL')")).gone, true);
    assert.equal((await own.ended).signal, "SIGKILL");
  });

  test("SIGTERM ends the kernel", async () => {
    const own = await Kernel.start();
    own.child.kill("SIGTERM");
    assert.equal((await own.ended).signal, "SIGTERM");
  });
});

describe("typescript", () => {
  const missing = spawnSync("esbuild", ["--version"]).error !== undefined;
  const options = { skip: missing ? "SKIPPED typescript: needs esbuild" : false };
  let kernel;
  before(async () => {
    if (!missing) kernel = await Kernel.start({ language: "typescript" });
  });
  after(() => kernel?.stop());

  const CELLS = [
    ["interface P { x: number }\nconst p: P = { x: 1 }\np", { text: "{ x: 1 }" }],
    ["p.x as unknown as string", { text: "1" }],
    ["enum Color { Red, Green = 5 }\nColor.Green", { text: "5" }],
    ["Color[5]", { text: "'Green'" }],
    ["function id<T>(value: T): T { return value }\nid<string>('s')", { text: "'s'" }],
    ["import fs from 'fs'", { text: undefined }],
    ["typeof fs.statSync", { text: "'function'" }],
    ["import type { Stats } from 'fs'; let s: Stats | undefined = undefined; s === undefined", { text: "true" }],
    ["class A { constructor(private y: number) {} get() { return this.y } }\nnew A(3).get()", { text: "3" }],
    ["await Promise.resolve<number>(4)", { text: "4" }],
    ["const p: P = { x: 2 }; p.x!", { text: "2" }],
    ["namespace N { export const q = 9 }\nN.q", { text: "9" }],
    ["abstract class B { abstract m(): void }\ntypeof B", { text: "'function'" }],
    ["let t: [number, string] = [1, 'a']; t satisfies unknown[]", { text: "[ 1, 'a' ]" }],
  ];
  for (const [code, want] of CELLS) {
    test(code.replaceAll("\n", "⏎"), options, async () => {
      const got = await kernel.run(code);
      assert.equal(got.error?.traceback, undefined);
      assert.equal(got.text, want.text);
    });
  }

  test("lines of errors are those of the source", options, async () => {
    const got = await kernel.run("interface Q {\n  a: number\n}\n\nfunction fail(q: Q): never {\n  throw new Error('typed')\n}\nfail({ a: 1 })");
    assert.match(got.error.traceback, /at fail \(Cell \[\d+\]:6:\d+\)\n    at Cell \[\d+\]:8:/);
  });

  test("an error of syntax names the line", options, async () => {
    const got = await kernel.run("let a: number = 1\nlet b: = 2");
    assert.equal(got.error.name, "SyntaxError");
    assert.match(got.error.traceback, /Cell \[\d+\]:2:/);
  });

  test("without esbuild the kernel says what to install", async (context) => {
    if (process.versions.node.split(".").map(Number)[0] >= 22) return context.skip("SKIPPED: this Node takes types away itself");
    const own = await Kernel.start({ language: "typescript", env: { PATH: "/nowhere" }, allowFailure: true, node: process.execPath });
    assert.equal(own.ready.op, "failed");
    assert.match(own.ready.message, /install the package esbuild/);
    assert.equal((await own.ended).code, 1);
  });
});
