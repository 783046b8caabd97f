// A program for the oldest clients of the second generation, by host names with TLS.
import assert from "node:assert/strict";
import { Sandbox } from "@e2b/code-interpreter";
import { CommandExitError, NotFoundError } from "e2b";

const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { by: "oldest" }, envs: { OWN: "o" } });
try {
  assert.equal(await sandbox.isRunning(), true);
  assert.equal((await sandbox.commands.run("echo $OWN")).stdout, "o\n");
  await assert.rejects(sandbox.commands.run("echo err >&2; exit 3"), (error) => error instanceof CommandExitError && error.exitCode === 3 && error.stderr === "err\n");
  const command = await sandbox.commands.run("sleep 1000", { background: true });
  assert.ok((await sandbox.commands.list()).some((process) => process.pid === command.pid));
  assert.equal(await command.kill(), true);
  await command.wait().catch(() => undefined);
  await sandbox.files.write("a.txt", "content");
  assert.equal(await sandbox.files.read("a.txt"), "content");
  assert.deepEqual((await sandbox.files.list(".")).map((entry) => entry.name), ["a.txt"]);
  await assert.rejects(sandbox.files.read("none"), NotFoundError);
  let seen;
  const event = new Promise((resolve) => (seen = resolve));
  const watch = await sandbox.files.watchDir(".", seen);
  await sandbox.files.write("b.txt", "new");
  assert.equal((await event).name, "b.txt");
  await watch.stop();
  assert.equal((await sandbox.runCode("x = 6\nx * 7")).text, "42");
  assert.equal((await sandbox.runCode("1 / 0")).error.name, "ZeroDivisionError");
  assert.equal(await (await fetch(await sandbox.downloadUrl("a.txt"))).text(), "content");
  assert.deepEqual((await Sandbox.list().nextItems()).map((info) => info.metadata), [{ by: "oldest" }]);
  const again = await Sandbox.connect(sandbox.sandboxId);
  assert.equal(await again.files.read("a.txt"), "content");
} finally {
  await sandbox.kill();
}
assert.equal(await sandbox.isRunning(), false);
console.log("done");
process.exit(0);
