import assert from "node:assert/strict";
import { Sandbox, SandboxError, TimeoutError } from "belljar";
import { live, LABELS, shared } from "./live.js";

const at = shared();
let started = false;

/** A web server inside, on port 8000. */
async function serve(): Promise<Sandbox> {
  const { sandbox } = at;
  if (!started) {
    await sandbox.files.write("www/index.txt", "from inside");
    await sandbox.commands.run("cd www && exec python3 -m http.server 8000", { background: true });
    await sandbox.waitForPort(8000);
    await assert.rejects(sandbox.waitForPort(8001, { timeoutMs: 100 }), (error) => error instanceof TimeoutError && /port 8001/.test(error.message));
    started = true;
  }
  return sandbox;
}

live("a port has to be published", async () => {
  const sandbox = await serve();
  assert.equal((await sandbox.ports.fetch(8000, "/index.txt")).status, 404);
  const port = await sandbox.ports.publish(8000);
  assert.deepEqual([port.port, port.public], [8000, false]);
  const answer = await sandbox.ports.fetch(8000, "/index.txt");
  assert.deepEqual([answer.status, await answer.text()], [200, "from inside"]);
  assert.deepEqual((await sandbox.ports.list()).ports.map((one) => one.port), [8000]);
  assert.deepEqual((await sandbox.getInfo()).ports, [8000]);
  await sandbox.ports.unpublish(8000);
  assert.equal((await sandbox.ports.fetch(8000, "/index.txt")).status, 404);
});

live("an address with a token works without a key", async () => {
  const sandbox = await serve();
  const { token, expiresAt } = await sandbox.ports.publish(8000).then(() => sandbox.ports.createToken(8000, { expires: 60 }));
  assert.ok(expiresAt.getTime() > Date.now());
  const { pathUrl } = await sandbox.ports.publish(8000);
  assert.equal((await fetch(`${pathUrl}index.txt`)).status, 401);
  assert.equal(await (await fetch(`${pathUrl}index.txt`, { headers: { "X-Belljar-Token": token } })).text(), "from inside");
  assert.ok(new URL(await sandbox.getUrl(8000, { expires: "10m" })).href.startsWith("http"));
});

live("a public port needs no credentials", async () => {
  const sandbox = await serve();
  const { pathUrl } = await sandbox.ports.publish(8000, { public: true });
  assert.equal(await (await fetch(`${pathUrl}index.txt`)).text(), "from inside");
  assert.ok(await sandbox.getUrl(8000, { public: true }));
  await sandbox.ports.publish(8000, { public: false });
});

live("the key does not go inside", async () => {
  await using sandbox = await Sandbox.create({ labels: LABELS });
  const program = "import http.server\nclass H(http.server.BaseHTTPRequestHandler):\n  def do_POST(self):\n    body = self.rfile.read(int(self.headers['content-length']))\n    self.send_response(200); self.end_headers(); self.wfile.write((str(self.headers) + body.decode()).encode())\nhttp.server.HTTPServer(('127.0.0.1', 9000), H).serve_forever()\n";
  await sandbox.files.write("echo.py", program);
  await sandbox.commands.run("python3 echo.py", { background: true });
  await sandbox.waitForPort(9000);
  await sandbox.ports.publish(9000);
  const seen = await (await sandbox.ports.fetch(9000, "/", { method: "POST", body: "the body", headers: { "X-Mine": "yes" } })).text();
  assert.match(seen, /X-Mine: yes/i);
  assert.match(seen, /the body$/);
  assert.ok(!seen.includes(process.env["BELLJAR_API_KEY"] as string));
});

live("a port on which nothing listens says so", async () => {
  const sandbox = await serve();
  await sandbox.ports.publish(9999);
  assert.equal((await sandbox.ports.fetch(9999, "/")).status, 502);
  await assert.rejects(sandbox.ports.publish(0), SandboxError);
});

live("host names of ports", async () => {
  const { sandbox } = at;
  const { host } = await sandbox.getInfo();
  if (host === null) {
    assert.throws(() => sandbox.getHost(8000), { name: "InvalidArgumentError" });
  } else {
    assert.equal(sandbox.getHost(8000), host.replace("{port}", "8000"));
  }
  const withDomain = await Sandbox.connect(sandbox.sandboxId, { domain: "sandbox.example.com" });
  assert.equal(withDomain.getHost(8000), `8000-${sandbox.sandboxId}.sandbox.example.com`);
});
