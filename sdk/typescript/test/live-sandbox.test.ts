import assert from "node:assert/strict";
import { ConflictError, type CreateOptions, InvalidArgumentError, type NetworkPolicy, type NetworkRecord, NotFoundError, Sandbox, SandboxGoneError } from "belljar";
import { LABELS, live } from "./live.js";
import { until } from "./wait.js";

const create = (options: CreateOptions = {}): Promise<Sandbox> => Sandbox.create({ timeoutMs: 120_000, ...options, labels: { ...LABELS, ...options.labels } });

live("a sandbox is made, used and ended", async () => {
  const sandbox = await create();
  assert.match(sandbox.sandboxId, /^[a-z][a-z0-9]{19}$/);
  assert.equal((await sandbox.commands.run("echo hello")).stdout, "hello\n");
  assert.equal(await sandbox.isRunning(), true);
  assert.equal(await sandbox.kill(), true);
  assert.equal(await sandbox.kill(), false);
  assert.equal(await sandbox.isRunning(), false);
  await assert.rejects(sandbox.commands.run("true"), SandboxGoneError);
});

live("a sandbox that is being created is used", async () => {
  await using sandbox = await create({ wait: false });
  assert.match((await sandbox.getInfo()).state, /^(creating|running)$/);
  assert.equal((await sandbox.commands.run("echo ready")).stdout, "ready\n");
  assert.equal((await sandbox.getInfo()).state, "running");
});

live("a sandbox ends with its block", async () => {
  let id: string;
  {
    await using sandbox = await create();
    id = sandbox.sandboxId;
    assert.equal(await sandbox.isRunning(), true);
  }
  assert.equal(await Sandbox.kill(id), false);
});

live("a sandbox ends with its block even when that throws", async () => {
  let id = "";
  await assert.rejects(async () => {
    await using sandbox = await create();
    id = sandbox.sandboxId;
    throw new RangeError("mine");
  }, RangeError);
  await assert.rejects(Sandbox.connect(id), (error) => error instanceof SandboxGoneError || error instanceof NotFoundError);
});

live("a sandbox is what it was asked to be", async () => {
  await using sandbox = await Sandbox.create("default", {
    name: `typescript-${process.pid}`,
    timeoutMs: 90_000,
    idleTimeoutMs: 60_000,
    onTimeout: "pause",
    autoResume: false,
    labels: { ...LABELS, job: "42" },
    metadata: { other: "word" },
    envs: { GREETING: "hello" },
    limits: { memory: "256m", cpus: 0.5, pids: 64, timeoutMs: 30_000 },
    hostname: "workbench",
    files: [
      { path: "text.txt", data: "text\n" },
      { path: "dir/run.sh", data: "#!/bin/sh\necho ran\n", mode: 0o755 },
      { path: "bytes.bin", data: new Uint8Array([0, 0xff]) },
    ],
  });
  const info = await sandbox.getInfo();
  assert.equal(info.sandboxId, sandbox.sandboxId);
  assert.equal(info.name, `typescript-${process.pid}`);
  assert.deepEqual(info.labels, { ...LABELS, job: "42", other: "word" });
  assert.deepEqual([info.state, info.template, info.onTimeout, info.autoResume, info.idleTimeoutMs, info.network], ["running", "default", "pause", false, 60_000, "disabled"]);
  assert.deepEqual([info.limits.memoryBytes, info.limits.cpus, info.limits.pids, info.limits.timeoutMs], [256 * 1024 * 1024, 0.5, 64, 30_000]);
  const life = (info.expiresAt?.getTime() ?? 0) - info.createdAt.getTime();
  assert.ok(life > 80_000 && life < 100_000, `it lives ${life} ms`);
  assert.ok(info.isolation && info.isolation.layers.length > 0);
  const result = await sandbox.commands.run('echo "$GREETING"; hostname; cat text.txt; ./dir/run.sh; od -An -tx1 bytes.bin');
  assert.deepEqual(result.stdout.split("\n").map((line) => line.trim()), ["hello", "workbench", "text", "ran", "00 ff", ""]);
});

live("a name finds a sandbox, and is taken", async () => {
  const name = `typescript-named-${process.pid}`;
  await using sandbox = await create({ name });
  assert.equal((await Sandbox.connect(name)).sandboxId, sandbox.sandboxId);
  await assert.rejects(create({ name }), (error) => error instanceof ConflictError && error.code === "name_taken");
  assert.equal((await create({ name, ifExists: "return" })).sandboxId, sandbox.sandboxId);
  assert.deepEqual((await Sandbox.list({ name }).all()).map((info) => info.sandboxId), [sandbox.sandboxId]);
});

live("the same key is the same sandbox", async () => {
  const idempotencyKey = `typescript-${process.pid}-${Date.now()}`;
  await using first = await create({ idempotencyKey });
  const second = await create({ idempotencyKey });
  assert.equal(second.sandboxId, first.sandboxId);
  await assert.rejects(create({ idempotencyKey, hostname: "another" }), (error) => error instanceof InvalidArgumentError && error.code === "idempotency_mismatch");
});

live("wrong wishes name the field", async () => {
  for (const [options, field] of [
    [{ timeoutMs: 1 }, "timeout"],
    [{ name: "Not A Name" }, "name"],
    [{ limits: { memory: "many" } }, "limits.memory"],
    [{ limits: { cpus: -1 } }, "limits.cpus"],
    [{ onTimeout: "explode" as never }, "on_timeout"],
    [{ network: "everything" }, "network"],
  ] as const) {
    await assert.rejects(create(options), (error) => {
      assert.ok(error instanceof InvalidArgumentError, String(error));
      assert.equal(error.field, field, error.message);
      assert.ok(error.requestId);
      return true;
    });
  }
  await assert.rejects(create({ template: "no-such-template" }), NotFoundError);
});

live("a sandbox that never was is not found", async () => {
  const id = "a0000000000000000000";
  await assert.rejects(Sandbox.connect(id), (error) => error instanceof NotFoundError && error.code === "sandbox_not_found" && error.status === 404);
  await assert.rejects(Sandbox.getInfo(id), NotFoundError);
  assert.equal(await Sandbox.kill(id), false);
});

live("sandboxes are listed by label, page by page", async () => {
  const labels = { batch: `b-${Date.now()}` };
  const made = await Promise.all([create({ labels }), create({ labels }), create({ labels })]);
  try {
    const ids = made.map((sandbox) => sandbox.sandboxId).sort();
    const list = Sandbox.list({ labels, limit: 2 });
    const first = await list.nextItems();
    assert.deepEqual([first.length, list.hasNext], [2, true]);
    const listed = [...first, ...(await list.nextItems())];
    assert.deepEqual(listed.map((info) => info.sandboxId).sort(), ids);
    const times = (await Sandbox.list({ labels, order: "asc" }).all()).map((info) => info.createdAt.getTime());
    assert.deepEqual(times, [...times].sort((a, b) => a - b));
    assert.deepEqual(await Sandbox.list({ labels, state: "paused" }).all(), []);
    assert.deepEqual(await Sandbox.list({ labels: { ...labels, no: "such" } }).all(), []);
    await made[0]?.kill();
    assert.equal((await Sandbox.list({ labels }).all()).length, 2);
    assert.equal((await Sandbox.list({ labels, state: "gone" }).all()).length, 1);
  } finally {
    await Promise.all(made.map((sandbox) => sandbox.kill()));
  }
});

live("a paused sandbox stands still and goes on where it was", async () => {
  await using sandbox = await create();
  const handle = await sandbox.commands.run("i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done", { background: true });
  await until("it counts", () => handle.stdout.includes("3\n"));
  handle.disconnect();
  assert.equal(await sandbox.pause(), true);
  assert.equal(await sandbox.pause(), false);
  const info = await sandbox.getInfo();
  assert.equal(info.state, "paused");
  assert.ok(info.pausedAt instanceof Date);
  assert.equal(await sandbox.isRunning(), false);
  assert.equal((await sandbox.resume()).state, "running");
  let lines = 0;
  const again = await sandbox.commands.connect(handle.pid, { onStdout: (text) => void (lines += text.split("\n").length - 1) });
  const before = lines;
  await until("it counts on", () => lines > before + 2);
  await again.kill();
});

live("using a paused sandbox resumes it", async () => {
  await using sandbox = await create();
  await sandbox.pause();
  assert.equal((await sandbox.commands.run("echo awake")).stdout, "awake\n");
  assert.equal(await sandbox.isRunning(), true);
  await sandbox.pause();
  assert.equal(await (await Sandbox.connect(sandbox.sandboxId)).isRunning(), true);
});

live("a sandbox's time can be changed, and runs out", async () => {
  await using sandbox = await create();
  const longer = await sandbox.setTimeout(500_000);
  const left = (longer.expiresAt?.getTime() ?? 0) - Date.now();
  assert.ok(left > 400_000 && left < 600_000, `${left} ms are left`);
  await sandbox.setTimeout(1000);
  await until("it is over", async () => !(await sandbox.isRunning()), 20_000);
});

live("labels, limits and manners can be changed", async () => {
  await using sandbox = await create({ labels: { a: "1", b: "2" } });
  const info = await sandbox.update({ labels: { a: null, c: "3" }, limits: { memory: "384m", pids: 100 }, idleTimeoutMs: 50_000, onTimeout: "pause", autoResume: false });
  assert.deepEqual(info.labels, { ...LABELS, b: "2", c: "3" });
  assert.deepEqual([info.limits.memoryBytes, info.limits.pids, info.idleTimeoutMs, info.onTimeout, info.autoResume], [384 * 1024 * 1024, 100, 50_000, "pause", false]);
  assert.equal((await sandbox.update({ idleTimeoutMs: 0 })).idleTimeoutMs, null);
});

live("copies have the files and go their own ways", async () => {
  await using sandbox = await create();
  await sandbox.files.write("shared.txt", "before");
  const copies = await sandbox.fork({ count: 2, labels: LABELS, envs: { COPY: "yes" } });
  try {
    assert.equal(copies.length, 2);
    await copies[0]?.files.write("shared.txt", "changed");
    assert.equal(await copies[1]?.files.read("shared.txt"), "before");
    assert.equal(await sandbox.files.read("shared.txt"), "before");
    assert.equal((await copies[1]?.commands.run("echo $COPY"))?.stdout, "yes\n");
  } finally {
    await Promise.all(copies.map((copy) => copy.kill()));
  }
});

live("a token opens one sandbox only", async () => {
  await using sandbox = await create();
  await using other = await create();
  const { token, expiresAt } = await sandbox.createToken({ expires: "5m" });
  assert.match(token, /^bjs_/);
  assert.ok(expiresAt.getTime() > Date.now());
  const guest = await Sandbox.connect(sandbox.sandboxId, { apiKey: token });
  assert.equal((await guest.commands.run("echo in")).stdout, "in\n");
  await assert.rejects(guest.kill(), { name: "ForbiddenError" });
  await assert.rejects(guest.fork(), { name: "ForbiddenError" });
  await assert.rejects(Sandbox.create({ apiKey: token }), { name: "ForbiddenError" });
  await assert.rejects(Sandbox.connect(other.sandboxId, { apiKey: token }), (error) => error instanceof NotFoundError || (error as Error).name === "ForbiddenError");
});

live("what it uses and what happened can be seen", async () => {
  await using sandbox = await create();
  await sandbox.commands.run("echo x > file");
  const metrics = await sandbox.getMetrics();
  assert.ok(metrics.at instanceof Date && metrics.uptimeMs > 0 && metrics.disks.length > 0);
  assert.ok(metrics.memoryBytes === null || metrics.memoryBytes > 0);
  const { entries, next } = await sandbox.logs();
  const names = entries.map((entry) => entry.event);
  assert.ok(names.includes("created") && names.includes("exec"), names.join());
  assert.ok(entries.every((entry, index) => entry.at instanceof Date && (index === 0 || entry.seq > (entries[index - 1]?.seq ?? 0))));
  assert.deepEqual((await sandbox.logs({ after: next })).entries, []);
  assert.equal((await sandbox.logs({ limit: 1 })).entries.length, 1);
});

live("a network can be changed, and its log be read", async (t) => {
  let made: Sandbox;
  try {
    made = await create({ network: { allow: ["good.example:5432"] } });
  } catch (error) {
    if (String(error).includes("nft_tproxy")) {
      t.skip(String(error));
      return;
    }
    throw error;
  }
  await using sandbox = made;
  assert.deepEqual((await sandbox.getInfo()).network, { mode: "whitelist", allow: ["good.example:5432"] });
  const look = ["python3", "-c", "import socket\ntry: socket.gethostbyname('other.example')\nexcept OSError as error: print(type(error).__name__)"];
  assert.equal((await sandbox.commands.run(look)).stdout, "gaierror\n");
  const seen: NetworkRecord[] = [];
  for await (const record of sandbox.networkLog()) {
    seen.push(record);
  }
  assert.deepEqual(
    seen.map(({ event, host, port }) => ({ event, host, port })),
    [{ event: "lookup", host: "other.example", port: undefined }],
  );
  assert.ok(seen[0]?.at instanceof Date && seen[0].reason?.includes("not allowed"));
  const updated = await sandbox.updateNetwork({ allow: ["second.example"] });
  assert.deepEqual((updated.network as NetworkPolicy).allow, ["second.example"]);
  assert.deepEqual(((await Sandbox.updateNetwork(sandbox.sandboxId, { allow: ["third.example"] })).network as NetworkPolicy).allow, ["third.example"]);
  const changed = await sandbox.update({ network: { presets: ["pip"], allow: ["other.example"] } });
  assert.deepEqual(changed.network, { mode: "whitelist", presets: ["pip"], allow: ["other.example"] });
  assert.equal((await sandbox.commands.run(look)).stdout, "");
  assert.equal((await sandbox.update({ network: "disabled" })).network, "disabled");
  await sandbox.commands.run(look);
  for await (const record of sandbox.networkLog({ after: seen[0]?.number, follow: true })) {
    assert.equal(record.host, "other.example");
    break;
  }
});

live("secrets and rules for requests are given, and values not told back", async (t) => {
  const secret = { host: "good.example", header: "Authorization", value: "s3cret-value" };
  const policy = { allow: ["good.example"], requests: { "good.example": ["GET /v1/*"] }, secrets: { KEY: secret } };
  let made: Sandbox;
  try {
    made = await create({ network: policy });
  } catch (error) {
    if (String(error).includes("nft_tproxy")) {
      t.skip(String(error));
      return;
    }
    throw error;
  }
  await using sandbox = made;
  const shown = { mode: "whitelist", allow: ["good.example"], requests: policy.requests, secrets: { KEY: { host: "good.example", header: "authorization" } } };
  assert.deepEqual((await sandbox.getInfo()).network, shown);
  assert.equal((await sandbox.commands.run("echo $KEY")).stdout, "belljar-secret-KEY\n");
  assert.deepEqual((await sandbox.update({ network: { ...policy, secrets: { KEY: { ...secret, value: "s3cret-later" } } } })).network, shown);
  await assert.rejects(sandbox.update({ network: { ...policy, secrets: { NEW: secret } } }), (error) => {
    assert.ok(error instanceof InvalidArgumentError && error.field?.startsWith("network.secrets"), String(error));
    assert.ok(!JSON.stringify(error).includes("s3cret") && !error.message.includes("s3cret"));
    return true;
  });
});

live("many sandboxes at once", async () => {
  const made = await Promise.all(Array.from({ length: 8 }, () => create({ limits: { memory: "128m" } })));
  try {
    const outs = await Promise.all(made.map((sandbox, index) => sandbox.commands.run(["echo", String(index)])));
    assert.deepEqual(outs.map((result) => result.stdout), made.map((_, index) => `${index}\n`));
  } finally {
    await Promise.all(made.map((sandbox) => sandbox.kill()));
  }
});
