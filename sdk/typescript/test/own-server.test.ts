// The server of this user's home, for programs that name none.

import assert from "node:assert/strict";
import { chmod, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import * as belljar from "belljar";
import { Belljar, Sandbox } from "belljar";
import { until } from "./wait.js";

const skip = process.env["BELLJAR_BIN"] ? undefined : "needs a program: set BELLJAR_BIN";

/** Time for a server without sandboxes to end, in milliseconds. */
const GONE_MS = 60_000;

/** Runs with an environment that names neither a server nor a key. */
async function withEnvironment(changes: Record<string, string>, run: () => Promise<void>): Promise<void> {
  const kept = { ...process.env };
  for (const name of ["BELLJAR_API_KEY", "BELLJAR_API_URL", "BELLJAR_DOMAIN"]) {
    delete process.env[name];
  }
  Object.assign(process.env, changes);
  try {
    await run();
  } finally {
    process.env = kept;
  }
}

/** Reports whether a process of a home is running. */
async function isUsed(home: string): Promise<boolean> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const lines = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")));
  return lines.some((line) => line.includes(home));
}

test("the server of the home is started when it is needed", { skip, timeout: 120_000 }, async () => {
  const home = await mkdtemp(join(tmpdir(), "belljar-own-"));
  await withEnvironment({ BELLJAR_HOME: home, BELLJAR_SERVER_LINGER: "1s" }, async () => {
    assert.equal(await isUsed(home), false);
    const client = new Belljar();
    const sandbox = await client.sandboxes.create({ timeoutMs: 60_000 });
    assert.equal((await sandbox.commands.run("echo own")).stdout, "own\n");
    assert.equal((await sandbox.runCode("2**64")).text, "18446744073709551616");
    // Bodies of all kinds, and a body that is read piece by piece.
    await sandbox.files.write("text", "höher");
    await sandbox.files.write("bytes", new Uint8Array(300_000).fill(7));
    await sandbox.files.write("stream", new Blob(["piece"]).stream());
    assert.equal(await sandbox.files.read("text"), "höher");
    assert.equal((await sandbox.files.read("bytes", { format: "bytes" })).length, 300_000);
    assert.equal(await sandbox.files.read("stream"), "piece");
    // A WebSocket.
    let shown = "";
    const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (shown += new TextDecoder().decode(data)) });
    await terminal.sendInput("echo $((6*7))\n");
    await until("the terminal shows the result", () => shown.includes("42"), GONE_MS);
    await terminal.kill();
    // It has no address that a URL could name.
    await assert.rejects(sandbox.downloadUrl("text"), /no address but its socket/);
    await assert.rejects(sandbox.getUrl(8000), /no address but its socket/);
    const stopped = new AbortController();
    const running = sandbox.commands.run("sleep 100", { signal: stopped.signal });
    stopped.abort(new Error("enough"));
    await assert.rejects(running, /enough/);
    await sandbox.kill();
    // The server ends, and the next request starts another.
    await until("the server ends", async () => !(await isUsed(home)), GONE_MS);
    assert.deepEqual(await client.sandboxes.list().all(), []);
    await until("the server ends", async () => !(await isUsed(home)), GONE_MS);
  });
  await rm(home, { recursive: true });
});

test("what is missing is one sentence", { skip: process.platform === "linux" ? undefined : "servers run on Linux" }, async () => {
  await withEnvironment({ PATH: "/nonexistent", BELLJAR_BIN: "" }, async () => {
    await assert.rejects(Sandbox.create(), (error) => error instanceof belljar.AuthenticationError && /no program belljar on this machine/.test(error.message));
  });
  const folder = await mkdtemp(join(tmpdir(), "belljar-own-"));
  const program = join(folder, "belljar");
  await writeFile(program, "#!/bin/sh\necho 'belljar: cannot make \"/x\": Read-only file system' >&2\nexit 125\n");
  await chmod(program, 0o755);
  await withEnvironment({ BELLJAR_BIN: program }, async () => {
    const client = new Belljar({ maxRetries: 0 });
    await assert.rejects(client.me(), (error) => error instanceof belljar.ConnectionError && /no server could be started with .*: belljar: cannot make .*Read-only file system$/.test(error.message));
  });
  await rm(folder, { recursive: true });
});
