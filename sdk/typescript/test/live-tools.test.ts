// Tool calls of models, against a server.

import assert from "node:assert/strict";
import { type ApplyPatchCallOutput, type FunctionCallOutput, InvalidArgumentError, SandboxProvider, type ShellCallOutput, type ToolMessage, type ToolResultBlock } from "belljar";
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

/** A list within lists. */
const deep = (levels: number): unknown => JSON.parse("[".repeat(levels) + "]".repeat(levels));
/** Half of a surrogate pair, which models send as an escape. */
const HALF = "\ud83d";
const edit = (input: object, options?: { maxCharacters?: number }) => tools().anthropic(use("str_replace_based_edit_tool", input), options);
const run = (script: string) => place.sandbox.commands.run(script);

live("the text editor bounds what it reads and shows", async () => {
  // Of code's choice, and free of charge there.
  await run("truncate -s 300M big; head -c 1048576 /dev/zero | tr '\\0' '\\n' > most; mkfifo fifo");
  const before = process.memoryUsage.rss();
  for (const input of [
    { command: "view", path: "big" },
    { command: "view", path: "big", view_range: [1, 2] },
    { command: "str_replace", path: "big", old_str: "a", new_str: "b" },
    { command: "insert", path: "big", insert_line: 0, insert_text: "a" },
  ]) {
    const block = await edit(input);
    assert.equal(block.is_error, true);
    assert.match(text(block), /big has more than 1048576 bytes/);
    assert.equal((await tools().anthropicCodeExecution(use("text_editor_code_execution", input))).content["error_code"], "invalid_tool_input");
  }
  assert.ok(process.memoryUsage.rss() - before < 200 * 2 ** 20);
  assert.equal((await files().getInfo("big")).size, 300 * 2 ** 20);
  // The longest file has a result that is bounded, too.
  const most = text(await edit({ command: "view", path: "most" }));
  assert.match(most, /characters left out\]$/);
  assert.ok(most.length < 2 ** 20 + 100);
  assert.match(text(await edit({ command: "view", path: "fifo" })), /not a regular file/);
  await assert.rejects(edit({ command: "view", path: "most" }, { maxCharacters: -1 }), InvalidArgumentError);
  // No character is cut in two.
  await files().write("bell", "🔔");
  assert.equal(text(await edit({ command: "view", path: "bell" }, { maxCharacters: 8 })), "     1\t\n[2 characters left out]");
  await run("mkdir -p many/.git few/.git && cd many && touch $(seq -f f%04g 1 1200) && cd .git && touch $(seq 1 1200) && cd ../../few && touch .git/a b");
  const lines = text(await edit({ command: "view", path: "many" })).split("\n");
  assert.deepEqual([lines[1], lines[1000], lines.slice(1001)], ["many/f0001", "many/f1000", ["[more entries; list a directory below]"]]);
  assert.deepEqual(text(await edit({ command: "view", path: "few" })).split("\n").slice(1), ["few/b"]);
  await run("rm -r big most fifo bell many few");
});

live("lines end at newlines alone", async () => {
  const path = "ls.txt";
  const good = async (input: object) => {
    const block = await edit({ path, ...input });
    assert.equal(block.is_error, false, text(block));
    return text(block);
  };
  await good({ command: "create", file_text: "a\fb\r\nc\vd\u2028e\n" });
  assert.equal(await good({ command: "view" }), "     1\ta\fb\r\n     2\tc\vd\u2028e");
  await good({ command: "insert", insert_line: 1, insert_text: "x\fy\r\nz" });
  assert.equal(await files().read(path), "a\fb\r\nx\fy\r\nz\nc\vd\u2028e\n");
  await good({ command: "str_replace", old_str: "z\n", new_str: "\x85\x1c\u2029\r\n" });
  assert.equal(await files().read(path), "a\fb\r\nx\fy\r\n\x85\x1c\u2029\r\nc\vd\u2028e\n");
  const changed = await tools().anthropicCodeExecution(use("text_editor_code_execution", { command: "str_replace", path, old_str: "\fy", new_str: "\f" }));
  assert.deepEqual([changed.content["lines"], changed.content["old_start"]], [["-\fy", "+\f"], 2]);
  // A newline is added only where a line has none.
  for (const [before, line, added, after] of [
    ["", 0, "a", "a\n"],
    ["a", 1, "b", "a\nb\n"],
    ["a", 0, "b\n", "b\na"],
    ["a", 1, "", "a"],
    ["a\n", 1, "\n", "a\n\n"],
  ] as const) {
    await files().write(path, before);
    await good({ command: "insert", insert_line: line, insert_text: added });
    assert.equal(await files().read(path), after);
  }
  const patched = async (operation: object) => ((await tools().openai({ type: "apply_patch_call", call_id: "p", operation })) as ApplyPatchCallOutput).status;
  assert.equal(await patched({ type: "create_file", path: "form\ffeed", diff: "+a\fb\n+c\u2028d\x85\n" }), "completed");
  assert.equal(await files().read("form\ffeed"), "a\fb\nc\u2028d\x85\n");
  assert.equal(await patched({ type: "update_file", path: "form\ffeed", diff: "@@\r\n-c\u2028d\x85\r\n+\fc\r\n*** End of File\r\n" }), "completed");
  assert.equal(await files().read("form\ffeed"), "a\fb\n\fc\n");
});

live("what is no text is not edited", async () => {
  const latin = new Uint8Array([0x63, 0x61, 0x66, 0xe9, 0x20, 0x78, 0x0a]);
  await files().write("latin", latin);
  for (const input of [
    { command: "view", path: "latin" },
    { command: "str_replace", path: "latin", old_str: " x", new_str: " y" },
    { command: "insert", path: "latin", insert_line: 0, insert_text: "x" },
  ]) {
    const block = await edit(input);
    assert.equal(block.is_error, true);
    assert.match(text(block), /latin is no text in UTF-8/);
    assert.equal((await tools().anthropicCodeExecution(use("text_editor_code_execution", input))).content["error_code"], "invalid_tool_input");
  }
  assert.deepEqual(await files().read("latin", { format: "bytes" }), latin);
  // A mark of the byte order is kept.
  await files().write("marked", "\ufeffone\n");
  await edit({ command: "str_replace", path: "marked", old_str: "one", new_str: "two" });
  assert.equal(await files().read("marked"), "\ufefftwo\n");
});

live("whatever a model sends is answered", async () => {
  await files().write("kept", "one\n");
  const names = async () => (await files().list()).map((entry) => entry.path);
  const before = await names();
  const edits: [object, RegExp][] = [
    [{ command: "create", path: "q", file_text: HALF }, /file_text: half of a surrogate pair/],
    [{ command: "create", path: `q${HALF}`, file_text: "" }, /path: half of a surrogate pair/],
    [{ command: "create", path: "q".repeat(1_000_000), file_text: "" }, /Error/],
    [{ command: "create", path: "q\0", file_text: "" }, /NUL/],
    [{ command: "create", path: "", file_text: "" }, /path/],
    [{ command: "create", path: "q", file_text: ["one"] }, /file_text: give a string/],
    [{ command: "str_replace", path: "kept", old_str: "one", new_str: 5 }, /new_str: give a string/],
    [{ command: "str_replace", path: "kept", old_str: "one", new_str: 0 }, /new_str: give a string/],
    [{ command: "str_replace", path: "kept", old_str: "one", new_str: ["a"] }, /new_str: give a string/],
    [{ command: "str_replace", path: "kept", old_str: "one", new_str: HALF }, /new_str: half of a surrogate pair/],
    [{ command: "insert", path: "kept", insert_line: 1e300, insert_text: "x" }, /insert_line/],
    [{ command: "insert", path: "kept", insert_line: Number.NaN, insert_text: "x" }, /insert_line/],
    [{ command: "insert", path: "kept", insert_line: 0, insert_text: { a: 1 } }, /insert_text: give a string/],
    [{ command: "view", path: "kept", view_range: [1, -2] }, /view_range/],
    [{ command: "view", path: "kept", view_range: { 0: 1 } }, /view_range/],
    [{ command: "view", path: "kept", view_range: [deep(5000), 1] }, /view_range/],
    [{ command: deep(5000), path: "kept" }, /command: give a string/],
    [{ command: HALF.repeat(10), path: "kept" }, /command: half of a surrogate pair/],
    [{ command: "x".repeat(3_000_000), path: "kept" }, /characters left out/],
  ];
  for (const [input, reason] of edits) {
    const block = await edit(input);
    assert.equal(block.is_error, true);
    assert.match(text(block).slice(-400), reason);
    const done = await tools().anthropicCodeExecution(use("text_editor_code_execution", input));
    assert.ok(done.content["error_code"], JSON.stringify(done).slice(0, 400));
  }
  assert.equal(await files().read("kept"), "one\n");
  assert.deepEqual(await names(), before);
  // As deep as allowed: it is the server that refuses a list.
  assert.match(text(await tools().anthropic(use("run_command", { command: deep(99) }))), /a list is not allowed/);
  for (const [command, reason] of [
    [HALF, /half of a surrogate pair/],
    [deep(5000), /levels deep/],
    [deep(100), /levels deep/],
    [Number.POSITIVE_INFINITY, /too large/],
    [["a"], /command/],
    [-1, /command/],
  ] as const) {
    for (const name of ["bash", "run_command"]) {
      const block = await tools().anthropic(use(name, { command }));
      assert.equal(block.is_error, true);
      assert.match(text(block), reason);
    }
    assert.equal((await tools().anthropicCodeExecution(use("bash_code_execution", { command }))).content["error_code"], "invalid_tool_input");
  }
  for (const name of [" run_command ", "x".repeat(100_000), ""]) {
    assert.match(text(await tools().anthropic(use(name, { command: "true" }))), /is no name of a tool/);
  }
  const nested = `{"command":${"[".repeat(5000)}${"]".repeat(5000)}}`;
  for (const args of [nested, nested.slice(0, 3000), '{"command": "\\ud83d"}', '{"command": 1e999}', "5", "nul", '{"command": NaN}', "🔔".repeat(30), 5, [], 0, {}, false]) {
    const called = { name: "run_command", arguments: args };
    const done = (await tools().openai({ type: "function_call", call_id: "c", ...called })) as FunctionCallOutput;
    assert.match(String(done.output), /^Error: arguments: \P{Surrogate}+$/u);
    assert.match(((await tools().openai({ type: "function", id: "c", function: called })) as ToolMessage).content, /^Error: arguments: /);
  }
  const shell = async (action: object) => (await tools().openai({ type: "shell_call", call_id: "c", action })) as ShellCallOutput;
  for (const [action, reason] of [
    [{ timeout_ms: "1000" }, /timeout_ms: give an integer/],
    [{ timeout_ms: {} }, /timeout_ms: give an integer/],
    [{ timeout_ms: 1e30 }, /timeout_ms: give an integer/],
    [{ timeout_ms: 0 }, /timeout_ms: give an integer/],
    [{ timeout_ms: true }, /timeout_ms: give an integer/],
    [{ timeout_ms: 1e15 }, /timeout/],
    [{ max_output_length: "3" }, /max_output_length: give/],
    [{ max_output_length: -3 }, /max_output_length: give/],
  ] as const) {
    const done = await shell({ commands: ["touch q", "touch q"], ...action });
    assert.equal(done.max_output_length, undefined);
    assert.equal(done.output.length, 2);
    for (const one of done.output) {
      assert.match(one.stderr, reason);
      assert.deepEqual(one.outcome, { type: "exit", exit_code: 1 });
    }
  }
  assert.deepEqual((await shell({ commands: [HALF, 5, "echo a"] })).output.map((one) => one.stdout + one.stderr.slice(0, 15)), ["Error: command:", "Error: command:", "a\n"]);
  for (const operation of [{ type: deep(5000) }, { type: "move_file" }, { path: HALF }, { path: 5 }, { path: "a\nb" }, { path: "a\r" }, { path: "q\0" }, { diff: HALF }, { diff: ["+a"] }, { diff: 0 }]) {
    const done = (await tools().openai({ type: "apply_patch_call", call_id: "c", operation: { type: "create_file", path: "q", diff: "+a\n", ...operation } })) as ApplyPatchCallOutput;
    assert.equal(done.status, "failed");
    assert.notEqual(done.output, "");
  }
  assert.deepEqual(await names(), before);
});

live("results are bounded", async () => {
  const much = "head -c 3000000 /dev/zero | tr '\\0' a";
  const shell = async (action: object) => (await tools().openai({ type: "shell_call", call_id: "c", action })) as ShellCallOutput;
  const [first, second] = (await shell({ commands: [much, `${much} >&2`] })).output;
  for (const output of [first?.stdout, second?.stderr]) {
    assert.match(output ?? "", /\n\[1951424 characters left out\]$/);
    assert.equal(output?.length, 2 ** 20 + 30);
  }
  const asked = await shell({ commands: [much], max_output_length: 2_000_000 });
  assert.deepEqual([asked.output[0]?.stdout.length, asked.max_output_length], [2 ** 20, 2_000_000]);
  assert.equal((await shell({ commands: ["printf 🔔🔔"], max_output_length: 3 })).output[0]?.stdout, "🔔");
  const done = await tools().anthropicCodeExecution(use("bash_code_execution", { command: much }));
  assert.ok(String(done.content["stdout"]).length < 2 ** 20 + 100);
  assert.ok(text(await tools().anthropic(use("bash", { command: much }))).length < 2 ** 20 + 100);
});

live("code execution has Anthropic's shapes", async () => {
  const run = (name: string, input: object) => tools().anthropicCodeExecution(use(name, input));
  const done = await run("bash_code_execution", { command: "echo a; echo b >&2" });
  assert.deepEqual(done, { type: "bash_code_execution_tool_result", tool_use_id: "toolu_1", content: { type: "bash_code_execution_result", stdout: "a\n", stderr: "b\n", return_code: 0, content: [] } });
  for (const [command, code] of [["exit 4", 4], ["exit", 0], ["set -e; false", 1], ["python3 -c 'import sys; sys.exit(3)'", 3], ["kill -9 $$", 137]] as const) {
    const { content } = await run("bash_code_execution", { command: `echo a; ${command}` });
    assert.deepEqual([content["stdout"], content["return_code"]], ["a\n", code], command);
  }
  assert.equal((await run("code_execution", { code: "exit(5)" })).content["return_code"], 5);
  const svg = `'<svg xmlns="http://www.w3.org/2000/svg"/>'`;
  const { content } = await run("code_execution", { code: `from IPython.display import SVG\nSVG(${svg})` });
  assert.match(String(content["stdout"]), /\[pictures left out: 1; code can save them to files\]\n$/);
  const wrong = await tools().anthropic(use("code_execution", { code: "1" }));
  assert.deepEqual([wrong.is_error, text(wrong)], [true, "Error: code_execution is run by anthropicCodeExecution"]);
  assert.match(text(await tools().anthropic(use("web_search", { query: "1" }))), /^Error: unknown tool "web_search"; use one of run_code, /);
  await assert.rejects(tools().anthropic({ role: "assistant", content: [] }), /give one block of a message's content at a time/);
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
  const slow = await provider.execute("sleep 60", 1000, "bash");
  assert.deepEqual([slow.exitCode, slow.stderr.endsWith("TimeoutError: the code took longer than it may\n")], [124, true]);
  const sandbox = await provider.createSandbox();
  await provider.cleanup();
  await provider.cleanup();
  assert.equal(await sandbox.isRunning(), false);
});
