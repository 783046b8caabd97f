import assert from "node:assert/strict";
import { CommandExitError, CommandTimeoutError, ConflictError, InvalidArgumentError, NotFoundError, ProcessNotFoundError, SandboxError } from "belljar";
import { live, shared } from "./live.js";
import { until } from "./wait.js";

const at = shared();

live("a line for the shell", async () => {
  const result = await at.sandbox.commands.run("echo out; echo err >&2");
  assert.deepEqual([result.stdout, result.stderr, result.exitCode, result.signal, result.outcome], ["out\n", "err\n", 0, null, { kind: "exited", code: 0 }]);
  assert.ok((result.wallMs ?? 0) > 0);
});

live("a program and its arguments, which no shell sees", async () => {
  assert.equal((await at.sandbox.commands.run(["printf", "%s|", "$HOME", "a b", "*", "ü"])).stdout, "$HOME|a b|*|ü|");
});

live("an exit code is an error, unless it is not to be", async () => {
  await assert.rejects(at.sandbox.commands.run("echo why >&2; exit 7"), (error) => {
    assert.ok(error instanceof CommandExitError && error instanceof SandboxError);
    assert.deepEqual([error.exitCode, error.stderr], [7, "why\n"]);
    assert.match(error.message, /exit code 7: why/);
    return true;
  });
  assert.equal((await at.sandbox.commands.run("exit 7", { check: false })).exitCode, 7);
});

live("a signal is no exit code", async () => {
  const result = await at.sandbox.commands.run("kill -TERM $$", { check: false });
  assert.deepEqual([result.exitCode, result.signal, result.outcome.kind], [null, "SIGTERM", "signalled"]);
});

live("a working directory and variables", async () => {
  const result = await at.sandbox.commands.run('pwd; echo "$A-$B"', { cwd: "/tmp", envs: { A: "1", B: "zwei ü" } });
  assert.equal(result.stdout, "/tmp\n1-zwei ü\n");
});

live("standard input, as text and as bytes", async () => {
  assert.equal((await at.sandbox.commands.run("cat", { stdin: "grüße\n" })).stdout, "grüße\n");
  const bytes = new Uint8Array([0, 1, 0xfe, 0xff]);
  assert.deepEqual((await at.sandbox.commands.run("cat", { stdin: bytes })).stdoutBytes, bytes);
});

live("output that is no text", async () => {
  const result = await at.sandbox.commands.run("printf '\\377\\000\\101'");
  assert.deepEqual([...result.stdoutBytes], [0xff, 0, 0x41]);
});

live("output as it comes", async () => {
  const out: string[] = [];
  const err: string[] = [];
  const result = await at.sandbox.commands.run("for i in 1 2 3; do echo out$i; echo err$i >&2; done", { onStdout: (text) => void out.push(text), onStderr: (text) => void err.push(text) });
  assert.deepEqual([out.join(""), err.join("")], ["out1\nout2\nout3\n", "err1\nerr2\nerr3\n"]);
  assert.equal(result.stdout, "out1\nout2\nout3\n");
});

live("output comes before the command ends", async () => {
  let first = "";
  const pending = at.sandbox.commands.run("echo now; while [ ! -e go ]; do sleep 0.02; done; rm go", { onStdout: (text) => void (first += text), timeoutMs: 30_000 });
  await until("the first line", () => first === "now\n");
  await at.sandbox.files.write("go", "");
  await pending;
});

live("much output, streamed", async () => {
  let bytes = 0;
  const result = await at.sandbox.commands.run("head -c 20000000 /dev/zero | tr '\\0' x", { onStdout: (text) => void (bytes += text.length) });
  assert.equal(bytes, 20_000_000);
  assert.equal(result.stdout.length + result.stdoutOmittedBytes, 20_000_000);
});

live("much output, kept in part", async () => {
  const result = await at.sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x", { output: "64k" });
  assert.ok(result.stdoutBytes.length <= 64 * 1024);
  assert.equal(result.stdoutBytes.length + result.stdoutOmittedBytes, 3_000_000);
});

live("a command's time runs out", async () => {
  await assert.rejects(at.sandbox.commands.run("echo begun; sleep 60", { timeoutMs: 500 }), (error) => error instanceof CommandTimeoutError && error.result.stdout === "begun\n");
  const result = await at.sandbox.commands.run("sleep 60", { timeoutMs: 300, check: false });
  assert.equal(result.outcome.kind, "timed_out");
});

live("an abort ends the command", async () => {
  const controller = new AbortController();
  const reason = new Error("enough");
  const pending = at.sandbox.commands.run("echo $$ > pid; sleep 300", { signal: controller.signal });
  await until("it runs", async () => (await at.sandbox.files.exists("pid")) && (await at.sandbox.files.read("pid")) !== "");
  controller.abort(reason);
  await assert.rejects(pending, (error) => error === reason);
  await until("it is gone", async () => (await at.sandbox.commands.run("kill -0 $(cat pid)", { check: false })).exitCode !== 0);
});

live("the same key runs a command once", async () => {
  const idempotencyKey = `once-${Date.now()}`;
  for (let count = 0; count < 2; count++) {
    await at.sandbox.commands.run("echo x >> once.txt", { idempotencyKey });
  }
  assert.equal(await at.sandbox.files.read("once.txt"), "x\n");
});

live("what cannot be run says so", async () => {
  assert.equal((await at.sandbox.commands.run("no-such-program", { check: false })).exitCode, 127);
  await assert.rejects(at.sandbox.commands.run(["/no/such/program"]), SandboxError);
  await assert.rejects(at.sandbox.commands.run([]), InvalidArgumentError);
  await assert.rejects(at.sandbox.commands.run("true", { cwd: "/no/such/directory" }), SandboxError);
});

live("a command in the background", async () => {
  const heard: string[] = [];
  const handle = await at.sandbox.commands.run("echo begun; while [ ! -e end ]; do sleep 0.02; done; rm end; echo done", { background: true, onStdout: (text) => void heard.push(text) });
  assert.ok(handle.pid > 1 && handle.process > 0);
  await until("it has begun", () => handle.stdout === "begun\n");
  const listed = (await at.sandbox.commands.list()).find((one) => one.pid === handle.pid);
  assert.deepEqual([listed?.running, listed?.exitCode, listed?.process], [true, null, handle.process]);
  await at.sandbox.files.write("end", "");
  const result = await handle.wait();
  assert.deepEqual([result.exitCode, result.stdout, heard.join("")], [0, "begun\ndone\n", "begun\ndone\n"]);
});

live("a command in the background that fails", async () => {
  const handle = await at.sandbox.commands.run("echo why >&2; exit 3", { background: true });
  await assert.rejects(handle.wait(), (error) => error instanceof CommandExitError && error.exitCode === 3 && error.stderr === "why\n");
  assert.equal(handle.exitCode, 3);
});

live("a command in the background is killed with its children", async () => {
  const { commands, files } = at.sandbox;
  // The child writes its heartbeats to a file: processes inside do not see each other.
  const handle = await commands.run("(while :; do echo x >> beats; sleep 0.02; done) & sleep 300", { background: true });
  const beats = async (): Promise<number> => ((await files.exists("beats")) ? (await files.getInfo("beats")).size : 0);
  await until("the child beats", async () => (await beats()) > 4);
  assert.equal(await handle.kill(), true);
  const result = await handle.wait({ check: false });
  assert.equal(result.signal, "SIGKILL");
  let before = -1;
  await until("the child is gone", async () => {
    const stopped = before === (await beats());
    before = await beats();
    await new Promise((resolve) => setTimeout(resolve, 200));
    return stopped;
  });
  assert.equal(await handle.kill(), false);
  assert.equal(await commands.kill(handle.pid), false);
});

live("a pid is the one that programs inside see", async () => {
  const { commands } = at.sandbox;
  const handle = await commands.run("echo $$; read -r word; echo $word", { background: true, stdin: true });
  await until("it has told its own", () => handle.stdout === `${handle.pid}\n`);
  assert.equal((await commands.getInfo(handle.pid)).process, handle.process);
  assert.deepEqual((await commands.getInfo(handle)).argv, (await commands.getInfo(handle.pid)).argv);
  await commands.sendStdin(handle, "word\n");
  assert.equal((await handle.wait()).stdout, `${handle.pid}\nword\n`);
  assert.equal(await commands.kill(handle), false);
  assert.equal(await commands.kill(999_999), false);
});

live("a signal of one's own choice", async () => {
  const handle = await at.sandbox.commands.run("trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.02; done", { background: true });
  await until("it is ready", () => handle.stdout === "ready\n");
  assert.equal(await at.sandbox.commands.sendSignal(handle.pid, "SIGINT"), true);
  const result = await handle.wait({ check: false });
  assert.deepEqual([result.exitCode, result.stdout], [5, "ready\ncaught\n"]);
});

live("standard input that stays open", async () => {
  const handle = await at.sandbox.commands.run("while read -r line; do echo \"got $line\"; done; echo end", { background: true, stdin: true });
  await handle.sendStdin("one\n");
  await until("the first answer", () => handle.stdout === "got one\n");
  await at.sandbox.commands.sendStdin(handle.pid, new TextEncoder().encode("zwei ü\n"));
  await until("the second answer", () => handle.stdout === "got one\ngot zwei ü\n");
  await handle.closeStdin();
  assert.equal((await handle.wait()).stdout, "got one\ngot zwei ü\nend\n");
});

live("large standard input that stays open", async () => {
  const handle = await at.sandbox.commands.run("wc -c", { background: true, stdin: true });
  const piece = "x".repeat(1024 * 1024);
  for (let count = 0; count < 4; count++) {
    await handle.sendStdin(piece);
  }
  await handle.closeStdin();
  assert.equal((await handle.wait()).stdout.trim(), String(4 * 1024 * 1024));
});

live("a process is listened to again, from the beginning", async () => {
  const handle = await at.sandbox.commands.run("echo first; while [ ! -e end2 ]; do sleep 0.02; done; echo last", { background: true });
  await until("it has begun", () => handle.stdout === "first\n");
  handle.disconnect();
  await assert.rejects(handle.wait(), (error) => error instanceof SandboxError && error.code === "disconnected");
  const again = await at.sandbox.commands.connect(handle.pid);
  await at.sandbox.files.write("end2", "");
  assert.equal((await again.wait()).stdout, "first\nlast\n");
  await assert.rejects(at.sandbox.commands.connect(999_999), (error) => error instanceof NotFoundError && error.code === "process_not_found");
});

live("output as a stream, from any byte", async () => {
  const handle = await at.sandbox.commands.run("printf 0123456789; while [ ! -e end3 ]; do sleep 0.02; done; printf abc", { background: true });
  await until("it has begun", () => handle.stdout === "0123456789");
  const now: string[] = [];
  for await (const chunk of at.sandbox.commands.output(handle.pid, { stdout: 7, follow: false })) {
    now.push(new TextDecoder().decode(chunk.data));
  }
  assert.equal(now.join(""), "789");
  await at.sandbox.files.write("end3", "");
  const all: string[] = [];
  for await (const chunk of at.sandbox.commands.output(handle.pid)) {
    all.push(new TextDecoder().decode(chunk.data));
  }
  assert.equal(all.join(""), "0123456789abc");
});

live("many commands at once", async () => {
  const results = await Promise.all(Array.from({ length: 20 }, (_, index) => at.sandbox.commands.run(`echo ${index}`)));
  assert.deepEqual(results.map((result) => result.stdout), results.map((_, index) => `${index}\n`));
});

live("a session remembers", async () => {
  await using session = await at.sandbox.sessions.create({ cwd: "/tmp", envs: { WORD: "hello" } });
  assert.equal((await session.run("pwd; echo $WORD")).stdout, "/tmp\nhello\n");
  await session.run("cd /; COUNT=1; greet() { echo \"greetings $1\"; }");
  const result = await session.run("COUNT=$((COUNT+1)); pwd; echo $COUNT; greet you");
  assert.deepEqual([result.stdout, result.sessionState], ["/\n2\ngreetings you\n", "preserved"]);
  assert.ok((await at.sandbox.sessions.list()).some((one) => one.sessionId === session.sessionId && one.shell === session.shell));
  await assert.rejects(session.run("false"), CommandExitError);
  assert.equal(await session.close(), true);
  assert.equal(await session.close(), false);
  await assert.rejects(session.run("true"), (error) => error instanceof NotFoundError || error instanceof ConflictError);
});

live("input is streamed", async () => {
  const { commands } = at.sandbox;
  const handle = await commands.run("cat", { background: true, stdin: true });
  assert.equal(await commands.streamInput(handle.pid, ["one\n", new TextEncoder().encode("two\n"), "ü\n"]), 11);
  assert.equal(await handle.streamInput(new Blob(["blob\n"]).stream()), 5);
  const later = async function* (): AsyncGenerator<string> {
    yield "later\n";
  };
  await handle.streamInput(later(), { close: true });
  assert.equal((await handle.wait()).stdout, "one\ntwo\nü\nblob\nlater\n");
  await assert.rejects(commands.streamInput(999_999, ["x"]), ProcessNotFoundError);
});
