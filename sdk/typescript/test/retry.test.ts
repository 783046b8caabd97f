import assert from "node:assert/strict";
import { createServer } from "node:net";
import { test } from "node:test";
import fc from "fast-check";
import { Configuration } from "../src/config.js";
import { ConnectionError, ConflictError, InvalidArgumentError, RateLimitError, ServerError, UnavailableError } from "../src/errors.js";
import { LONGEST_RETRY_AFTER_MS, LONGEST_WAIT_MS, neverOpened, retryAfterSeconds, waitBeforeRetry } from "../src/retry.js";
import { Belljar, Sandbox } from "../src/index.js";
import { broken, Double, ID, json, noContent, problem, wireResult, wireSandbox } from "./double.js";

const options = (double: Double, more: object = {}) => ({ apiUrl: double.url, apiKey: "bj_test", ...more });

test("what is sent again, and what is not", () => {
  const failures = {
    refused: { error: new ConnectionError("x"), mayHaveArrived: false },
    lost: { error: new ConnectionError("x"), mayHaveArrived: true },
    tooMany: { error: new RateLimitError("x", { status: 429 }), mayHaveArrived: false },
    tooManyAfter: { error: new RateLimitError("x", { status: 429, retryAfter: 2 }), mayHaveArrived: false },
    fullAfter: { error: new UnavailableError("x", { status: 503, retryAfter: 0 }), mayHaveArrived: false },
    muchLater: { error: new UnavailableError("x", { status: 503, retryAfter: 3600 }), mayHaveArrived: false },
    unreachable: { error: new ServerError("x", { status: 502 }), mayHaveArrived: true },
    failed: { error: new ServerError("x", { status: 500 }), mayHaveArrived: true },
    wrong: { error: new InvalidArgumentError("x", { status: 400 }), mayHaveArrived: false },
    conflict: { error: new ConflictError("x", { status: 409 }), mayHaveArrived: false },
  };
  const expected: Record<keyof typeof failures, [repeatable: boolean, other: boolean]> = {
    refused: [true, true],
    lost: [true, false],
    tooMany: [false, false],
    tooManyAfter: [true, true],
    fullAfter: [true, true],
    muchLater: [false, false],
    unreachable: [true, false],
    failed: [false, false],
    wrong: [false, false],
    conflict: [false, false],
  };
  for (const [name, failure] of Object.entries(failures)) {
    const [repeatable, other] = expected[name as keyof typeof failures];
    assert.equal(waitBeforeRetry(failure, 1, true) !== undefined, repeatable, `${name}, repeatable`);
    assert.equal(waitBeforeRetry(failure, 1, false) !== undefined, other, `${name}, not repeatable`);
  }
});

test("waits grow, are spread, and have a bound", () => {
  const lost = { error: new ConnectionError("x"), mayHaveArrived: true };
  assert.deepEqual([1, 2, 3, 4].map((attempt) => waitBeforeRetry(lost, attempt, true, () => 1)), [200, 400, 800, 1600]);
  assert.deepEqual([1, 2].map((attempt) => waitBeforeRetry(lost, attempt, true, () => 0)), [100, 200]);
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 60 }), fc.double({ min: 0, max: 0.999, noNaN: true }), (attempt, random) => {
      const wait = waitBeforeRetry(lost, attempt, true, () => random);
      assert.ok(wait !== undefined && wait >= 0 && wait <= LONGEST_WAIT_MS);
    }),
  );
  const later = { error: new RateLimitError("x", { retryAfter: 2 }), mayHaveArrived: false };
  assert.equal(waitBeforeRetry(later, 1, false, () => 0), 2100);
  assert.equal(waitBeforeRetry({ error: new RateLimitError("x", { retryAfter: LONGEST_RETRY_AFTER_MS / 1000 + 1 }), mayHaveArrived: false }, 1, true), undefined);
});

test("retries outlast a restart", () => {
  const refused = { error: new ConnectionError("x"), mayHaveArrived: false };
  const { maxRetries } = new Configuration();
  const waits = Array.from({ length: maxRetries }, (_, index) => waitBeforeRetry(refused, index + 1, false, () => 0) ?? 0);
  assert.ok(waits.reduce((sum, wait) => sum + wait) >= 3_000, String(waits));
});

test("Retry-After is a number or a date", () => {
  const now = Date.parse("2026-11-21T15:04:05Z");
  const cases: [string | null, number | undefined][] = [
    [null, undefined],
    ["", undefined],
    ["2", 2],
    ["0", 0],
    ["1.5", 1.5],
    ["-3", 0],
    ["Sat, 21 Nov 2026 15:04:15 GMT", 10],
    ["Sat, 21 Nov 2026 15:04:00 GMT", 0],
    ["soon", undefined],
  ];
  for (const [header, expected] of cases) {
    assert.equal(retryAfterSeconds(header, now), expected, String(header));
  }
});

test("errors that say that there was no connection", () => {
  const coded = (code: string): Error => Object.assign(new Error("x"), { code });
  assert.ok(neverOpened(new TypeError("fetch failed", { cause: coded("ECONNREFUSED") })));
  assert.ok(neverOpened(new TypeError("fetch failed", { cause: new AggregateError([coded("ECONNREFUSED"), coded("ENETUNREACH")]) })));
  assert.ok(!neverOpened(new TypeError("fetch failed", { cause: new AggregateError([coded("ECONNREFUSED"), coded("ECONNRESET")]) })));
  assert.ok(!neverOpened(new TypeError("fetch failed", { cause: coded("ECONNRESET") })));
  assert.ok(!neverOpened("x"));
});

test("a GET is sent again after broken connections", async () => {
  await using double = await Double.start();
  double.on("GET", `/v1/sandboxes/${ID}`, broken, broken, json(wireSandbox()));
  assert.equal((await Sandbox.getInfo(ID, options(double))).sandboxId, ID);
  assert.equal(double.seen.length, 3);
});

test("attempts are bounded", async () => {
  await using double = await Double.start();
  double.on("GET", `/v1/sandboxes/${ID}`, broken);
  await assert.rejects(Sandbox.getInfo(ID, options(double, { maxRetries: 2 })), ConnectionError);
  assert.equal(double.seen.length, 3);
  await assert.rejects(Sandbox.getInfo(ID, options(double, { maxRetries: 0 })), ConnectionError);
  assert.equal(double.seen.length, 4);
});

test("create is sent again with the same key", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", broken, problem(502, "sandbox_unreachable", "x"), json(wireSandbox(), 201));
  await Sandbox.create(options(double));
  const keys = double.seen.map((request) => request.headers["idempotency-key"]);
  assert.equal(keys.length, 3);
  assert.match(String(keys[0]), /^[A-Za-z0-9_.:-]{1,255}$/);
  assert.equal(new Set(keys).size, 1);
});

test("two creates have different keys", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  await Sandbox.create(options(double));
  await Sandbox.create(options(double));
  assert.notEqual(double.seen[0]?.headers["idempotency-key"], double.seen[1]?.headers["idempotency-key"]);
});

test("exec is sent again with the same key, and waits for the one that is still at work", async () => {
  await using double = await Double.start();
  double
    .on("POST", "/v1/sandboxes", json(wireSandbox(), 201))
    .on("POST", `/v1/sandboxes/${ID}/exec`, broken, problem(409, "idempotency_running", "x"), problem(409, "idempotency_running", "x"), json(wireResult("ok")));
  const sandbox = await Sandbox.create(options(double));
  assert.equal((await sandbox.commands.run("x")).stdout, "ok");
  assert.equal(double.count("POST", `/v1/sandboxes/${ID}/exec`), 4);
});

test("a caller's own key that is at work is the caller's to know", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", problem(409, "idempotency_running", "x"));
  await assert.rejects(Sandbox.create({ ...options(double), idempotencyKey: "mine" }), (error) => error instanceof ConflictError && error.code === "idempotency_running");
  assert.equal(double.seen.length, 1);
});

test("what might happen twice is sent once", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201)).on("POST", /./, broken).on("PATCH", /./, broken).on("PUT", /./, broken);
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  const sandbox = await Sandbox.create(options(double));
  const calls = [
    () => sandbox.fork({ count: 2 }),
    () => sandbox.createSnapshot(),
    () => sandbox.pause(),
    () => sandbox.setTimeout(1000),
    () => sandbox.update({ labels: { a: "b" } }),
    () => sandbox.commands.run("x", { background: true }),
    () => sandbox.commands.sendStdin({ process: 1 }, "x"),
    () => sandbox.files.write("a", "b"),
    () => sandbox.files.rename("a", "b"),
    () => sandbox.ports.publish(80),
    () => sandbox.sessions.create(),
  ];
  for (const call of calls) {
    const before = double.seen.length;
    await assert.rejects(call(), ConnectionError, String(call));
    assert.equal(double.seen.length, before + 1, String(call));
  }
});

test("429 and 503 with Retry-After are waited for, whatever the request", async () => {
  await using double = await Double.start();
  double
    .on("POST", "/v1/sandboxes", json(wireSandbox(), 201))
    .on("POST", `/v1/sandboxes/${ID}/fork`, problem(429, "quota_exceeded", "x", { retry_after_s: 0 }), problem(503, "machine_full", "x", { retry_after_s: 0.05 }), json({ sandboxes: [{ sandbox: wireSandbox() }] }, 201));
  const sandbox = await Sandbox.create(options(double));
  const begin = performance.now();
  assert.equal((await sandbox.fork()).length, 1);
  assert.ok(performance.now() - begin >= 50);
});

test("a long Retry-After goes to the caller at once", async () => {
  await using double = await Double.start();
  double.on("GET", "/v1/me", problem(429, "quota_exceeded", "too many", { retry_after_s: 600 }));
  await assert.rejects(new Belljar(options(double)).me(), (error) => error instanceof RateLimitError && error.retryAfter === 600);
  assert.equal(double.seen.length, 1);
});

test("500 and 504 are not sent again", async () => {
  await using double = await Double.start();
  double.on("GET", "/v1/me", problem(500, "engine_failed", "x")).on("GET", "/v1/templates", problem(504, "sandbox_unresponsive", "x"));
  const client = new Belljar(options(double));
  await assert.rejects(client.me());
  await assert.rejects(client.templates.list().all());
  assert.equal(double.seen.length, 2);
});

test("a delete whose answer was lost has happened", async () => {
  await using double = await Double.start();
  double.on("DELETE", `/v1/sandboxes/${ID}`, broken, problem(410, "sandbox_gone", "x"));
  assert.equal(await Sandbox.kill(ID, options(double)), true);
  double.on("DELETE", `/v1/sandboxes/${ID}`, problem(410, "sandbox_gone", "x"));
  assert.equal(await Sandbox.kill(ID, options(double)), false);
  double.on("DELETE", `/v1/sandboxes/${ID}`, noContent);
  assert.equal(await Sandbox.kill(ID, options(double)), true);
});

test("an answer that breaks off is asked for again", async () => {
  await using double = await Double.start();
  double.on(
    "GET",
    "/v1/templates",
    (_request, response) => {
      response.writeHead(200, { "Content-Type": "application/json", "Content-Length": "1000" });
      response.write('{"templates":', () => response.socket?.destroy());
    },
    json({ templates: [] }),
  );
  assert.deepEqual(await new Belljar(options(double)).templates.list().all(), []);
  assert.equal(double.seen.length, 2);
});

test("a server that is not there is tried again, for any request", async () => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  let tries = 0;
  const counting: typeof fetch = (...call) => {
    tries += 1;
    return fetch(...call);
  };
  await assert.rejects(Sandbox.setTimeout(ID, 1000, { apiUrl: `http://127.0.0.1:${port}`, maxRetries: 1, fetch: counting }), (error) => {
    assert.ok(error instanceof ConnectionError);
    assert.match(error.message, /is the server running/);
    return true;
  });
  assert.equal(tries, 2);
});

test("a stream that was sent cannot be sent again", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201)).on("PUT", `/v1/sandboxes/${ID}/files/content`, problem(503, "machine_full", "x", { retry_after_s: 0 }));
  const sandbox = await Sandbox.create(options(double));
  await assert.rejects(sandbox.files.write("a", new Blob(["x"]).stream()), UnavailableError);
  assert.equal(double.count("PUT", `/v1/sandboxes/${ID}/files/content`), 1);
  await assert.rejects(sandbox.files.write("a", "x"), UnavailableError);
  assert.equal(double.count("PUT", `/v1/sandboxes/${ID}/files/content`), 7);
});
