import assert from "node:assert/strict";
import { test } from "node:test";
import { utf8 } from "../src/bytes.js";
import { HeadAndTail } from "../src/output.js";
import { ConnectionError, InvalidArgumentError, KernelDied, NotFoundError, type Result, Sandbox, ServerError } from "../src/index.js";
import { broken, Double, event, events, ID, json, noContent, problem, wireOutput, wireSandbox } from "./double.js";

const CODE = `/v1/sandboxes/${ID}/code`;
const CONTEXTS = `/v1/sandboxes/${ID}/contexts`;
const CONTEXT = { id: "c1", language: "python", cwd: "/home/user", state: "idle", pid: 7, executions: 2, idle_ms: 5, version: "3.11.2", start: "plain", generation: 1 };
const STARTED = event("started", { execution: 9, context: CONTEXT, count: 3, rebuilt: "it was killed" });
const ENDED = event("ended", { status: "ok", state: "preserved", wall_ms: 2.5, cpu_ms: 1 });
const TABLE = { columns: [{ name: "region", type: "string" }], rows: [["north"]], index: null, row_count: 12, truncated: true };
const CHART = { type: "line", title: "t", x_label: "year", x_tick_labels: ["1"], elements: [{ label: "a", points: [[1, 2]] }] };
const RESULT = {
  main: true,
  data: {
    "text/plain": "'x'",
    "image/svg+xml": "<svg/>",
    "image/png": "iVD/",
    "application/json": { a: 1 },
    "application/vnd.belljar.table.v1+json": TABLE,
    "application/vnd.belljar.chart.v1+json": CHART,
    "application/x-own": "b3du",
  },
  metadata: { "image/png": { width: 2 } },
  cut: ["text/html: it is too large"],
};
const printed = (stream: string, offset: number, data: string): string => event(stream, { offset, encoding: "utf-8", data });

async function start(): Promise<{ double: Double; sandbox: Sandbox } & AsyncDisposable> {
  const double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  const sandbox = await Sandbox.create({ apiUrl: double.url, apiKey: "bj_test" });
  return { double, sandbox, [Symbol.asyncDispose]: () => double[Symbol.asyncDispose]() };
}

test("what comes of code", async () => {
  await using at = await start();
  const failed = { name: "ValueError", value: "no", traceback: "Traceback" };
  const end = event("ended", { status: "error", state: "lost", reason: "it ended", cause: "out_of_memory", exit_code: 3, signal: "SIGKILL", wall_ms: 2.5, cpu_ms: 1 });
  at.double.on("POST", CODE, events([STARTED, printed("stdout", 0, "ä"), printed("stdout", 2, "b\n"), printed("stderr", 0, "e"), event("result", RESULT), event("error", failed), end]));
  const seen: unknown[] = [];
  const keep = (one: unknown) => void seen.push(one);
  const done = await at.sandbox.runCode("x", { context: "c1", envs: { A: "b" }, cwd: "/tmp", timeoutMs: 1500, onStdout: keep, onStderr: keep, onResult: keep, onError: keep });
  assert.deepEqual(seen, ["ä", "b\n", "e", done.results[0], failed]);
  assert.deepEqual(done.logs, { stdout: ["äb\n"], stderr: ["e"], truncated: false });
  assert.deepEqual([done.text, done.status, done.state, done.reason, done.cause, done.exitCode, done.signal], ["'x'", "error", "lost", "it ended", "out_of_memory", 3, "SIGKILL"]);
  assert.deepEqual([done.context, done.execution, done.executionCount, done.rebuilt, done.wallMs, done.cpuMs], ["c1", 9, 3, "it was killed", 2.5, 1]);
  assert.deepEqual(done.error, failed);
  assert.deepEqual(JSON.parse(at.double.seen.at(-1)?.body ?? ""), { code: "x", context: "c1", env: { A: "b" }, cwd: "/tmp", timeout: 1.5 });
});

test("the forms of a result", async () => {
  await using at = await start();
  const whole = { execution: 9, context: CONTEXT, count: 3, results: [RESULT], stdout: wireOutput("out"), stderr: wireOutput(""), error: null, status: "ok", state: "preserved", wall_ms: 2.5 };
  at.double.on("POST", CODE, json(whole));
  const done = await at.sandbox.runCode("x");
  // Without listeners it is one request and one response.
  assert.equal(at.double.seen.at(-1)?.headers.accept, "application/json");
  assert.deepEqual([done.text, done.logs, done.context, done.execution, done.status, done.wallMs], ["'x'", { stdout: ["out"], stderr: [], truncated: false }, "c1", 9, "ok", 2.5]);
  const result = done.results[0] as Result;
  assert.deepEqual(result.png, new Uint8Array([0x89, 0x50, 0xff]));
  assert.deepEqual([result.text, result.svg, result.json, result.html], ["'x'", "<svg/>", { a: 1 }, undefined]);
  assert.deepEqual(result.extra, { "application/x-own": new Uint8Array([0x6f, 0x77, 0x6e]) });
  assert.deepEqual(result.formats(), ["text", "svg", "png", "json", "data", "chart", "application/x-own"]);
  assert.deepEqual([result.isMainResult, result.update, result.cut, result.metadata], [true, false, RESULT.cut, RESULT.metadata]);
  assert.deepEqual(result.data, { columns: TABLE.columns, rows: [["north"]], index: null, rowCount: 12, truncated: true });
  assert.deepEqual(result.chart, { type: "line", title: "t", xLabel: "year", xTickLabels: ["1"], elements: [{ label: "a", points: [[1, 2]] }] });
});

test("an end without an error of the code is one", async () => {
  await using at = await start();
  const died = event("ended", { status: "died", state: "lost", reason: "it ran out of memory", cause: "out_of_memory", signal: "SIGKILL" });
  at.double.on("POST", CODE, events([STARTED, died]), events([STARTED, event("ended", { status: "timed_out", state: "preserved" })]));
  const seen: unknown[] = [];
  const done = await at.sandbox.runCode("x", { onError: (error) => void seen.push(error) });
  const { error } = done;
  assert.ok(error instanceof KernelDied && done.status === "died");
  assert.deepEqual([error.name, error.value, error.traceback], ["KernelDied", "it ran out of memory", "KernelDied: it ran out of memory"]);
  assert.deepEqual([error.cause, error.exitCode, error.signal], ["out_of_memory", undefined, "SIGKILL"]);
  assert.deepEqual(seen, [error]);
  assert.equal((await at.sandbox.runCode("x", { timeoutMs: 0 })).error?.name, "TimeoutError");
  const whole = { execution: 9, context: CONTEXT, count: 3, results: [], stdout: wireOutput(""), stderr: wireOutput(""), error: null, state: "lost" };
  at.double.on("POST", CODE, json({ ...whole, status: "died", exit_code: 3 }), json({ ...whole, status: "interrupted" }));
  const other = (await at.sandbox.runCode("x")).error;
  assert.ok(other instanceof KernelDied && other.exitCode === 3);
  assert.equal((await at.sandbox.runCode("x")).error?.name, "KeyboardInterrupt");
});

test("executions as JSON", async () => {
  await using at = await start();
  at.double.on("POST", CODE, events([STARTED, printed("stdout", 0, "o"), event("result", RESULT), ENDED]));
  const done = await at.sandbox.runCode("x", { timeoutMs: 0 });
  const value = JSON.parse(JSON.stringify(done)) as { results: Record<string, unknown>[]; logs: unknown; status: string; text: string };
  const [result] = value.results;
  assert.deepEqual([result?.["text"], result?.["png"], result?.["json"], result?.["extra"]], ["'x'", "iVD/", { a: 1 }, { "application/x-own": "b3du" }]);
  assert.deepEqual([value.logs, value.status, value.text], [{ stdout: ["o"], stderr: [], truncated: false }, "ok", "'x'"]);
  assert.deepEqual(done.toJSON()["results"], [done.results[0]?.toJSON()]);
});

test("a chart of an unknown kind", async () => {
  await using at = await start();
  const data = { "application/vnd.belljar.chart.v1+json": { type: "heatmap", title: "t", elements: [{ a: 1 }] } };
  at.double.on("POST", CODE, events([STARTED, event("result", { main: false, data }), ENDED]));
  const chart = (await at.sandbox.runCode("x", { timeoutMs: 0 })).results[0]?.chart;
  assert.deepEqual(chart, { type: "unknown", title: "t", elements: [{ a: 1 }] });
});

test("several charts, and boxes", async () => {
  await using at = await start();
  const box = { type: "box_and_whisker", title: null, elements: [{ label: "b", min: 1, first_quartile: 2, median: 3, third_quartile: 4, max: 5, outliers: [] }] };
  const data = { "application/vnd.belljar.chart.v1+json": { type: "superchart", title: "s", elements: [CHART, box] } };
  at.double.on("POST", CODE, events([STARTED, event("result", { main: false, data }), ENDED]));
  const chart = (await at.sandbox.runCode("x", { timeoutMs: 0 })).results[0]?.chart;
  assert.equal(chart?.type, "superchart");
  const second = chart.elements[1];
  assert.equal(second?.type, "box_and_whisker");
  assert.equal(second.elements[0]?.thirdQuartile, 4);
});

test("questions are answered", async () => {
  await using at = await start();
  const question = event("input_requested", { prompt: "name? ", password: true });
  at.double.on("POST", CODE, events([STARTED, question, ENDED])).on("POST", `${CONTEXTS}/c1/answer`, noContent);
  const asked: unknown[] = [];
  for (const [value, sent] of [
    ["Ada", { execution: 9, value: "Ada" }],
    [null, { execution: 9, end_of_file: true }],
  ] as const) {
    await at.sandbox.runCode("x", {
      onInput: (prompt, password) => {
        asked.push([prompt, password]);
        return value;
      },
    });
    assert.deepEqual(JSON.parse(at.double.seen.at(-1)?.body ?? ""), sent);
  }
  assert.deepEqual(asked, [["name? ", true], ["name? ", true]]);
  const failing = at.sandbox.runCode("x", { onInput: () => Promise.reject(new RangeError("no")) });
  await assert.rejects(failing, RangeError);
  assert.deepEqual(JSON.parse(at.double.seen.at(-1)?.body ?? ""), { execution: 9, end_of_file: true });
});

test("answers that come too late do not cost the outcome", async () => {
  await using at = await start();
  const question = event("input_requested", { prompt: "name? " });
  const called = event("tool_called", { call: 1, name: "lookup", arguments: {} });
  const late = event("ended", { status: "timed_out", state: "preserved" });
  const closed = problem(409, "failed_precondition", "the execution is not running");
  at.double.on("POST", CODE, events([STARTED, printed("stdout", 0, "o"), question, late]), events([STARTED, called, ENDED])).on("POST", `${CONTEXTS}/c1/answer`, closed, broken, closed);
  const done = await at.sandbox.runCode("x", { onInput: () => "Ada" });
  assert.deepEqual([done.status, done.logs.stdout], ["timed_out", ["o"]]);
  // The response to the first answer is lost, so the second one is late.
  assert.equal((await at.sandbox.runCode("x", { functions: { lookup: () => 1 } })).status, "ok");
  assert.equal(at.double.count("POST", `${CONTEXTS}/c1/answer`), 3);
  at.double.on("POST", CODE, events([STARTED, question, ENDED])).on("POST", `${CONTEXTS}/c1/answer`, broken);
  await assert.rejects(at.sandbox.runCode("x", { onInput: () => Promise.reject(new RangeError("mine")) }), /mine/);
  // In a sandbox that is paused the code goes on to wait.
  at.double.on("POST", CODE, events([STARTED, question, ENDED])).on("POST", `${CONTEXTS}/c1/answer`, problem(409, "wrong_state", "it is paused"));
  await assert.rejects(at.sandbox.runCode("x", { onInput: () => "Ada" }), /it is paused/);
});

test("output that was cut says so", async () => {
  await using at = await start();
  const whole = { execution: 9, context: CONTEXT, count: 3, results: [], stdout: wireOutput(""), stderr: wireOutput("headtail", { truncated: true, omitted_bytes: 92 }), error: null, status: "ok", state: "preserved" };
  at.double.on("POST", CODE, json(whole), events([STARTED, printed("stdout", 0, "head"), printed("stdout", 96, "tail"), ENDED]));
  assert.deepEqual((await at.sandbox.runCode("x")).logs, { stdout: [], stderr: ["headtail"], truncated: true });
  const seen: string[] = [];
  const { logs } = await at.sandbox.runCode("x", { onStdout: (text) => void seen.push(text) });
  assert.deepEqual([logs, seen], [{ stdout: ["headtail"], stderr: [], truncated: true }, ["head", "tail"]]);
});

test("head and tail of a long stream are kept", () => {
  const kept = new HeadAndTail(5);
  for (const [offset, piece] of [[0, "01"], [2, "2345"], [6, "6"], [7, "789"]] as const) {
    kept.push(offset, utf8(piece));
  }
  assert.deepEqual([kept.text(), kept.isTruncated()], ["01289", true]);
  const short = new HeadAndTail(5);
  short.push(0, utf8("01234"));
  assert.deepEqual([short.text(), short.isTruncated()], ["01234", false]);
});

test("problems, and streams that end early", async () => {
  await using at = await start();
  at.double.on("POST", CODE, events([STARTED, event("error", { status: 500, code: "internal", title: "t", detail: "d" })]), events([STARTED]), problem(404, "context_not_found", "there is none"));
  await assert.rejects(at.sandbox.runCode("x", { onStdout: () => undefined }), ServerError);
  await assert.rejects(at.sandbox.runCode("x", { onResult: () => undefined }), ConnectionError);
  await assert.rejects(at.sandbox.runCode("x", { context: "c9" }), NotFoundError);
  await assert.rejects(at.sandbox.runCode("x", { context: "c1", language: "python" }), InvalidArgumentError);
  await assert.rejects(at.sandbox.runCode("x", { env: {}, envs: {} }), InvalidArgumentError);
  for (const functions of [() => 1, [() => 1], "lookup", { lookup: 3 }]) {
    // @ts-expect-error: as written in JavaScript.
    await assert.rejects(at.sandbox.runCode("x", { functions }), { name: "InvalidArgumentError", field: /^functions/ });
  }
  await assert.rejects(at.sandbox.runCode("x", { timeoutMs: -1 }), InvalidArgumentError);
});

test("contexts", async () => {
  await using at = await start();
  at.double
    .on("POST", CONTEXTS, json(CONTEXT, 201))
    .on("GET", CONTEXTS, json({ contexts: [CONTEXT] }))
    .on("POST", `${CONTEXTS}/c1/restart`, json({ ...CONTEXT, generation: 2 }))
    .on("POST", `${CONTEXTS}/c1/interrupt`, json({ interrupted: true }))
    .on("DELETE", `${CONTEXTS}/c1`, noContent);
  const made = await at.sandbox.createCodeContext({ language: "python", cwd: "/tmp", env: { A: "b" } });
  assert.deepEqual(JSON.parse(at.double.seen.at(-1)?.body ?? ""), { language: "python", cwd: "/tmp", env: { A: "b" } });
  assert.deepEqual([made.id, made.state, made.idleMs, made.pid, made.startNote], ["c1", "idle", 5, 7, null]);
  assert.deepEqual(await at.sandbox.listCodeContexts(), [made]);
  assert.equal((await at.sandbox.restartCodeContext(made)).generation, 2);
  assert.equal(await at.sandbox.interruptCodeContext("c1"), true);
  await at.sandbox.removeCodeContext(made);
  assert.equal(at.double.count("DELETE", `${CONTEXTS}/c1`), 1);
});
