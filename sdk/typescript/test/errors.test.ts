import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import * as belljar from "../src/index.js";
import { errorFromProblem } from "../src/errors.js";
import { broken, Double, ID, json, noContent, problem, wireOutput, wireResult, wireSandbox } from "./double.js";

const { Belljar, Sandbox } = belljar;
const KEY = `bj_${"0123456789abcdef".repeat(4)}`;

test("each code has its class", async () => {
  const cases: [number, string, new (message: string) => belljar.SandboxError][] = [
    [400, "invalid_field", belljar.InvalidArgumentError],
    [400, "invalid_json", belljar.InvalidArgumentError],
    [400, "invalid_argument", belljar.InvalidArgumentError],
    [401, "unauthenticated", belljar.AuthenticationError],
    [403, "forbidden", belljar.ForbiddenError],
    [403, "policy_refused", belljar.ForbiddenError],
    [403, "permission_denied", belljar.ForbiddenError],
    [403, "host_not_allowed", belljar.ForbiddenError],
    [404, "not_found", belljar.NotFoundError],
    [404, "sandbox_not_found", belljar.SandboxNotFoundError],
    [404, "template_not_found", belljar.TemplateNotFoundError],
    [404, "path_not_found", belljar.FileNotFoundError],
    [404, "program_not_found", belljar.ProgramNotFoundError],
    [405, "method_not_allowed", belljar.InvalidArgumentError],
    [409, "name_taken", belljar.ConflictError],
    [409, "wrong_state", belljar.ConflictError],
    [409, "not_regular", belljar.ConflictError],
    [409, "kernel_unavailable", belljar.KernelUnavailableError],
    [409, "execution_interrupted", belljar.ConflictError],
    [410, "sandbox_gone", belljar.SandboxGoneError],
    [413, "too_large", belljar.TooLargeError],
    [415, "unsupported_media_type", belljar.InvalidArgumentError],
    [416, "range_not_satisfiable", belljar.InvalidArgumentError],
    [422, "idempotency_mismatch", belljar.InvalidArgumentError],
    [422, "build_failed", belljar.BuildError],
    [429, "quota_exceeded", belljar.RateLimitError],
    [500, "engine_failed", belljar.ServerError],
    [500, "store_failed", belljar.ServerError],
    [502, "port_not_open", belljar.ServerError],
    [503, "machine_full", belljar.UnavailableError],
    [504, "sandbox_unresponsive", belljar.TimeoutError],
    [507, "store_failed", belljar.NotEnoughSpaceError],
  ];
  await using double = await Double.start();
  const client = new Belljar({ apiUrl: double.url, apiKey: KEY, maxRetries: 0 });
  for (const [status, code, type] of cases) {
    double.on("GET", "/v1/me", problem(status, code, "what failed, and why"));
    await assert.rejects(client.me(), (error) => {
      assert.ok(error instanceof type && error instanceof belljar.SandboxError, `${code}: ${String(error)}`);
      assert.equal(error.name, type.name);
      assert.deepEqual([error.code, error.status, error.requestId, error.message], [code, status, "request-1", "what failed, and why"]);
      return true;
    });
  }
});

test("errors say which field is wrong, and when to come back", () => {
  const wrong = errorFromProblem({ code: "invalid_field", detail: "x", field: "limits.memory" }, 400);
  assert.ok(wrong instanceof belljar.InvalidArgumentError && wrong.field === "limits.memory");
  const many = errorFromProblem({ code: "quota_exceeded", detail: "x", retry_after_s: 2 }, 429);
  assert.ok(many instanceof belljar.RateLimitError && many.retryAfter === 2);
  const header = errorFromProblem({ code: "machine_full" }, 503, "id-1", 7);
  assert.ok(header instanceof belljar.UnavailableError && header.retryAfter === 7 && header.requestId === "id-1");
});

test("a proxy's page is an error too", async () => {
  await using double = await Double.start();
  double.on("GET", "/v1/me", (_request, response) => {
    response.writeHead(403, { "Content-Type": "text/html" }).end("<h1>no</h1>");
  });
  await assert.rejects(new Belljar({ apiUrl: double.url, apiKey: KEY }).me(), (error) => error instanceof belljar.ForbiddenError && error.code === "http_403" && /status 403/.test(error.message));
});

test("an answer that is no JSON is an error", async () => {
  await using double = await Double.start();
  double.on("GET", "/v1/me", (_request, response) => void response.end("<html>"));
  await assert.rejects(new Belljar({ apiUrl: double.url, apiKey: KEY }).me(), (error) => error instanceof belljar.SandboxError && error.code === "bad_answer");
});

test("redirects are not followed, so that the key goes nowhere else", async () => {
  await using double = await Double.start();
  double.on("GET", "/v1/me", (_request, response) => void response.writeHead(302, { Location: "/elsewhere" }).end());
  await assert.rejects(new Belljar({ apiUrl: double.url, apiKey: KEY, maxRetries: 0 }).me(), belljar.SandboxError);
  assert.equal(double.seen.length, 1);
});

test("the key is in no error, no inspection and no JSON", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201)).on("GET", "/v1/me", problem(401, "unauthenticated", `the key ${KEY} is unknown`)).on("GET", "/v1/templates", broken);
  const options = { apiUrl: double.url, apiKey: KEY, maxRetries: 0 };
  const client = new Belljar(options);
  const sandbox = await Sandbox.create(options);
  const shown: string[] = [];
  const show = (value: unknown): void => {
    shown.push(inspect(value, { depth: 20, showHidden: true, getters: true }), JSON.stringify(value) ?? "", String(value));
  };
  show(client);
  show(sandbox);
  show(sandbox.files);
  for (const call of [() => client.me(), () => client.templates.list().all(), () => new Belljar({ ...options, apiUrl: "http://127.0.0.1:1" }).me()]) {
    await call().then(() => assert.fail("it did not fail"), (error: unknown) => {
      show(error);
      shown.push((error as Error).stack ?? "");
    });
  }
  for (const wrong of [`${KEY}\n`, `${KEY} x`, `${KEY}\u00e9`]) {
    assert.throws(() => new Belljar({ apiKey: wrong }), (error) => {
      show(error);
      return error instanceof belljar.InvalidArgumentError && error.field === "apiKey";
    });
  }
  assert.equal(double.seen[0]?.headers.authorization, `Bearer ${KEY}`);
  for (const text of shown) {
    assert.ok(!text.includes(KEY), text);
  }
});

test("wrong settings are refused at once", () => {
  for (const [options, field] of [
    [{ apiUrl: "not a url" }, "apiUrl"],
    [{ apiUrl: "ftp://x" }, "apiUrl"],
    [{ apiUrl: "http://user:secret@x" }, "apiUrl"],
    [{ apiUrl: "http://x?y" }, "apiUrl"],
    [{ requestTimeoutMs: -1 }, "requestTimeoutMs"],
    [{ maxRetries: -1 }, "maxRetries"],
    [{ maxRetries: NaN }, "maxRetries"],
  ] as const) {
    assert.throws(() => new Belljar(options), (error) => error instanceof belljar.InvalidArgumentError && error.field === field && !/secret/.test(String(error)));
  }
});

test("settings come from the environment where they are not given", async () => {
  await using double = await Double.start();
  double.on("GET", "/base/v1/templates", json({ templates: [] })).on("GET", "/v1/sandboxes", json({ sandboxes: [], next_cursor: null })).on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  const kept = { ...process.env };
  try {
    process.env["BELLJAR_API_URL"] = `${double.url}/base/`;
    process.env["BELLJAR_API_KEY"] = "bj_environment";
    await new Belljar().templates.list().all();
    assert.equal(double.seen.at(-1)?.headers.authorization, "Bearer bj_environment");
    await Sandbox.list({ apiUrl: double.url, apiKey: "bj_given" }).all();
    assert.equal(double.seen.at(-1)?.headers.authorization, "Bearer bj_given");
    process.env["BELLJAR_DOMAIN"] = "sandbox.example.com";
    assert.equal((await Sandbox.create({ apiUrl: double.url })).getHost(8000), `8000-${ID}.sandbox.example.com`);
  } finally {
    process.env = kept;
  }
});

test("a request without a key goes nowhere", async () => {
  await using double = await Double.start();
  double.on("GET", "/health", json({ status: "ok" }));
  const given = process.env["BELLJAR_API_KEY"];
  delete process.env["BELLJAR_API_KEY"];
  try {
    const client = new Belljar({ apiUrl: double.url });
    assert.equal(await client.health(), true);
    await assert.rejects(client.me(), (error) => error instanceof belljar.AuthenticationError && /give apiKey or set BELLJAR_API_KEY/.test(error.message));
    assert.equal(double.seen.length, 1);
  } finally {
    if (given !== undefined) {
      process.env["BELLJAR_API_KEY"] = given;
    }
  }
});

test("commands alone run as another user", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201)).on("POST", `/v1/sandboxes/${ID}/exec`, json(wireResult("x")));
  const sandbox = await Sandbox.create({ apiUrl: double.url, apiKey: KEY });
  assert.equal((await sandbox.commands.run("x", { user: "root" })).stdout, "x");
  assert.equal((JSON.parse(double.seen.at(-1)?.body ?? "") as { user?: string }).user, "root");
  const before = double.seen.length;
  for (const call of [
    () => sandbox.files.write("f", "x", { user: "root" }),
    () => sandbox.files.watchDir("f", () => undefined, { user: "root" }),
    () => sandbox.runCode("x", { user: "root" }),
  ]) {
    await assert.rejects(call(), (error) => error instanceof belljar.InvalidArgumentError && error.field === "user", String(call));
  }
  assert.equal(double.seen.length, before);
});

test("ids cannot lead to another route", async () => {
  await using double = await Double.start();
  const options = { apiUrl: double.url };
  for (const id of ["", ".", ".."]) {
    await assert.rejects(Sandbox.kill(id, options), belljar.InvalidArgumentError);
  }
  await Sandbox.kill("../keys/x?y#z", options);
  assert.deepEqual(double.seen.map((request) => request.url), ["/v1/sandboxes/..%2Fkeys%2Fx%3Fy%23z"]);
});

test("a port's path cannot lead out of the port", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201)).on("GET", /proxy/, json({ ok: true }));
  const sandbox = await Sandbox.create({ apiUrl: double.url, apiKey: KEY });
  for (const path of ["../../x", "/../x", "a/../../../x", "%2e%2e/x", "..\\x"]) {
    await assert.rejects(sandbox.ports.fetch(8000, path), belljar.InvalidArgumentError, path);
  }
  assert.ok((await sandbox.ports.fetch(8000, "/a/../b?q=1", { headers: { Authorization: "inside" } })).ok);
  const seen = double.seen.at(-1);
  assert.equal(seen?.url, `/v1/sandboxes/${ID}/ports/8000/proxy/b?q=1`);
  assert.deepEqual([seen?.headers.authorization, seen?.headers["x-belljar-token"]], ["inside", KEY]);
});

test("a command that fails is an error that knows its result", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  const sandbox = await Sandbox.create({ apiUrl: double.url });
  const answer = (changes: Record<string, unknown>): unknown => double.on("POST", `/v1/sandboxes/${ID}/exec`, json(wireResult("out", changes)));

  answer({ outcome: { kind: "exited", code: 3 }, exit_code: 3, stderr: wireOutput("first\nlast line\n") });
  await assert.rejects(sandbox.commands.run("x"), (error) => {
    assert.ok(error instanceof belljar.CommandExitError);
    assert.deepEqual([error.exitCode, error.stdout, error.result.exitCode, error.message], [3, "out", 3, "the command ended with exit code 3: last line"]);
    return true;
  });
  assert.equal((await sandbox.commands.run("x", { check: false })).error, "ended with exit code 3");
  for (const [changes, message] of [
    [{ outcome: { kind: "signalled", signal: 9, name: "SIGKILL" }, exit_code: null, signal: "SIGKILL" }, /was ended by SIGKILL/],
    [{ outcome: { kind: "out_of_memory" }, exit_code: null }, /memory ran out/],
    [{ outcome: { kind: "limit", limit: "pids" }, exit_code: 1 }, /limit of pids/],
    [{ outcome: { kind: "infrastructure", cause: "x" }, exit_code: null }, /could not be run: x/],
    [{ outcome: { kind: "something_new" }, exit_code: null }, /did not end well/],
  ] as const) {
    answer(changes);
    await assert.rejects(sandbox.commands.run("x"), (error) => error instanceof belljar.CommandExitError && message.test(error.message));
  }
  answer({ outcome: { kind: "timed_out" }, exit_code: null, signal: "SIGKILL" });
  await assert.rejects(sandbox.commands.run("x"), (error) => error instanceof belljar.CommandTimeoutError && error instanceof belljar.TimeoutError && error.result.stdout === "out");
});

test("copies that could not be made are told with those that could", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  double.on("POST", `/v1/sandboxes/${ID}/fork`, json({ sandboxes: [{ sandbox: wireSandbox({ id: "other" }) }, { error: { code: "quota_exceeded", status: 429, detail: "no more" } }] }, 201));
  const sandbox = await Sandbox.create({ apiUrl: double.url });
  await assert.rejects(sandbox.fork({ count: 2 }), (error) => {
    assert.ok(error instanceof belljar.ForkError);
    assert.deepEqual(error.sandboxes.map((one) => one.sandboxId), ["other"]);
    assert.ok(error.errors[0] instanceof belljar.RateLimitError);
    assert.match(error.message, /^1 of 2 copies could not be created: no more$/);
    return true;
  });
});

test("kill, isRunning and connect say what is gone", async () => {
  await using double = await Double.start();
  double.on("DELETE", `/v1/sandboxes/${ID}`, noContent, problem(410, "sandbox_gone", "x")).on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  const sandbox = await Sandbox.create({ apiUrl: double.url });
  assert.equal(await sandbox.kill(), true);
  assert.equal(await sandbox.kill(), false);
  assert.equal(await sandbox.isRunning(), false);
  double.on("GET", `/v1/sandboxes/${ID}`, json(wireSandbox({ state: "gone", reason: "killed" })));
  assert.equal(await sandbox.isRunning(), false);
  await assert.rejects(Sandbox.connect(ID, { apiUrl: double.url }), (error) => error instanceof belljar.SandboxGoneError && /killed/.test(error.message));
});
