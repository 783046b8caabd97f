// A program that reaches a server by host names with TLS, configured by environment variables.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { Sandbox } from "@e2b/code-interpreter";
import { Template } from "e2b";

const sandbox = await Sandbox.create({ metadata: { by: "names" } });
try {
  assert.equal(sandbox.sandboxDomain, process.env.E2B_DOMAIN);
  assert.equal((await sandbox.commands.run("echo hello")).stdout, "hello\n");
  const background = await sandbox.commands.run("read line; echo got $line", { background: true, stdin: true });
  await sandbox.commands.sendStdin(background.pid, "input\n");
  assert.equal((await background.wait()).stdout, "got input\n");
  await sandbox.files.write("a.txt", "content");
  assert.equal(await sandbox.files.read("a.txt"), "content");
  let seen;
  const event = new Promise((resolve) => (seen = resolve));
  const watch = await sandbox.files.watchDir(".", seen);
  await sandbox.files.write("b.txt", "new");
  assert.equal((await event).name, "b.txt");
  await watch.stop();
  assert.equal((await sandbox.runCode("6 * 7")).text, "42");
  assert.equal(await sandbox.isRunning(), true);
  for (const options of [{}, { useSignatureExpiration: 60 }]) {
    const address = await sandbox.downloadUrl("a.txt", options);
    assert.equal(await (await fetch(address)).text(), "content");
  }
  const server = await sandbox.commands.run("exec python3 -m http.server 8125 --bind 127.0.0.1", { background: true, timeoutMs: 0 });
  const address = `https://${sandbox.getHost(8125)}/a.txt`;
  while ((await fetch(address)).status !== 200);
  assert.equal(await (await fetch(address)).text(), "content");
  await server.kill();
  await sandbox.pause();
  const again = await Sandbox.connect(sandbox.sandboxId);
  assert.equal(await again.files.read("a.txt"), "content");
  assert.deepEqual((await Sandbox.list().nextItems()).map((info) => info.metadata), [{ by: "names" }]);
} finally {
  await sandbox.kill();
}
const fileContextPath = fileURLToPath(new URL(".", import.meta.url));
await Template.build(Template({ fileContextPath }).fromBaseImage().copy("hosts.mjs", "copied"), "by-names");
const built = await Sandbox.create("by-names");
try {
  assert.match(await built.files.read("copied"), /^\/\/ A program that reaches a server/);
} finally {
  await built.kill();
}
console.log("done");
process.exit(0);
