import assert from "node:assert/strict";
import { createHash, randomUUID } from "node:crypto";
import { type ApprovalInfo, AuthenticationError, Belljar, BuildError, type BuildEvent, ConflictError, ForbiddenError, InvalidArgumentError, KeyNotFoundError, NotFoundError, RateLimitError, Sandbox, SandboxError, Secret, SecretNotFoundError, Template } from "belljar";
import { LABELS, live, missingTenants } from "./live.js";
import { collect, until } from "./wait.js";

live("the server says how it is, without a key", async () => {
  const client = new Belljar({ apiKey: "" });
  assert.equal(await client.health(), true);
  assert.equal(await client.ready(), true);
  const version = await client.version();
  assert.match(version.version, /^\d+\.\d+\.\d+/);
});

live("without a key, or with a wrong one, there is nothing", async () => {
  const kept = process.env["BELLJAR_API_KEY"];
  delete process.env["BELLJAR_API_KEY"];
  try {
    await assert.rejects(new Belljar().me(), AuthenticationError);
  } finally {
    process.env["BELLJAR_API_KEY"] = kept;
  }
  await assert.rejects(new Belljar({ apiKey: `bj_${"0".repeat(64)}` }).me(), (error) => error instanceof AuthenticationError && error.code === "unauthenticated");
  await assert.rejects(Sandbox.create({ apiKey: "nonsense" }), AuthenticationError);
});

live("code is screened", async () => {
  const client = new Belljar();
  const report = await client.screen("import os\nos.system('rm -rf /')");
  assert.deepEqual([report.language, report.risk, report.complete, report.leftOut], ["python", "high", true, 0]);
  assert.match(report.advice, /not a wall/);
  const found = report.findings.find((one) => one.rule === "destructive-command");
  assert.deepEqual([found?.line, found?.endLine, found?.name, found?.inside, found?.severity], [2, 2, "rm", "bash", "high"]);
  const denied = await client.screen("const a = require('node:fs')", "javascript", { denyModules: ["fs"] });
  assert.deepEqual(denied.findings.map(({ rule, inside }) => [rule, inside]), [["module-denied", null]]);
  assert.deepEqual((await client.screen("import os, re", "python", { allowModules: ["re"] })).findings.map(({ name }) => name), ["os"]);
  await assert.rejects(client.screen("x", "cobol"), (error) => error instanceof InvalidArgumentError && error.field === "language");
  await assert.rejects(client.screen("x", "python", { denyModules: "os" as never }), InvalidArgumentError);
});

live("network policies are checked", async () => {
  const { network, sandboxes } = new Belljar();
  const { presets, presetsVersion, most } = await network.offer();
  const hosts = presets.find(({ name }) => name === "pip")?.hosts ?? [];
  assert.deepEqual(hosts.find(({ name }) => name === "pypi.org")?.ports, [443]);
  assert.deepEqual([presetsVersion >= 1, most.key], [true, null]);
  const found = await network.check({ network: { presets: ["pip"] }, hosts: ["pypi.org", "example.com:80"] });
  assert.deepEqual(found.hosts.map(({ host, allowed, missing }) => [host, allowed, missing]), [["pypi.org:443", true, null], ["example.com:80", false, "example.com:80"]]);
  assert.deepEqual([found.problems, found.beyond], [[], null]);
  const wrong = await network.check({ network: { allow: ["a_b.example"] }, hosts: ["pypi.org"] });
  assert.deepEqual(wrong.problems.map(({ field, value }) => [field, value]), [["network.allow", "a_b.example"]]);
  assert.deepEqual([wrong.network, wrong.hosts], [null, []]);
  const sandbox = await sandboxes.create({ timeoutMs: 60_000, network: { allow: ["api.example.com"] } });
  assert.deepEqual((await network.check({ sandboxId: sandbox.sandboxId, hosts: ["api.example.com"] })).hosts.map(({ allowed }) => allowed), [true]);
  await sandbox.kill();
  await assert.rejects(network.check({ hosts: "example.com" as never }), InvalidArgumentError);
});

live("a tool is described before it is stored", async () => {
  const { tools } = new Belljar();
  const definition = { description: "Analyses data.", languages: ["python"], timeoutMs: 30_000, limits: { memory: "1g" }, network: { presets: ["pip"] } };
  const described = await tools.schema("analyse", "mcp", { definition });
  assert.deepEqual([described["name"], described["description"], typeof described["inputSchema"]], ["analyse", "Analyses data.", "object"]);
  assert.equal(typeof (await tools.schema("analyse", "anthropic", { definition }))["input_schema"], "object");
  assert.equal((await tools.schema("analyse", "openai", { definition }))["type"], "function");
  // Nothing is stored.
  await assert.rejects(tools.schema("analyse"), NotFoundError);
  await assert.rejects(tools.schema("analyse", "mcp", { definition: { ...definition, languages: "python" as never } }), InvalidArgumentError);
  await assert.rejects(tools.schema("analyse", "mcp", { definition: { ...definition, approval: "sometimes" as never } }), InvalidArgumentError);
});

live("who the key belongs to", async () => {
  const me = await new Belljar().me();
  assert.deepEqual([me.role, typeof me.tenant, typeof me.usage.sandboxes], ["admin", "string", "number"]);
});

live("keys are made, used and revoked", async () => {
  const client = new Belljar();
  const me = await client.me();
  const made = await client.keys.create({ name: "typescript", role: "user", expires: "1h", quotas: { sandboxes: 1 } });
  assert.match(made.key, /^bj_[0-9a-f]{64}$/);
  assert.deepEqual([made.role, made.tenant, made.quotas.sandboxes, made.revokedAt], ["user", me.tenant, 1, null]);
  assert.ok(made.expiresAt instanceof Date);
  const listed = (await client.keys.list({ limit: 1 }).all()).find((key) => key.keyId === made.keyId);
  assert.equal(listed?.name, "typescript");
  assert.ok(!JSON.stringify(listed).includes(made.key));

  const user = new Belljar({ apiKey: made.key, maxRetries: 0 });
  assert.equal((await user.me()).role, "user");
  await assert.rejects(user.keys.list().nextItems(), ForbiddenError);
  await assert.rejects(user.keys.update(made.keyId, { quotas: {} }), ForbiddenError);
  await assert.rejects(client.keys.update("none-such", { quotas: {} }), KeyNotFoundError);
  await assert.rejects(user.audit.list().nextItems(), ForbiddenError);
  {
    await using sandbox = await user.sandboxes.create({ labels: LABELS });
    await assert.rejects(user.sandboxes.create({ labels: LABELS }), (error) => error instanceof RateLimitError && error.code === "quota_exceeded");
    assert.equal((await user.sandboxes.connect(sandbox.sandboxId)).sandboxId, sandbox.sandboxId);
    assert.equal((await user.sandboxes.getInfo(sandbox.sandboxId)).tenant, me.tenant);
  }
  const changed = await client.keys.update(made.keyId, { quotas: { sandboxes: 2, storedSecrets: false } });
  assert.deepEqual([changed.quotas.sandboxes, changed.quotas.storedSecrets], [2, false]);
  const renamed = await client.keys.update(made.keyId, { name: "renamed", role: "read", expires: "1h" });
  assert.deepEqual([renamed.name, renamed.role, renamed.quotas.sandboxes, renamed.usage.sandboxes], ["renamed", "read", 2, 0]);
  assert.ok(renamed.expiresAt instanceof Date);
  await client.keys.revoke(made.keyId);
  await assert.rejects(user.me(), AuthenticationError);
  assert.ok((await client.keys.list().all()).find((key) => key.keyId === made.keyId)?.revokedAt instanceof Date);
});

live("calls wait for another person", async () => {
  const { keys } = new Belljar();
  const agent = await keys.create({ name: "agent", owner: "agent", approval: "always" });
  const ann = await keys.create({ name: "ann", role: "approver", owner: "ann" });
  const own = await keys.create({ name: "own", role: "approver", owner: "agent" });
  assert.deepEqual([agent.owner, agent.approval, ann.role], ["agent", "always", "approver"]);
  const { approvals } = new Belljar({ apiKey: ann.key });
  const find = async () => (await approvals.list({ state: "pending", limit: 100 }).all()).find((one) => one.keyId === agent.keyId);
  const waiting = async () => {
    await until("a call waits", async () => (await find()) !== undefined);
    return (await find()) as ApprovalInfo;
  };
  try {
    await using sandbox = await Sandbox.create({ apiKey: agent.key, labels: LABELS });
    const running = sandbox.commands.run("echo yes");
    const asked = await waiting();
    assert.deepEqual([asked.state, asked.requester, asked.request["sandbox"], asked.decision], ["pending", "agent", sandbox.sandboxId, null]);
    assert.deepEqual(asked.request["command"], { encoding: "utf-8", data: "echo yes" });
    await assert.rejects(new Belljar({ apiKey: own.key }).approvals.approve(asked.approvalId), (error) => error instanceof ForbiddenError && error.code === "own_approval");
    assert.deepEqual(await new Belljar({ apiKey: agent.key }).approvals.get(asked.approvalId), asked);
    const given = await approvals.approve(asked.approvalId, { note: "fine", uses: 2, within: "1m" });
    assert.deepEqual([given.decision?.person, given.decision?.note, given.decision?.budget?.uses], ["ann", "fine", 2]);
    assert.equal((await running).stdout, "yes\n");
    assert.equal((await sandbox.commands.run("echo yes")).stdout, "yes\n");
    await assert.rejects(approvals.approve(asked.approvalId), (error) => error instanceof ConflictError && error.code === "approval_decided");
    const refused = assert.rejects(sandbox.runCode("echo yes", { language: "bash" }), /denied by .*: not now/);
    assert.equal((await approvals.deny((await waiting()).approvalId, { note: "not now" })).state, "denied");
    await refused;
    await assert.rejects(approvals.get("apr_0"), NotFoundError);
  } finally {
    await Promise.all([agent, ann, own].map((key) => keys.revoke(key.keyId)));
  }
});

live("approvals show the code that calls", async () => {
  const { keys } = new Belljar();
  const [agent, ann] = await Promise.all([keys.create({ name: "caller", owner: "caller" }), keys.create({ name: "judge", role: "approver", owner: "judge" })]);
  const admin = (method: string, path: string, body?: object) =>
    fetch(`${process.env["BELLJAR_API_URL"]}/v1/tools${path}`, {
      method,
      headers: { authorization: `Bearer ${process.env["BELLJAR_API_KEY"]}`, "content-type": "application/json" },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  const name = `asked-${process.pid}`;
  assert.equal((await admin("POST", "", { name, description: "Asks first.", languages: ["bash"], approval: "always" })).status, 201);
  const { approvals } = new Belljar({ apiKey: ann.key });
  const find = async () => (await approvals.list({ state: "pending" }).all()).find((one) => one.keyId === agent.keyId);
  try {
    await using sandbox = await Sandbox.create({ apiKey: agent.key, labels: LABELS });
    const code = `import belljar\nbelljar.tools["${name}"](code="echo yes")["stdout"]  # ä`;
    const running = sandbox.runCode(code, { tools: [name] });
    await until("a call waits", async () => (await find()) !== undefined);
    const asked = (await find()) as ApprovalInfo;
    const { execution, ...shown } = asked.callingCode ?? assert.fail("no calling code");
    const codeSha256 = createHash("sha256").update(code).digest("hex");
    assert.deepEqual(shown, { sandboxId: sandbox.sandboxId, context: "python", language: "python", code, codeBytes: Buffer.byteLength(code), codeSha256 });
    await approvals.approve(asked.approvalId);
    const done = await running;
    assert.deepEqual([done.text, done.execution], ["'yes\\n'", execution]);
  } finally {
    await admin("DELETE", `/${name}`);
    await Promise.all([agent, ann].map((key) => keys.revoke(key.keyId)));
  }
});

live("secrets are kept, changed and removed", async () => {
  const { secrets } = new Belljar();
  const name = `typescript-${process.pid}`;
  const made = await secrets.create({ name, value: "s3cret-value", metadata: { owner: "test" } });
  assert.match(made.secretId, /^sec_[0-9a-f]{20}$/);
  assert.deepEqual([made.name, made.version, made.metadata], [name, 1, { owner: "test" }]);
  await assert.rejects(secrets.create({ name, value: "other-value" }), (error) => error instanceof ConflictError && error.code === "name_taken");
  const changed = await secrets.update(made.secretId, { value: "s3cret-later" });
  assert.deepEqual([changed.version, changed.metadata], [2, { owner: "test" }]);
  const found = (await secrets.list({ limit: 1 }).all()).find((secret) => secret.name === name);
  assert.deepEqual(found, await secrets.get(name));
  assert.ok(!JSON.stringify([made, changed, found]).includes("s3cret"));
  await secrets.delete(name);
  await assert.rejects(secrets.get(name), NotFoundError);
});

live("secrets are for their hosts", async () => {
  const { secrets, sandboxes } = new Belljar();
  const name = `typescript-hosts-${process.pid}`;
  const made = await secrets.create({ name, value: "s3cret-value", hosts: ["good.example"], header: "x-key" });
  try {
    assert.deepEqual([made.hosts, made.header], [["good.example"], "x-key"]);
    assert.deepEqual((await secrets.update(name, { value: "s3cret-later" })).hosts, ["good.example"]);
    const changed = await secrets.update(name, { value: "s3cret-last", hosts: ["*.good.example", "other.example"] });
    assert.deepEqual([changed.hosts, changed.header], [["other.example", "*.good.example"], null]);
    assert.deepEqual((await secrets.list().all()).find((secret) => secret.name === name), changed);
    const elsewhere = { allow: ["bad.example"], headers: [{ host: "bad.example", header: "x-key", value: `\${secrets.${name}}` }] };
    await assert.rejects(sandboxes.create({ network: elsewhere, labels: LABELS }), /bad\.example/);
    await assert.rejects(secrets.create({ name: `${name}-b`, value: "s3cret-value", header: "x-key" }), (error) => error instanceof InvalidArgumentError && error.field === "header");
  } finally {
    await secrets.delete(name);
  }
});

const ECHO_HOST = `
from http.server import BaseHTTPRequestHandler, HTTPServer

class Echo(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers["Host"].encode())

HTTPServer(("127.0.0.1", 8000), Echo).serve_forever()
`;

live("policies about TLS, and hosts of ports", async () => {
  const network = { allow: ["good.example"], tls: { "good.example": "terminate" } } as const;
  await using sandbox = await Sandbox.create({ network: { ...network, allow: [...network.allow] }, portHost: "localhost:{port}", labels: LABELS });
  const found = (await sandbox.getInfo()).network;
  assert.ok(typeof found === "object");
  assert.deepEqual(found.tls, network.tls);
  await sandbox.files.write("echo.py", ECHO_HOST);
  await sandbox.commands.run(["python3", "echo.py"], { background: true });
  await sandbox.waitForPort(8000);
  await sandbox.ports.publish(8000);
  assert.equal(await (await sandbox.ports.fetch(8000, "/")).text(), "localhost:8000");
});

live("tenants do not see each other", async () => {
  const client = new Belljar();
  const [one, two] = await Promise.all(["one", "two"].map((tenant) => client.keys.create({ name: tenant, tenant: `typescript-${tenant}` })));
  try {
    await using sandbox = await Sandbox.create({ apiKey: one?.key, labels: LABELS });
    const stranger = { apiKey: two?.key };
    await assert.rejects(Sandbox.connect(sandbox.sandboxId, stranger), (error) => error instanceof NotFoundError && error.code === "sandbox_not_found");
    assert.equal(await Sandbox.kill(sandbox.sandboxId, stranger), false);
    assert.deepEqual(await Sandbox.list(stranger).all(), []);
    assert.equal(await sandbox.isRunning(), true);
  } finally {
    await Promise.all([one, two].map((key) => key && client.keys.revoke(key.keyId)));
  }
}, missingTenants);

live("a key to read with reads", async () => {
  const client = new Belljar();
  const made = await client.keys.create({ name: "reader", role: "read" });
  try {
    await using sandbox = await client.sandboxes.create({ labels: LABELS });
    const reader = new Belljar({ apiKey: made.key });
    assert.equal((await reader.sandboxes.getInfo(sandbox.sandboxId)).state, "running");
    await assert.rejects(reader.sandboxes.create(), ForbiddenError);
    await assert.rejects(reader.sandboxes.kill(sandbox.sandboxId), ForbiddenError);
  } finally {
    await client.keys.revoke(made.keyId);
  }
});

live("a snapshot is a template", async () => {
  const client = new Belljar();
  const name = `typescript-${process.pid}`;
  {
    await using sandbox = await client.sandboxes.create({ labels: LABELS });
    await sandbox.files.write("kept.txt", "kept");
    const template = await sandbox.createSnapshot({ name, note: "a test" });
    assert.deepEqual([template.name, template.kind, template.note], [name, "snapshot", "a test"]);
    assert.deepEqual((await sandbox.listSnapshots().all()).map((one) => one.templateId), [template.templateId]);
    const everything = await Sandbox.listSnapshots().nextItems();
    assert.ok(everything.some((one) => one.templateId === template.templateId) && everything.every((one) => one.kind === "snapshot"));
    assert.deepEqual(await Sandbox.listSnapshots({ sandboxId: "a0000000000000000000" }).all(), []);
    await assert.rejects(sandbox.deleteSnapshot("default"), InvalidArgumentError);
    const second = await sandbox.createSnapshot();
    assert.deepEqual([await Sandbox.deleteSnapshot(second.snapshotId), await sandbox.deleteSnapshot(second.snapshotId)], [true, false]);
  }
  try {
    assert.ok((await client.templates.list({ limit: 1 }).all()).some((template) => template.name === name));
    assert.equal((await client.templates.get(name)).name, name);
    await using copy = await Sandbox.create(name, { labels: LABELS });
    assert.equal(await copy.files.read("kept.txt"), "kept");
  } finally {
    await client.templates.delete(name);
  }
  await assert.rejects(client.templates.get(name), (error) => error instanceof NotFoundError && error.code === "template_not_found");
});

live("the audit log tells, and is whole", async () => {
  const client = new Belljar();
  const sandbox = await client.sandboxes.create({ labels: LABELS });
  await sandbox.commands.run("true");
  await sandbox.kill();
  const records = await client.audit.list({ sandbox: sandbox.sandboxId, limit: 2 }).all();
  assert.ok(records.length >= 3, `${records.length} records`);
  const text = JSON.stringify(records);
  assert.ok(!text.includes(process.env["BELLJAR_API_KEY"] as string));
  const verdict = await client.audit.verify();
  assert.equal(verdict.ok, true);
  const head = await client.audit.head();
  assert.ok(head.seq >= records.length && head.hash.length > 0);
  const lines = new TextDecoder().decode(await collect(await client.audit.export())).trimEnd().split("\n");
  assert.ok(lines.length >= records.length && lines.every((line) => typeof JSON.parse(line) === "object"));
});

live("the server's figures", async () => {
  assert.match(await new Belljar().metrics(), /^# (HELP|TYPE) /m);
});

live("templates are built, exported and imported", async (t) => {
  const { templates, sandboxes } = new Belljar();
  const name = `ts-${Date.now().toString(36)}`;
  const template = new Template(name, { description: 'a "small" one' })
    .setEnvs({ GREETING: "hello ü" })
    .runCmd("echo built > /opt/template/built")
    .copy("package.json", "/opt/template/package.json");
  const events: BuildEvent[] = [];
  let built: Awaited<ReturnType<typeof templates.build>>;
  try {
    built = await templates.build(template, { onEvent: (event) => events.push(event) });
  } catch (error) {
    if (error instanceof SandboxError && (error.status ?? 0) >= 500) {
      t.skip(`this machine builds no templates: ${error.message}`);
      return;
    }
    throw error;
  }
  try {
    assert.deepEqual([built.name, built.kind], [name, "built"]);
    assert.deepEqual(events.flatMap((event) => (event.event === "step" ? [event.kind] : [])), ["env", "run", "copy"]);
    {
      await using sandbox = await sandboxes.create({ template: name, labels: LABELS });
      const said = await sandbox.commands.run("echo $GREETING; cat /opt/template/built; head -c1 /opt/template/package.json");
      assert.equal(said.stdout, "hello ü\nbuilt\n{");
    }
    const again = await templates.import(await new Response(await templates.export(name)).blob(), { name: `${name}-b` });
    assert.equal(again.name, `${name}-b`);
    await templates.delete(again.templateId);
    await assert.rejects(templates.build(new Template(`${name}-c`).runCmd("echo why >&2; exit 7")), (error) => error instanceof BuildError && error.message.includes("why"));
    await assert.rejects(templates.build("name = 7"), InvalidArgumentError);
    await assert.rejects(templates.build(new Template(`${name}-d`).copy("/no/such", "/x")), InvalidArgumentError);
  } finally {
    await templates.delete(name);
  }
});

live("secrets without a client", async () => {
  const name = `typescript-${randomUUID()}`;
  const made = await Secret.create({ name, value: "value" }, { requestTimeoutMs: 30_000 });
  assert.equal((await Secret.update(name, { value: "other" })).version, 2);
  assert.equal((await Secret.get(made.secretId)).name, name);
  assert.ok((await Secret.list()).some((one) => one.secretId === made.secretId));
  await Secret.delete(name);
  await assert.rejects(Secret.get(name), SecretNotFoundError);
});
