// Secrets stored on the server, and rules that insert them into requests.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { Sandbox, SandboxError, Secret, SecretError, SecretNotFoundError } from "e2b";

test("a secret is stored, changed and destroyed", async () => {
  const name = `key-${randomUUID()}`;
  const made = await Secret.create(name, "s3cret-value", { metadata: { owner: "me" } });
  assert.deepEqual([made.name, made.version, made.metadata], [name, 1, { owner: "me" }]);
  assert.deepEqual(await Secret.getInfo(made.secretId), made);
  await assert.rejects(Secret.create(name, "s3cret-other"), (error) => error instanceof SecretError && /already/.test(error.message));
  const later = await Secret.update(name, "s3cret-later");
  assert.deepEqual([later.version, later.metadata], [2, { owner: "me" }]);
  assert.ok(!JSON.stringify([made, later]).includes("s3cret"));
  assert.equal(await Secret.exists(name), true);
  assert.equal(await Secret.destroy(name), true);
  assert.equal(await Secret.destroy(name), false);
  await assert.rejects(Secret.getInfo(name), SecretNotFoundError);
});

test("secrets are listed page by page", async () => {
  const names = Array.from({ length: 3 }, (_, number) => `listed-${number}-${randomUUID()}`);
  await Promise.all(names.map((name) => Secret.create(name, "s3cret-value")));
  const pages = Secret.list({ limit: 1 });
  const found = [];
  while (pages.hasNext) {
    const page = await pages.nextItems();
    assert.ok(page.length <= 1);
    found.push(...page.map((secret) => secret.name));
  }
  assert.deepEqual(found.filter((name) => names.includes(name)), names);
  await Promise.all(names.map((name) => Secret.destroy(name)));
});

test("rules name secrets", async () => {
  const name = `key-${randomUUID()}`;
  await Secret.create(name, "s3cret-value");
  const rules = { "api.example.com": [{ transform: { headers: { Authorization: `Bearer ${Secret.fill(name)}` } } }] };
  const sandbox = await Sandbox.create({ network: { rules, allowOut: ({ rules }) => [...rules.keys()], denyOut: ({ allTraffic }) => [allTraffic] } });
  try {
    const { network } = await sandbox.getInfo();
    assert.deepEqual(network.allowOut, ["api.example.com"]);
    assert.equal(network.rules["api.example.com"][0].transform.headers.authorization, `…${Secret.fill(name)}`);
    assert.ok(!(await sandbox.commands.run("env")).stdout.includes("s3cret"));
  } finally {
    await sandbox.kill();
  }
  await Secret.destroy(name);
  await assert.rejects(Sandbox.create({ network: { rules } }), (error) => error instanceof SandboxError && error.message.includes(name));
});
