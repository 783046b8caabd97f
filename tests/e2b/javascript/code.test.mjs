// The code interpreter.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import { NotFoundError, SandboxError, TimeoutError } from "e2b";
import { TIMEOUT_MS, shared, withSandbox } from "./shared.mjs";

const box = shared();
const run = (code, options) => box.sandbox.runCode(code, options);

test("an expression", async () => {
  const done = await run("x = 1\nx + 1");
  assert.deepEqual([done.text, done.error, done.results.length], ["2", undefined, 1]);
  assert.equal(done.results[0].isMainResult, true);
  assert.ok(done.executionCount >= 1);
});

test("state is kept", async () => {
  await run("kept = 'abc'");
  assert.equal((await run("kept")).text, "abc");
});

test("streamed output", async () => {
  const seen = [];
  const done = await run("import sys\nprint('out')\nprint('err', file=sys.stderr)", {
    onStdout: (message) => seen.push(message.line),
    onStderr: (message) => seen.push(message.line),
  });
  assert.deepEqual([done.logs.stdout.join(""), done.logs.stderr.join("")], ["out\n", "err\n"]);
  assert.deepEqual(seen.sort(), ["err\n", "out\n"]);
});

test("an error", async () => {
  const errors = [];
  const { error } = await run("1 / 0", { onError: (raised) => errors.push(raised.name) });
  assert.deepEqual([error.name, error.value, errors], ["ZeroDivisionError", "division by zero", ["ZeroDivisionError"]]);
  assert.match(error.traceback, /ZeroDivisionError/);
});

const SHOWN = `
class Shown:
    def __init__(self, forms):
        self.forms = forms
    def _repr_mimebundle_(self, **_):
        return self.forms
`;

test("results in many formats", async () => {
  const results = [];
  const done = await run(`${SHOWN}\nShown({"text/plain": "t", "text/html": "<b>t</b>", "text/markdown": "**t**", "image/svg+xml": "<svg/>", "application/json": {"a": 1}})`, {
    onResult: (result) => results.push(result),
  });
  assert.equal(done.error, undefined);
  const [result] = done.results;
  assert.deepEqual([result.text, result.html, result.markdown, result.svg, result.json], ["t", "<b>t</b>", "**t**", "<svg/>", { a: 1 }]);
  assert.deepEqual(result.formats().sort(), ["html", "json", "markdown", "svg"]);
  assert.equal(results.length, 1);
});

test("a chart and a table", async () => {
  const chart = { type: "bar", title: "t", x_label: "x", y_label: "y", elements: [{ label: "a", group: "g", value: 1 }] };
  const table = { columns: [{ name: "a" }, { name: "b" }], rows: [[1, "x"], [2, "y"]] };
  const forms = { "text/plain": "t", "application/vnd.belljar.chart.v1+json": chart, "application/vnd.belljar.table.v1+json": table };
  const done = await run(`${SHOWN}\nimport json\nShown(json.loads(${JSON.stringify(JSON.stringify(forms))}))`);
  assert.equal(done.error, undefined);
  assert.deepEqual(done.results[0].chart, chart);
  assert.deepEqual(done.results[0].data, { a: [1, 2], b: ["x", "y"] });
});

test("contexts", async () => {
  const context = await box.sandbox.createCodeContext({ cwd: "/tmp" });
  assert.deepEqual([context.language, context.cwd], ["python", "/tmp"]);
  await run("mine = 1", { context });
  assert.equal((await run("mine", { context })).text, "1");
  assert.equal((await run("mine")).error.name, "NameError");
  assert.equal((await run("import os; os.getcwd()", { context })).text, "/tmp");
  assert.ok((await box.sandbox.listCodeContexts()).some((one) => one.id === context.id));
  await box.sandbox.restartCodeContext(context);
  assert.equal((await run("mine", { context })).error.name, "NameError");
  await box.sandbox.removeCodeContext(context.id);
  assert.ok(!(await box.sandbox.listCodeContexts()).some((one) => one.id === context.id));
  await assert.rejects(run("1", { context }), NotFoundError);
});

test("an unknown context", async () => {
  await assert.rejects(box.sandbox.removeCodeContext("c999"), NotFoundError);
  await assert.rejects(box.sandbox.restartCodeContext("c999"), NotFoundError);
});

test("bash", async () => {
  assert.equal((await run("echo $((6 * 7))", { language: "bash" })).logs.stdout.join(""), "42\n");
});

test("javascript keeps its state", async () => {
  assert.equal((await run("const y = 20; y + 1", { language: "js" })).text, "21");
  assert.equal((await run("y + 2", { language: "javascript" })).text, "22");
});

test("typescript", async () => {
  assert.equal((await run("const z: number = 41; z + 1", { language: "ts" })).text, "42");
});

test("an unknown language", async () => {
  await assert.rejects(run("x", { language: "cobol" }), (error) => error instanceof SandboxError && /400/.test(error.message));
});

test("variables", async () => {
  await withSandbox({ envs: { GLOBAL: "g" } }, async (sandbox) => {
    assert.equal((await sandbox.runCode("import os; os.environ['GLOBAL'] + os.environ['OWN']", { envs: { OWN: "o" } })).text, "go");
    assert.equal((await sandbox.runCode("os.environ.get('OWN')")).text, undefined);
  });
});

test("a timeout interrupts", async () => {
  await assert.rejects(run("import time; time.sleep(300)", { timeoutMs: 1_000 }), TimeoutError);
  assert.equal((await run("1 + 1", { timeoutMs: TIMEOUT_MS })).text, "2");
});

test("large output", async () => {
  assert.equal((await run("print('ü' * 1_000_000)")).logs.stdout.join(""), `${"ü".repeat(1_000_000)}\n`);
});

test("files and code share the sandbox", async () => {
  await box.sandbox.files.write("shared.txt", "both");
  assert.equal((await run("open('/home/user/shared.txt').read()")).text, "both");
});

test("killed while code runs", async () => {
  const sandbox = await Sandbox.create();
  let begun;
  const begins = new Promise((resolve) => (begun = resolve));
  const running = sandbox.runCode("print('runs', flush=True)\nimport time; time.sleep(300)", { onStdout: begun, timeoutMs: TIMEOUT_MS });
  const ended = assert.rejects(running, (error) => error instanceof SandboxError && /killed/.test(error.message));
  await begins;
  await sandbox.kill();
  await ended;
});
