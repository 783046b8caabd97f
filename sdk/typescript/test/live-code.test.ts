import assert from "node:assert/strict";
import { ConflictError, ContextNotFoundError, InvalidArgumentError, KernelDied, Sandbox, SandboxError } from "belljar";
import { live, missing, shared } from "./live.js";

const at = shared();

live("languages without contexts are programs", async (context) => {
  if ((await at.sandbox.commands.run("command -v perl", { check: false })).exitCode !== 0) {
    context.skip("SKIPPED: the sandbox has no perl");
    return;
  }
  const done = await at.sandbox.runCode("print 6 * 7, \" $ENV{A} it's\\n\";", { language: "perl", envs: { A: "b" } });
  assert.deepEqual([done.logs.stdout, done.status, done.state], [["42 b it's\n"], "ok", "preserved"]);
  const failed = await at.sandbox.runCode("print STDERR 'no'; exit 3", { language: "perl", onStderr: () => undefined });
  assert.deepEqual([failed.status, failed.logs.stderr, failed.error?.value], ["error", ["no"], "exit status 3"]);
}, missing);

live("variables live on in a context", async (context) => {
  if ((await at.sandbox.commands.run("command -v node", { check: false })).exitCode !== 0) {
    context.skip("SKIPPED: the sandbox has no node");
    return;
  }
  const made = await at.sandbox.createCodeContext({ language: "javascript", cwd: "/tmp", envs: { A: "b" } });
  await at.sandbox.runCode("const x = await Promise.resolve(41)", { context: made });
  const pieces: string[] = [];
  const done = await at.sandbox.runCode("console.log('ä'); ({ x, a: process.env.A, cwd: process.cwd() })", { context: made, onStdout: (text) => void pieces.push(text) });
  assert.deepEqual(done.results[0]?.json, { x: 41, a: "b", cwd: "/tmp" });
  assert.deepEqual([pieces.join(""), done.status, done.state, done.executionCount], ["ä\n", "ok", "preserved", 2]);
  const failed = await at.sandbox.runCode("throw new TypeError('no')", { context: made });
  assert.deepEqual([failed.error?.name, failed.error?.value, failed.state], ["TypeError", "no", "preserved"]);
  const asked = await at.sandbox.runCode("await input('name? ')", { context: made, onInput: (prompt) => `<${prompt}>` });
  assert.equal(asked.text, "'<name? >'");
  const calling = await at.sandbox.runCode(
    "const found = await belljar.tools.lookup({ city: 'Köln' }); [found.size, await Promise.all(['fail', 'odd'].map((name) => belljar.tools[name]().catch(String)))].flat().join('; ')",
    { context: made, functions: { lookup: ({ city }: { city: string }) => ({ size: city.length }), fail: () => Promise.reject(new RangeError("no")), odd: () => () => 1 } },
  );
  assert.equal(calling.text, "'4; ToolError: RangeError: no; ToolError: TypeError: odd() returned what is no JSON'");
  const both = "const [a, b] = await Promise.all(['Oslo', 'Rome'].map((city) => belljar.tools.lookup({ city }).catch(String))); console.log(b); a.size";
  let step = await at.sandbox.runCodeStep(both, { context: made, functions: ["lookup"], callTimeoutMs: 30_000 });
  assert.deepEqual(step.toolCalls.map(({ name, arguments: args }) => [name, args]), [["lookup", { city: "Oslo" }], ["lookup", { city: "Rome" }]]);
  assert.ok((step.expiresAt as Date).getTime() - Date.now() <= 30_000 && step.execution === undefined);
  const [oslo, rome] = step.toolCalls.map((call) => call.id) as [string, string];
  await assert.rejects(at.sandbox.runCodeStep({ [oslo]: 1 }), (error) => error instanceof InvalidArgumentError && error.field === "tool_results");
  await assert.rejects(at.sandbox.runCodeStep({ [oslo]: () => 1, [rome]: 1 }), /is no JSON/);
  await assert.rejects(at.sandbox.runCodeStep({ [oslo]: 1 }, { functions: ["lookup"] } as never), /no option "functions"/);
  // By the ids alone, as from another process.
  step = await (await Sandbox.connect(at.sandbox.sandboxId)).runCodeStep({ [rome]: new RangeError("no"), [oslo]: { size: 4 } });
  assert.deepEqual([step.toolCalls, step.execution?.text, step.execution?.logs.stdout], [[], "4", ["ToolError: RangeError: no\n"]]);
  await assert.rejects(at.sandbox.runCodeStep({ [oslo]: 1, [rome]: 1 }), (error) => error instanceof ConflictError && error.code === "call_closed");
  for (const functions of [undefined, [], "lookup"]) {
    await assert.rejects(at.sandbox.runCodeStep("1", { functions } as never), { name: "InvalidArgumentError", field: "functions" });
  }
  const late = await at.sandbox.runCode("while (true) {}", { context: made, timeoutMs: 500 });
  assert.deepEqual([late.status, late.state], ["timed_out", "preserved"]);
  const ended = await at.sandbox.runCode("process.exit(3)", { context: made });
  assert.deepEqual([ended.state, ended.exitCode], ["lost", 3]);
  assert.ok((await at.sandbox.runCode("typeof x", { context: made })).rebuilt);
  const killed = await at.sandbox.runCode("process.kill(process.pid, 'SIGKILL'); await new Promise(() => undefined)", { context: made });
  assert.ok(killed.status === "died" && killed.error instanceof KernelDied && killed.error.signal === "SIGKILL");
  await at.sandbox.removeCodeContext(made);
  await assert.rejects(at.sandbox.runCode("x", { context: made }), ContextNotFoundError);
  await assert.rejects(at.sandbox.createCodeContext({ language: "cobol" }), SandboxError);
}, missing);
