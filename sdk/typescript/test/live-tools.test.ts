// Tool calls of models, against a server.

import assert from "node:assert/strict";
import { type ApplyPatchCallOutput, type FunctionCallOutput, InvalidArgumentError, SandboxProvider, type ToolMessage, type ToolResultBlock } from "belljar";
import { LABELS, live, shared } from "./live.js";

const place = shared();
const tools = () => place.sandbox.tools;
const files = () => place.sandbox.files;

const use = (name: string, input: object) => ({ type: "tool_use", id: "toolu_1", name, input });
const text = (block: ToolResultBlock) => block.content.map((part) => ("text" in part ? part.text : "")).join("");

live("a shell of Anthropic's keeps its state", async () => {
  assert.equal((await tools().anthropic(use("bash", { command: "cd /tmp; x=5" }))).is_error, false);
  assert.match(text(await tools().anthropic(use("bash", { command: "echo $PWD $x" }))), /\/tmp 5/);
  const failed = await tools().anthropic(use("bash", { command: "echo out; (exit 3)" }));
  assert.deepEqual([failed.is_error, failed.tool_use_id, failed.type], [true, "toolu_1", "tool_result"]);
  await tools().anthropic(use("bash", { restart: true }));
  assert.equal(text(await tools().anthropic(use("bash", { command: "echo x${x}x" }))).trim(), "xx");
  assert.equal((await tools().anthropic(use("bash", {}))).is_error, true);
});

live("a text editor of Anthropic's changes files", async () => {
  const edit = (input: object) => tools().anthropic(use("str_replace_based_edit_tool", input));
  const path = "a/b.txt";
  await edit({ command: "create", path, file_text: "one\ntwo\nthree" });
  assert.equal(text(await edit({ command: "view", path, view_range: [2, -1] })), "     2\ttwo\n     3\tthree");
  await edit({ command: "str_replace", path, old_str: "two", new_str: "$& 2" });
  await edit({ command: "insert", path, insert_line: 0, insert_text: "zero" });
  await edit({ command: "insert", path, insert_line: 4, insert_text: "four\n" });
  assert.equal(await files().read(path), "zero\none\n$& 2\nthree\nfour\n");
  assert.match(text(await edit({ command: "view", path: "a" })), /a\/b\.txt/);
  for (const [input, reason] of [
    [{ command: "view", path: "nosuch" }, /nosuch/],
    [{ command: "view", path, view_range: [2, 99] }, /view_range/],
    [{ command: "str_replace", path, old_str: "nosuch", new_str: "" }, /did not appear/],
    [{ command: "str_replace", path, old_str: "o", new_str: "" }, /appears/],
    [{ command: "insert", path, insert_line: 99, insert_text: "x" }, /insert_line/],
    [{ command: "toString", path }, /no command/],
    [{ path }, /command/],
  ] as const) {
    const block = await edit(input);
    assert.equal(block.is_error, true);
    assert.match(text(block), reason);
  }
  assert.match(text(await tools().anthropic(use("str_replace_based_edit_tool", { command: "view", path }), { maxCharacters: 8 })), /left out/);
});

live("code execution has Anthropic's shapes", async () => {
  const run = (name: string, input: object) => tools().anthropicCodeExecution(use(name, input));
  const done = await run("bash_code_execution", { command: "echo a; echo b >&2" });
  assert.deepEqual(done, { type: "bash_code_execution_tool_result", tool_use_id: "toolu_1", content: { type: "bash_code_execution_result", stdout: "a\n", stderr: "b\n", return_code: 0, content: [] } });
  const made = await run("text_editor_code_execution", { command: "create", path: "f", file_text: "one\n" });
  assert.deepEqual(made.content, { type: "text_editor_code_execution_create_result", is_file_update: false });
  const shown = await run("text_editor_code_execution", { command: "view", path: "f" });
  assert.deepEqual(shown.content, { type: "text_editor_code_execution_view_result", content: "one", num_lines: 1, start_line: 1, total_lines: 1, file_type: "text" });
  assert.equal((await run("text_editor_code_execution", { command: "view", path: "nosuch" })).content["error_code"], "file_not_found");
  assert.equal((await run("code_execution", {})).content["error_code"], "invalid_tool_input");
});

live("calls of OpenAI's are answered", async () => {
  const action = { commands: ["echo a", "echo b >&2; exit 3", "sleep 60"], timeout_ms: 2000, max_output_length: 100 };
  assert.deepEqual(await tools().openai({ type: "shell_call", call_id: "c", action }), {
    type: "shell_call_output",
    call_id: "c",
    output: [
      { stdout: "a\n", stderr: "", outcome: { type: "exit", exit_code: 0 } },
      { stdout: "", stderr: "b\n", outcome: { type: "exit", exit_code: 3 } },
      { stdout: "", stderr: "", outcome: { type: "timeout" } },
    ],
    max_output_length: 100,
  });
  const patch = async (type: string, path: string, diff?: string) => (await tools().openai({ type: "apply_patch_call", call_id: "p", operation: { type, path, diff } })) as ApplyPatchCallOutput;
  assert.equal((await patch("create_file", "src/a.py", "+one = 1\n+two = 2\n")).status, "completed");
  assert.equal((await patch("update_file", "src/a.py", "@@\n one = 1\n-two = 2\n+two = 3\n")).status, "completed");
  for (const diff of ["@@\n-nosuch\n+x\n", "@@\n one = 1\n*** Delete File: src/a.py\n"]) {
    assert.equal((await patch("update_file", "src/a.py", diff)).status, "failed");
  }
  assert.equal((await patch("update_file", "a\n*** Delete File: src/a.py", "@@\n")).status, "failed");
  assert.equal(await files().read("src/a.py"), "one = 1\ntwo = 3\n");
  assert.equal((await patch("delete_file", "src/a.py")).status, "completed");
  const call = { type: "function_call", call_id: "f", name: "run_command", arguments: JSON.stringify({ command: "echo hi", sandbox: "another" }) };
  const done = (await tools().openai(call)) as FunctionCallOutput;
  assert.deepEqual([done.type, done.call_id, String(done.output).trim()], ["function_call_output", "f", "hi"]);
  const chat = { type: "function", id: "m", function: { name: "run_command", arguments: '{"command": "echo hi"}' } };
  const answer = (await tools().openai(chat)) as ToolMessage;
  assert.deepEqual([answer.role, answer.tool_call_id, answer.content.trim()], ["tool", "m", "hi"]);
  for (const wrong of [{ name: "nosuch" }, { arguments: "{" }, { arguments: "[]" }, { name: "kill_sandbox" }, { name: "a\nb" }]) {
    assert.match(String(((await tools().openai({ ...call, ...wrong })) as FunctionCallOutput).output), /Error/);
  }
  for (const item of [{ type: "web_search_call" }, { type: "shell_call" }, {}]) {
    await assert.rejects(tools().openai(item), InvalidArgumentError);
  }
  const found = await tools().definitions("openai");
  assert.ok(found.some((tool) => tool.name === "run_code" && tool["type"] === "function"));
  assert.ok(!JSON.stringify(found.map((tool) => tool["parameters"])).includes('"sandbox"'));
  assert.ok((await tools().definitions("anthropic")).every((tool) => typeof tool["input_schema"] === "object"));
});

live("a provider has one sandbox", async () => {
  const provider = new SandboxProvider({ labels: LABELS, timeoutMs: 120_000 });
  assert.deepEqual(await provider.execute("x=1; echo a", undefined, "bash"), { success: true, stdout: "a\n", stderr: "", exitCode: 0 });
  assert.equal((await provider.execute("echo $x", 10_000, "bash")).stdout, "1\n");
  assert.equal((await provider.execute("sleep 60", 1000, "bash")).exitCode, 124);
  const sandbox = await provider.createSandbox();
  await provider.cleanup();
  await provider.cleanup();
  assert.equal(await sandbox.isRunning(), false);
});
