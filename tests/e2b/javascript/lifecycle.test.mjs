// Sandboxes from creation to end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { E2B, Sandbox } from "@e2b/code-interpreter";
import { AuthenticationError, NotFoundError, Sandbox as Plain, SandboxError, SandboxNotFoundError, TimeoutError } from "e2b";
import { MISSING, TIMEOUT_MS, shared, until, withSandbox } from "./shared.mjs";

const box = shared();

/** Returns the ids of all pages. */
async function listed(options) {
  const pages = Sandbox.list(options);
  const found = [];
  while (pages.hasNext) {
    const page = await pages.nextItems();
    assert.ok(options.limit === undefined || page.length <= options.limit);
    found.push(...page.map((info) => info.sandboxId));
  }
  return found;
}

test("create, run, kill", async () => {
  const sandbox = await Plain.create();
  assert.equal(await sandbox.isRunning(), true);
  assert.equal((await sandbox.commands.run("echo hello")).stdout, "hello\n");
  assert.equal(await sandbox.kill(), true);
  assert.equal(await sandbox.isRunning(), false);
  assert.equal(await sandbox.kill(), false);
});

test("info has the requested values", async () => {
  const metadata = { user: "ada", "odd key = 1": "tab\there", long: "ü".repeat(700) };
  await withSandbox({ timeoutMs: 90_000, metadata }, async (sandbox) => {
    const info = await sandbox.getInfo();
    assert.equal(info.sandboxId, sandbox.sandboxId);
    assert.deepEqual(info.metadata, metadata);
    assert.equal(info.state, "running");
    assert.ok(info.cpuCount >= 1 && info.memoryMB > 0);
    assert.equal(info.envdVersion, "0.6.13");
    const left = info.endAt.getTime() - Date.now();
    assert.ok(left > 30_000 && left <= 90_000, `${left}`);
    assert.ok(info.startedAt.getTime() <= Date.now());
  });
});

test("static methods take an id", async () => {
  const id = box.sandbox.sandboxId;
  assert.equal((await Sandbox.getInfo(id)).sandboxId, id);
  await Sandbox.setTimeout(id, 600_000);
  const again = await Sandbox.connect(id);
  assert.equal((await again.commands.run("true")).exitCode, 0);
});

test("a client object has the same methods", async () => {
  const client = new E2B({ apiKey: process.env.E2B_API_KEY });
  const sandbox = await client.Sandbox.create();
  assert.equal(await sandbox.kill(), true);
});

for (const template of ["base", "base:default", "code-interpreter-v1", "default"]) {
  test(`the template ${template}`, async () => {
    const sandbox = await Plain.create(template);
    assert.equal(await sandbox.isRunning(), true);
    await sandbox.kill();
  });
}

test("an unknown template", async () => {
  await assert.rejects(Plain.create("no-such-template"), (error) => error instanceof SandboxError && /no-such-template/.test(error.message));
});

test("a wrong key", async () => {
  await assert.rejects(Sandbox.create({ apiKey: `e2b_${"0".repeat(64)}` }), AuthenticationError);
});

test("a timeout that is too long", async () => {
  await assert.rejects(Sandbox.create({ timeoutMs: 100 * 3600 * 1000 }), (error) => error instanceof SandboxError && /400/.test(error.message));
});

test("an aborted request", async () => {
  await assert.rejects(Sandbox.create({ signal: AbortSignal.abort() }));
});

test("variables are in every command", async () => {
  await withSandbox({ envs: { FOO: "bar" } }, async (sandbox) => {
    assert.equal((await sandbox.commands.run("echo $FOO")).stdout, "bar\n");
    assert.equal((await sandbox.commands.run("echo $FOO", { envs: { FOO: "other" } })).stdout, "other\n");
  });
});

test("a sandbox has its id in its environment", async () => {
  assert.equal((await box.sandbox.commands.run("echo $E2B_SANDBOX $E2B_SANDBOX_ID")).stdout, `true ${box.sandbox.sandboxId}\n`);
});

test("an expired timeout ends the sandbox", async () => {
  const sandbox = await Sandbox.create();
  await sandbox.setTimeout(0);
  await until("the end", async () => !(await sandbox.isRunning()));
  await assert.rejects(sandbox.getInfo(), SandboxNotFoundError);
});

test("a missing sandbox", async () => {
  await assert.rejects(Sandbox.connect(MISSING), SandboxNotFoundError);
  await assert.rejects(Sandbox.getInfo(MISSING), SandboxNotFoundError);
  await assert.rejects(Sandbox.setTimeout(MISSING, 10_000), SandboxNotFoundError);
  await assert.rejects(Sandbox.pause(MISSING), NotFoundError);
  assert.equal(await Sandbox.kill(MISSING), false);
});

test("commands and files of an ended sandbox", async () => {
  const sandbox = await Sandbox.create();
  await sandbox.kill();
  await assert.rejects(sandbox.commands.run("true"), (error) => error instanceof TimeoutError || error instanceof SandboxNotFoundError);
  await assert.rejects(sandbox.files.read("a.txt"), (error) => error instanceof TimeoutError || error instanceof SandboxNotFoundError);
});

test("pause and connect", async () => {
  await withSandbox({}, async (sandbox) => {
    await sandbox.files.write("kept.txt", "kept");
    const running = await sandbox.commands.run("sleep 1000", { background: true });
    assert.equal(await sandbox.pause(), true);
    assert.equal(await sandbox.pause(), false);
    assert.equal(await sandbox.isRunning(), false);
    assert.equal((await sandbox.getInfo()).state, "paused");
    const again = await Sandbox.connect(sandbox.sandboxId);
    assert.equal(await again.files.read("kept.txt"), "kept");
    assert.equal((await again.getInfo()).state, "running");
    assert.ok((await again.commands.list()).some((process) => process.pid === running.pid));
    await running.disconnect();
  });
});

test("connect never shortens the timeout", async () => {
  await withSandbox({}, async (sandbox) => {
    const before = (await sandbox.getInfo()).endAt.getTime();
    await sandbox.connect({ timeoutMs: 10_000 });
    assert.equal((await sandbox.getInfo()).endAt.getTime(), before);
    await sandbox.connect({ timeoutMs: 3_600_000 });
    assert.ok((await sandbox.getInfo()).endAt.getTime() > before);
  });
});

test("a pause on timeout", async () => {
  await withSandbox({ lifecycle: { onTimeout: "pause" } }, async (sandbox) => {
    await sandbox.setTimeout(0);
    await until("the pause", async () => (await sandbox.getInfo()).state === "paused");
    assert.deepEqual((await sandbox.getInfo()).lifecycle, { onTimeout: "pause", autoResume: false });
  });
});

test("automatic resume", async () => {
  await withSandbox({ lifecycle: { onTimeout: "pause", autoResume: true } }, async (sandbox) => {
    await sandbox.pause();
    assert.equal((await sandbox.commands.run("echo awake")).stdout, "awake\n");
  });
});

test("lists: metadata, pages, order, state", async () => {
  const metadata = { suite: "lists of javascript" };
  const made = [];
  try {
    for (let number = 0; number < 3; number += 1) {
      made.push(await Plain.create({ metadata: { ...metadata, "a b": `c&${number}` } }));
    }
    const ids = made.map((sandbox) => sandbox.sandboxId);
    assert.deepEqual((await listed({ query: { metadata } })).sort(), [...ids].sort());
    assert.deepEqual(await listed({ query: { metadata: { "a b": "c&1" } } }), [ids[1]]);
    assert.deepEqual(await listed({ query: { metadata: { "a b": "c" } } }), []);
    assert.deepEqual(await listed({ limit: 1, query: { metadata } }), [...ids].reverse());
    assert.deepEqual(await listed({ limit: 2, query: { metadata }, order: "asc" }), ids);
    assert.deepEqual((await listed({ query: { metadata, template: "base" } })).sort(), [...ids].sort());
    assert.deepEqual(await listed({ query: { metadata, startedAfter: new Date(Date.now() + 60_000) } }), []);
    await made[0].pause();
    assert.deepEqual(await listed({ query: { metadata, state: ["paused"] } }), [ids[0]]);
    assert.deepEqual((await listed({ query: { metadata, state: ["running"] } })).sort(), ids.slice(1).sort());
    assert.equal((await listed({ query: { metadata, state: ["running", "paused"] } })).length, 3);
  } finally {
    await Promise.all(made.map((sandbox) => sandbox.kill()));
  }
});

test("metrics", async () => {
  const metrics = await box.sandbox.getMetrics();
  assert.equal(metrics.length, 1);
  assert.ok(metrics[0].cpuCount >= 1 && metrics[0].memTotal > metrics[0].memUsed && metrics[0].memUsed > 0);
  assert.ok(metrics[0].timestamp instanceof Date && metrics[0].diskTotal > 0);
});

test("a fork has the files", async () => {
  await box.sandbox.files.write("data.txt", "forked");
  const forks = await box.sandbox.fork({ count: 2 });
  try {
    for (const fork of forks) {
      assert.equal(await fork.files.read("data.txt"), "forked");
    }
    await forks[0].files.write("data.txt", "changed");
    assert.equal(await box.sandbox.files.read("data.txt"), "forked");
  } finally {
    await Promise.all(forks.map((fork) => fork.kill()));
  }
});

test("snapshots", async () => {
  await box.sandbox.files.write("data.txt", "snapped");
  const { snapshotId } = await box.sandbox.createSnapshot();
  const sandbox = await Sandbox.create(snapshotId);
  assert.equal(await sandbox.files.read("data.txt"), "snapped");
  await sandbox.kill();
  const pages = box.sandbox.listSnapshots();
  assert.ok((await pages.nextItems()).some((info) => info.snapshotId === snapshotId));
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true);
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), false);
});

test("the network of a running sandbox", async () => {
  assert.equal((await box.sandbox.getInfo()).allowInternetAccess, true);
  await box.sandbox.updateNetwork({ allowOut: ["example.com"], denyOut: ["0.0.0.0/0"] });
  await box.sandbox.updateNetwork({});
  await assert.rejects(box.sandbox.updateNetwork({ allowOut: ["example.com"] }), (error) => error instanceof SandboxError && /ALL_TRAFFIC/.test(error.message));
});

test("no network", async () => {
  await withSandbox({ allowInternetAccess: false }, async (sandbox) => {
    assert.equal((await sandbox.getInfo()).allowInternetAccess, false);
  });
});

test("ports are public unless the sandbox refuses that", async () => {
  const { sandbox } = box;
  assert.match(sandbox.trafficAccessToken, /^bjs_/);
  assert.equal(sandbox.getHost(8124), `8124-${sandbox.sandboxId}.localhost:${new URL(process.env.E2B_API_URL).port}`);
  const command = await sandbox.commands.run("exec python3 -m http.server 8124 --bind 127.0.0.1 --directory /etc", { background: true, timeoutMs: 0 });
  const place = { "E2b-Sandbox-Id": sandbox.sandboxId, "E2b-Sandbox-Port": "8124" };
  const get = (headers) => fetch(`${process.env.E2B_SANDBOX_URL}/passwd`, { headers: { ...place, ...headers }, signal: AbortSignal.timeout(TIMEOUT_MS) });
  await until("the port", async () => (await get({})).status === 200);
  await command.kill();
  await withSandbox({ network: { allowPublicTraffic: false } }, async (closed) => {
    place["E2b-Sandbox-Id"] = closed.sandboxId;
    assert.equal((await get({})).status, 403);
    assert.equal((await get({ "E2B-Traffic-Access-Token": closed.trafficAccessToken })).status, 502);
  });
});

for (const [name, options, message] of [
  ["domains without ALL_TRAFFIC", { network: { allowOut: ["example.com"] } }, /ALL_TRAFFIC/],
  ["a mask that is no host", { network: { maskRequestHost: "a b" } }, /maskRequestHost/],
  ["a proxy", { network: { egressProxy: { address: "proxy.example:1080" } } }, /does not offer/],
  ["a pause without memory", { lifecycle: { onTimeout: { action: "pause", keepMemory: false } } }, /does not offer/],
]) {
  test(`unsupported: ${name}`, async () => {
    await assert.rejects(Sandbox.create(options), (error) => error instanceof SandboxError && message.test(error.message));
  });
}
