// Commands, their input and output, terminals, git.
import assert from "node:assert/strict";
import { test } from "node:test";
import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, SandboxError, TimeoutError } from "e2b";
import { shared, until } from "./shared.mjs";

const box = shared();
const run = (command, options) => box.sandbox.commands.run(command, options);
const isThere = async (pid) => (await box.sandbox.commands.list()).some((process) => process.pid === pid);

test("output and exit", async () => {
  const { stdout, stderr, exitCode } = await run("echo out; echo err >&2");
  assert.deepEqual({ stdout, stderr, exitCode }, { stdout: "out\n", stderr: "err\n", exitCode: 0 });
});

test("a failure is an error", async () => {
  await assert.rejects(run("echo out; echo err >&2; exit 3"), (error) => {
    assert.ok(error instanceof CommandExitError);
    assert.deepEqual([error.exitCode, error.stdout, error.stderr, error.error], [3, "out\n", "err\n", "exit status 3"]);
    return true;
  });
});

test("callbacks get the output", async () => {
  const seen = [];
  await run("echo a; echo b >&2", { onStdout: (text) => seen.push(text), onStderr: (text) => seen.push(text) });
  assert.deepEqual(seen.sort(), ["a\n", "b\n"]);
});

test("large output, and bytes that are not text", async () => {
  const { stdout } = await run("head -c 3000000 /dev/zero | tr '\\0' x; printf '\\303\\274 \\377'");
  assert.equal(stdout.length, 3_000_003);
  assert.ok(stdout.endsWith("xü \ufffd"));
});

test("a login shell of the user", async () => {
  const { stdout } = await run('echo "$0 $HOME $USER $(pwd) $(whoami)"');
  assert.equal(stdout, "/bin/bash /home/user user /home/user user\n");
});

test("the working directory", async () => {
  assert.equal((await run("pwd", { cwd: "/tmp" })).stdout, "/tmp\n");
  await box.sandbox.files.makeDir("work");
  assert.equal((await run("pwd", { cwd: "work" })).stdout, "/home/user/work\n");
  await assert.rejects(run("pwd", { cwd: "/no/such/place" }), InvalidArgumentError);
});

test("users", async () => {
  assert.equal((await run("whoami", { user: "user" })).stdout, "user\n");
  for (const user of ["root", "nobody"]) {
    await assert.rejects(run("whoami", { user }), AuthenticationError);
  }
});

test("a missing command", async () => {
  await assert.rejects(run("no-such-command"), (error) => error instanceof CommandExitError && error.exitCode === 127);
});

test("a timeout kills", async () => {
  await assert.rejects(run("exec sleep 986", { timeoutMs: 500 }), TimeoutError);
  await until("the end of the command", async () => !(await run("ps ax -o args || true")).stdout.includes("sleep 986"));
});

test("in the background, with input", async () => {
  const command = await run("read line; echo got $line", { background: true, stdin: true });
  assert.ok(command.pid > 0);
  await box.sandbox.commands.sendStdin(command.pid, "input\n");
  assert.equal((await command.wait()).stdout, "got input\n");
});

test("input as bytes, and its end", async () => {
  const command = await run("cat; echo end", { background: true, stdin: true });
  await command.sendStdin(new TextEncoder().encode("some "));
  await box.sandbox.commands.closeStdin(command.pid);
  assert.equal((await command.wait()).stdout, "some end\n");
});

test("without input there is an end of file", async () => {
  assert.equal((await run("cat; echo end")).stdout, "end\n");
  const command = await run("sleep 1003", { background: true });
  await assert.rejects(box.sandbox.commands.sendStdin(command.pid, "x"), SandboxError);
  await command.kill();
  await assert.rejects(command.wait(), CommandExitError);
});

test("kill", async () => {
  const command = await run("sleep 1000", { background: true });
  assert.equal(await command.kill(), true);
  await assert.rejects(command.wait(), (error) => error instanceof CommandExitError && error.error === "signal: killed");
  assert.equal(await box.sandbox.commands.kill(command.pid), false);
  assert.equal(await box.sandbox.commands.kill(999_999), false);
});

test("the list of commands", async () => {
  const command = await run("sleep 1001", { background: true });
  const found = (await box.sandbox.commands.list()).find((process) => process.pid === command.pid);
  assert.deepEqual([found.cmd, found.args], ["/bin/bash", ["-l", "-c", "sleep 1001"]]);
  await command.kill();
  await assert.rejects(command.wait(), CommandExitError);
  await until("the end of the command", async () => !(await isThere(command.pid)));
});

test("connect streams later output", async () => {
  const command = await run("read line; echo after $line", { background: true, stdin: true });
  await command.disconnect();
  const seen = [];
  const again = await box.sandbox.commands.connect(command.pid, { onStdout: (text) => seen.push(text) });
  await box.sandbox.commands.sendStdin(command.pid, "x\n");
  assert.equal((await again.wait()).stdout, "after x\n");
  assert.deepEqual(seen, ["after x\n"]);
  await assert.rejects(box.sandbox.commands.connect(999_999), NotFoundError);
});

test("a disconnect does not kill", async () => {
  const command = await run("sleep 1002", { background: true });
  await command.disconnect();
  assert.equal(await isThere(command.pid), true);
  assert.equal(await box.sandbox.commands.kill(command.pid), true);
});

test("many at once", async () => {
  const numbers = Array.from({ length: 20 }, (_, number) => number);
  const all = await Promise.all(numbers.map((number) => run(`echo ${number}`)));
  assert.deepEqual(all.map((one) => one.stdout), numbers.map((number) => `${number}\n`));
});

/** Creates a terminal, and collects its output. */
async function terminal(options = {}) {
  const decoder = new TextDecoder();
  const shown = { text: "" };
  const handle = await box.sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (shown.text += decoder.decode(data, { stream: true })), ...options });
  const type = (text) => box.sandbox.pty.sendInput(handle.pid, new TextEncoder().encode(text));
  return { handle, shown, type };
}

test("a terminal", async () => {
  const { handle, shown, type } = await terminal({ envs: { ABC: "123" }, cwd: "/tmp" });
  await type("echo abc$ABC; pwd; stty size; tty\n");
  await until("the first size", () => shown.text.includes("24 80"));
  await box.sandbox.pty.resize(handle.pid, { cols: 120, rows: 40 });
  await type("stty size; exit\n");
  assert.equal((await handle.wait()).exitCode, 0);
  for (const part of ["abc123", "/tmp", "/dev/pts/", "40 120"]) {
    assert.ok(shown.text.includes(part), part);
  }
});

test("a reconnected terminal", async () => {
  const { handle, type } = await terminal();
  await handle.disconnect();
  let text = "";
  const again = await box.sandbox.pty.connect(handle.pid, { onData: (data) => (text += new TextDecoder().decode(data)) });
  await type("echo a''b; exit\n");
  assert.equal((await again.wait()).exitCode, 0);
  assert.ok(text.includes("ab"));
});

test("a killed terminal", async () => {
  const { handle } = await terminal();
  assert.equal(await box.sandbox.pty.kill(handle.pid), true);
  await assert.rejects(handle.wait(), CommandExitError);
  assert.equal(await box.sandbox.pty.kill(handle.pid), false);
});

test("git", async () => {
  const { git, files } = box.sandbox;
  await git.init("repository", { initialBranch: "main" });
  await files.write("repository/a.txt", "content");
  assert.equal((await git.status("repository")).untrackedCount, 1);
  await git.add("repository");
  await git.commit("repository", "first", { authorName: "Ada", authorEmail: "ada@example.com" });
  await git.createBranch("repository", "side");
  const branches = await git.branches("repository");
  assert.equal(branches.currentBranch, "side");
  assert.deepEqual(branches.branches.sort(), ["main", "side"]);
  assert.equal((await git.status("repository")).isClean, true);
});
