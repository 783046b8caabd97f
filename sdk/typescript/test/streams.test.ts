import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Configuration } from "../src/config.js";
import { Belljar, ConnectionError, InvalidArgumentError, NotFoundError, Sandbox, SandboxError, ServerError, TimeoutError } from "../src/index.js";
import { Transport } from "../src/transport.js";
import { startWatch } from "../src/watch.js";
import { Double, event, events, type Handler, ID, json, noContent, problem, wireOutput, wireProcess, wireResult, wireSandbox } from "./double.js";
import { collect, until } from "./wait.js";

const EXEC = `/v1/sandboxes/${ID}/exec`;
const OUTPUT = `/v1/sandboxes/${ID}/processes/7/output`;

async function start(): Promise<{ double: Double; sandbox: Sandbox } & AsyncDisposable> {
  const double = await Double.start();
  double
    .on("POST", "/v1/sandboxes", json(wireSandbox(), 201))
    .on("POST", `/v1/sandboxes/${ID}/processes`, json(wireProcess(), 201))
    .on("GET", `/v1/sandboxes/${ID}/processes/7`, json(wireProcess()));
  const sandbox = await Sandbox.create({ apiUrl: double.url, apiKey: "bj_test" });
  return { double, sandbox, [Symbol.asyncDispose]: () => double[Symbol.asyncDispose]() };
}

const piece = (stream: string, offset: number, data: string, encoding = "utf-8"): string => event(stream, { offset, encoding, data });
const exited = (code = 0): string => event("exited", { exit_code: code, signal: null, outcome: { kind: "exited", code } });

test("a short command is one request and one answer", async () => {
  await using at = await start();
  at.double.on("POST", EXEC, json(wireResult("héllo")));
  const result = await at.sandbox.commands.run("echo", { cwd: "/tmp", envs: { A: "b" }, stdin: new Uint8Array([0xff]), timeoutMs: 1500, output: "4m" });
  assert.deepEqual([result.stdout, result.exitCode, result.process, result.wallMs, result.cpuMs], ["héllo", 0, 7, 3.5, 1.5]);
  const seen = at.double.seen.at(-1);
  assert.equal(seen?.headers.accept, "application/json");
  assert.deepEqual(JSON.parse(seen?.body ?? ""), { command: "echo", cwd: "/tmp", env: { A: "b" }, stdin_base64: "/w==", timeout: 1.5, output: "4m" });
});

test("a command that may take long is asked for as events", async () => {
  await using at = await start();
  at.double.on("POST", EXEC, events([event("started", { process: 7, pid: 12 }), ": alive\n\n", event("result", wireResult("x"))]));
  for (const timeoutMs of [0, 3_600_000]) {
    assert.equal((await at.sandbox.commands.run(["a", "b"], { timeoutMs })).stdout, "x");
    assert.equal(at.double.seen.at(-1)?.headers.accept, "text/event-stream");
    assert.deepEqual(JSON.parse(at.double.seen.at(-1)?.body ?? ""), { argv: ["a", "b"], timeout: timeoutMs / 1000 });
  }
});

test("output comes as text, however it was cut", async () => {
  await using at = await start();
  const bell = Buffer.from("🔔");
  at.double.on("POST", EXEC, events([piece("stdout", 0, "a"), piece("stdout", 1, bell.subarray(0, 2).toString("base64"), "base64"), piece("stderr", 0, "err"), piece("stdout", 3, bell.subarray(2).toString("base64"), "base64"), event("something_new", {}), event("result", wireResult("kept"))]));
  const out: string[] = [];
  const err: string[] = [];
  const result = await at.sandbox.commands.run("x", { onStdout: (text) => void out.push(text), onStderr: (text) => void err.push(text) });
  assert.deepEqual([out, err, result.stdout], [["a", "🔔"], ["err"], "kept"]);
});

test("bytes that are no text stay bytes", async () => {
  await using at = await start();
  at.double.on("POST", EXEC, json(wireResult("", { stdout: wireOutput("/wCA", { encoding: "base64", bytes: 1003, omitted_bytes: 1000, truncated: true }) })));
  const result = await at.sandbox.commands.run("x");
  assert.deepEqual([...result.stdoutBytes], [0xff, 0, 0x80]);
  assert.deepEqual([result.stdout, result.stdoutOmittedBytes], ["\ufffd\0\ufffd", 1000]);
});

test("a slow listener slows the reading, not the memory", async () => {
  await using at = await start();
  let sent = 0;
  const chunk = "x".repeat(64 * 1024);
  at.double.on("POST", EXEC, async (_request, response) => {
    const closed = once(response, "close");
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    while (sent < 1000 && !response.destroyed) {
      sent += 1;
      if (!response.write(piece("stdout", 0, chunk))) {
        await Promise.race([once(response, "drain"), closed]);
      }
    }
    response.end(event("result", wireResult("")));
  });
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  let got = 0;
  const running = at.sandbox.commands.run("x", {
    onStdout: async () => {
      got += 1;
      await held;
    },
  });
  await until("the first piece", () => got === 1);
  let before = -1;
  await until("the server does not get on any more", async () => {
    const stuck = before === sent;
    before = sent;
    await new Promise((resolve) => setTimeout(resolve, 100));
    return stuck;
  });
  assert.ok(sent < 1000, `${sent} pieces were sent to somebody who does not read`);
  release();
  await running;
  assert.equal(sent, 1000);
});

test("what a listener throws ends the command", async () => {
  await using at = await start();
  let closed = false;
  at.double.on("POST", EXEC, (request, response) => {
    response.on("close", () => {
      closed = true;
    });
    return events([piece("stdout", 0, "a")], "open")(request, response, undefined as never);
  });
  await assert.rejects(at.sandbox.commands.run("x", { onStdout: () => Promise.reject(new RangeError("mine")) }), /mine/);
  await until("the connection is closed", () => closed);
});

test("an abort ends the command and rejects with its reason", async () => {
  await using at = await start();
  let closed = 0;
  const hang = (request: never, response: { on(name: "close", listener: () => void): void }): void => {
    void request;
    response.on("close", () => {
      closed += 1;
    });
  };
  at.double.on("POST", EXEC, hang as never);
  const reason = new Error("enough");
  const controller = new AbortController();
  const running = at.sandbox.commands.run("x", { signal: controller.signal });
  await until("the request is there", () => at.double.count("POST", EXEC) === 1);
  controller.abort(reason);
  await assert.rejects(running, (error) => error === reason);
  await until("the connection is closed", () => closed === 1);
  await assert.rejects(at.sandbox.commands.run("x", { signal: controller.signal }), (error) => error === reason);
  assert.equal(at.double.count("POST", EXEC), 1);

  at.double.on("POST", EXEC, events([piece("stdout", 0, "a")], "open"));
  const later = new AbortController();
  await assert.rejects(at.sandbox.commands.run("x", { signal: later.signal, onStdout: () => later.abort(reason) }), (error) => error === reason);
});

test("an abort ends the wait for another attempt", async () => {
  await using at = await start();
  at.double.on("GET", "/v1/me", problem(429, "quota_exceeded", "x", { retry_after_s: 20 }));
  const begin = performance.now();
  await assert.rejects(new Belljar({ apiUrl: at.double.url }).me({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  assert.ok(performance.now() - begin < 5000);
});

test("requests have a time limit", async () => {
  await using at = await start();
  at.double.on("GET", "/v1/me", () => undefined).on("GET", "/v1/templates", (_request, response) => {
    response.writeHead(200, { "Content-Type": "application/json" });
    response.write("{");
  });
  const client = new Belljar({ apiUrl: at.double.url, requestTimeoutMs: 50 });
  await assert.rejects(client.me(), (error) => error instanceof TimeoutError && error.code === "request_timeout");
  await assert.rejects(client.templates.list().all(), TimeoutError, "the body counts as well");
  await assert.rejects(new Belljar({ apiUrl: at.double.url }).me({ requestTimeoutMs: 50 }), TimeoutError);
});

test("the time limit of a file is that of its pieces", async () => {
  await using at = await start();
  const content = `/v1/sandboxes/${ID}/files/content`;
  const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 200));
  at.double.on("GET", content, async (_request, response) => {
    response.writeHead(200);
    for (let count = 0; count < 4; count++) {
      response.write("x");
      await pause();
    }
    response.end();
  });
  const limit = { requestTimeoutMs: 500 };
  assert.equal(await at.sandbox.files.read("a", limit), "xxxx");
  at.double.on("GET", content, (_request, response) => {
    response.writeHead(200);
    response.write("x");
  });
  await assert.rejects(at.sandbox.files.read("a", limit), TimeoutError);

  let left = 4;
  const slow = (): ReadableStream<Uint8Array> =>
    new ReadableStream({
      async pull(controller) {
        await pause();
        if (left === 0) {
          controller.close();
        } else {
          left -= 1;
          controller.enqueue(new Uint8Array([120]));
        }
      },
    });
  at.double.on("PUT", content, json({ path: "a", kind: "file", bytes: 4, mode: "0644", modified_at: "2026-11-21T15:04:05.123456Z" }));
  await at.sandbox.files.write("a", slow(), limit);
  assert.equal(at.double.seen.at(-1)?.body, "xxxx");
  at.double.on("PUT", content, () => undefined);
  await assert.rejects(at.sandbox.files.write("a", new Blob(["x"]).stream(), { requestTimeoutMs: 50 }), TimeoutError);
});

test("large data has time to be sent", async () => {
  await using at = await start();
  at.double.on("PUT", `/v1/sandboxes/${ID}/files/content`, async (request, response, raw) => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    await json({ path: "a", kind: "file", bytes: 1, mode: "0644", modified_at: "2026-11-21T15:04:05.123456Z" })(request, response, raw);
  });
  const large = new Uint8Array(512 * 1024);
  for (const data of [large, new Blob([large])]) {
    await at.sandbox.files.write("a", data, { requestTimeoutMs: 100 });
  }
  await assert.rejects(at.sandbox.files.write("a", "x", { requestTimeoutMs: 100 }), TimeoutError);
});

test("searches and archives may take their time", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  const sandbox = await Sandbox.create({ apiUrl: double.url, apiKey: "bj_test", requestTimeoutMs: 1000 });
  const late = (answer: object): Handler => async (request, response, raw) => {
    await new Promise((resolve) => setTimeout(resolve, 1300));
    await json(answer)(request, response, raw);
  };
  double.on("POST", `/v1/sandboxes/${ID}/files/search`, late({ matches: [], truncated: false })).on("PUT", `/v1/sandboxes/${ID}/files/archive`, late({ entries: 1, bytes: 2 }));
  const [found, unpacked] = await Promise.all([sandbox.files.search({ name: "x" }), sandbox.files.putArchive("a", "x")]);
  assert.deepEqual([found.matches, unpacked.entries], [[], 1]);
  await assert.rejects(sandbox.files.search({ name: "x", requestTimeoutMs: 50 }), TimeoutError);
});

test("a command's time comes on top of the request's", async () => {
  await using at = await start();
  at.double.on("POST", EXEC, async (request, response, raw) => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    await json(wireResult("late"))(request, response, raw);
  });
  assert.equal((await at.sandbox.commands.run("x", { timeoutMs: 1000, requestTimeoutMs: 100 })).stdout, "late");
});

test("a stream without a sign of life is broken", async () => {
  await using at = await start();
  at.double.on("POST", EXEC, events([piece("stdout", 0, "a")], "open"));
  const transport = new Transport(new Configuration({ apiUrl: at.double.url }), 100);
  await assert.rejects(async () => {
    for await (const one of transport.events({ method: "POST", path: EXEC })) {
      assert.equal(one.event, "stdout");
    }
  }, (error) => error instanceof ConnectionError && /not even a keep-alive/.test(error.message));
});

test("a stream that ends too early is an error, and is not run again", async () => {
  await using at = await start();
  for (const then of ["end", "break"] as const) {
    at.double.on("POST", EXEC, events([piece("stdout", 0, "a")], then));
    const before = at.double.seen.length;
    await assert.rejects(at.sandbox.commands.run("x", { onStdout: () => undefined }), ConnectionError);
    assert.equal(at.double.seen.length, before + 1);
  }
  at.double.on("POST", EXEC, events([event("error", { status: 410, code: "sandbox_gone", detail: "it is gone" })]));
  await assert.rejects(at.sandbox.commands.run("x", { onStdout: () => undefined }), { name: "SandboxGoneError", message: "it is gone" });
  at.double.on("POST", EXEC, events(["event: result\ndata: {\n\n"]));
  await assert.rejects(at.sandbox.commands.run("x", { onStdout: () => undefined }), (error) => error instanceof SandboxError && error.code === "bad_answer");
});

test("a handle comes back once its output is being read, or never will be", async () => {
  await using at = await start();
  let answer = (): void => undefined;
  const held = new Promise<void>((resolve) => void (answer = resolve));
  let answered = false;
  at.double.on("GET", OUTPUT, async (_request, response) => {
    await held;
    answered = true;
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    response.end(exited());
  });
  const starting = at.sandbox.commands.run("x", { background: true });
  await until("the output is asked for", () => at.double.seen.some((seen) => seen.url.startsWith(OUTPUT)));
  answer();
  const handle = await starting;
  assert.ok(answered, "the handle came back before the server answered");
  assert.equal((await handle.wait()).exitCode, 0);
  at.double.on("GET", OUTPUT, problem(404, "process_not_found", "x"));
  const failed = await at.sandbox.commands.run("x", { background: true });
  await assert.rejects(failed.wait(), NotFoundError);
});

test("a command in the background is read over broken connections, from where they broke", async () => {
  await using at = await start();
  at.double.on("GET", OUTPUT, events([piece("stdout", 0, "ab"), piece("stderr", 0, "e")], "break"), problem(503, "shutting_down", "x"), events([piece("stdout", 2, "cd")]), events([exited()]));
  const handle = await at.sandbox.commands.run("x", { background: true, stdin: true });
  assert.deepEqual([handle.process, handle.pid], [7, 12]);
  const result = await handle.wait();
  assert.deepEqual([result.stdout, result.stderr, handle.stdout, handle.exitCode], ["abcd", "e", "abcd", 0]);
  const asked = at.double.seen.filter((request) => request.url.startsWith(OUTPUT)).map((request) => request.url.split("?")[1]);
  assert.deepEqual(asked.at(-1), "stdout=4&stderr=1&terminal=0&follow=true");
  const body: unknown = JSON.parse(at.double.seen.find((request) => request.url.endsWith("/processes"))?.body ?? "");
  assert.deepEqual(body, { command: "x", timeout: 0, stdin_open: true });
});

test("a server that is slow to come back is waited for", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201)).on("POST", `/v1/sandboxes/${ID}/processes`, json(wireProcess(), 201));
  const sandbox = await Sandbox.create({ apiUrl: double.url, apiKey: "bj_test", requestTimeoutMs: 1000 });
  double.on("GET", OUTPUT, events([piece("stdout", 0, "ab")], "break"), () => undefined, events([piece("stdout", 2, "cd"), exited()]));
  const handle = await sandbox.commands.run("x", { background: true });
  assert.equal((await handle.wait()).stdout, "abcd");
});

test("a server that does not come back is given up on", async () => {
  await using at = await start();
  at.double.on("GET", OUTPUT, events([]));
  const handle = await at.sandbox.commands.run("x", { background: true });
  await assert.rejects(handle.wait(), ConnectionError);
  assert.equal(at.double.count("GET", OUTPUT), 6);
});

test("a handle throws as run does, and keeps what it is told to", async () => {
  await using at = await start();
  at.double.on("GET", OUTPUT, events([piece("stdout", 0, "0123456789"), exited(3)]));
  const handle = await at.sandbox.commands.run("x", { background: true, keepBytes: 4 });
  await assert.rejects(handle.wait(), { name: "CommandExitError", exitCode: 3, stdout: "6789" });
  const result = await handle.wait({ check: false });
  assert.deepEqual([result.stdoutOmittedBytes, result.error], [6, "ended with exit code 3"]);
});

test("a handle that was disconnected hears no more", async () => {
  await using at = await start();
  at.double.on("GET", OUTPUT, events([piece("stdout", 0, "a"), piece("stdout", 1, "b")], "open"));
  const heard: string[] = [];
  const handle = await at.sandbox.commands.connect({ process: 7 }, {
    onStdout: (text) => {
      heard.push(text);
      handle.disconnect();
    },
  });
  await assert.rejects(handle.wait(), (error) => error instanceof SandboxError && error.code === "disconnected");
  assert.deepEqual(heard, ["a"]);
  at.double.on("GET", OUTPUT, events([], "open"));
  const waiting = await at.sandbox.commands.connect({ process: 7 });
  await assert.rejects(waiting.wait({ signal: AbortSignal.timeout(20) }), { name: "TimeoutError" });
  waiting.disconnect();
});

test("a process that is not there cannot be signalled, listened to or fed", async () => {
  await using at = await start();
  const missing = problem(404, "process_not_found", "no such process");
  at.double.on("POST", `/v1/sandboxes/${ID}/processes/9/signal`, missing).on("GET", `/v1/sandboxes/${ID}/processes/9`, missing).on("POST", `/v1/sandboxes/${ID}/processes/9/stdin`, missing);
  assert.equal(await at.sandbox.commands.kill({ process: 9 }), false);
  await assert.rejects(at.sandbox.commands.connect({ process: 9 }), NotFoundError);
  await assert.rejects(at.sandbox.commands.sendStdin({ process: 9 }, "x"), NotFoundError);
  // A missing sandbox differs from a missing process.
  at.double.on("POST", `/v1/sandboxes/${ID}/processes/9/signal`, problem(404, "sandbox_not_found", "x"));
  await assert.rejects(at.sandbox.commands.kill({ process: 9 }), NotFoundError);
});

test("output as a stream comes when it is asked for, and can be left", async () => {
  await using at = await start();
  let closed = false;
  at.double.on("GET", OUTPUT, (request, response, raw) => {
    response.on("close", () => {
      closed = true;
    });
    return events([piece("stdout", 5, "a"), piece("terminal", 0, "t")], "open")(request, response, raw);
  });
  const stream = at.sandbox.commands.output({ process: 7 }, { stdout: 5 });
  assert.equal(at.double.count("GET", OUTPUT), 0, "nothing is asked for before somebody reads");
  const reader = stream.getReader();
  assert.deepEqual((await reader.read()).value, { stream: "stdout", offset: 5, data: new Uint8Array([97]) });
  assert.deepEqual((await reader.read()).value?.stream, "terminal");
  await reader.cancel();
  await until("the connection is closed", () => closed);

  at.double.on("GET", OUTPUT, events([piece("stdout", 0, "a")]));
  const now = at.sandbox.commands.output({ process: 7 }, { follow: false }).getReader();
  assert.equal((await now.read()).done, false);
  assert.equal((await now.read()).done, true);
  at.double.on("GET", OUTPUT, problem(404, "process_not_found", "x"));
  await assert.rejects(at.sandbox.commands.output({ process: 7 }).getReader().read(), NotFoundError);
});

test("a file is streamed as it is read, and can be left", async () => {
  await using at = await start();
  let closed = false;
  const content = `/v1/sandboxes/${ID}/files/content`;
  at.double.on("GET", content, (_request, response) => {
    response.on("close", () => {
      closed = true;
    });
    response.writeHead(200, { "Content-Length": "1000000" });
    response.write(Buffer.alloc(1000));
  });
  const stream = await at.sandbox.files.read("a", { format: "stream" });
  const reader = stream.getReader();
  assert.ok(((await reader.read()).value?.length ?? 0) > 0);
  await reader.cancel();
  await until("the connection is closed", () => closed);
  at.double.on("GET", content, (_request, response) => {
    response.writeHead(200, { "Content-Length": "1000000" });
    response.write(Buffer.alloc(1000), () => response.socket?.destroy());
  });
  await assert.rejects(collect(await at.sandbox.files.read("a", { format: "stream" })), ConnectionError);
});

test("the parts of a file that are asked for", async () => {
  await using at = await start();
  const content = `/v1/sandboxes/${ID}/files/content`;
  at.double.on("GET", content, (_request, response) => void response.writeHead(206).end("part")).on("GET", `/v1/sandboxes/${ID}/files/stat`, json({ path: "a", kind: "file", bytes: 1, mode: "0644", modified_at: "2026-11-21T15:04:05.123456Z" }));
  for (const [options, range] of [[{ start: 2 }, "bytes=2-"], [{ start: 2, end: 5 }, "bytes=2-4"], [{ end: 5 }, "bytes=0-4"]] as const) {
    assert.equal(await at.sandbox.files.read("a", options), "part");
    assert.equal(at.double.seen.at(-1)?.headers.range, range);
  }
  assert.equal(await at.sandbox.files.read("a", { start: 3, end: 3 }), "");
  for (const wrong of [{ start: -1 }, { start: 2, end: 1 }, { start: 0.5 }, { end: NaN }]) {
    await assert.rejects(at.sandbox.files.read("a", wrong), InvalidArgumentError);
  }
});

test("writes say what they are to do", async () => {
  await using at = await start();
  at.double.on("PUT", `/v1/sandboxes/${ID}/files/content`, json({ path: "a b", kind: "file", bytes: 3, mode: "0755", modified_at: "2026-11-21T15:04:05.123456Z" }));
  const info = await at.sandbox.files.write("a b&c", "ü!", { mode: 0o755, append: true });
  assert.deepEqual([info.name, info.mode, info.modifiedAt.toISOString()], ["a b", 0o755, "2026-11-21T15:04:05.123Z"]);
  let seen = at.double.seen.at(-1);
  assert.equal(seen?.url.split("?")[1], "path=a+b%26c&mode=0755&append=true&make_parents=true");
  assert.equal(seen?.body, "ü!");
  await at.sandbox.files.write(new Uint8Array([0xff, 0x61]), new Uint8Array([1, 2, 3]).buffer, { offset: 10, exclusive: true, makeParents: false });
  seen = at.double.seen.at(-1);
  assert.equal(seen?.url.split("?")[1], "path_base64=%2F2E%3D&exclusive=true&make_parents=false");
  assert.equal(seen?.headers["content-range"], "bytes 10-12/*");
  for (const data of [new Blob(["blob"]), new Blob(["blob"]).stream()]) {
    await at.sandbox.files.write("a", data);
    assert.equal(at.double.seen.at(-1)?.body, "blob");
  }
  await assert.rejects(at.sandbox.files.write("a", new Blob(["x"]).stream(), { offset: 1 }), InvalidArgumentError);
  await assert.rejects(at.sandbox.files.write("a", 5 as never), InvalidArgumentError);
  for (const mode of ["9", "rwx", -1, 0o10000, 1.5]) {
    await assert.rejects(at.sandbox.files.write("a", "", { mode }), InvalidArgumentError);
  }
});

test("lists are put together of pages, with paths that other calls take", async () => {
  await using at = await start();
  const entry = (path: string): object => ({ path, kind: "file", bytes: 1, mode: "0644", modified_at: "2026-11-21T15:04:05.123456Z" });
  at.double.on("GET", `/v1/sandboxes/${ID}/files`, json({ entries: [entry("a"), entry("b/c")], next_cursor: "more" }), json({ entries: [{ ...entry("\ufffd"), path_base64: "/w==" }], next_cursor: null }));
  const listed = await at.sandbox.files.list("/data", { depth: 2 });
  assert.deepEqual(listed.map((one) => [one.name, one.path]), [["a", "/data/a"], ["c", "/data/b/c"], ["\ufffd", "/data/\ufffd"]]);
  assert.deepEqual(Buffer.from(listed[2]?.pathBytes ?? []), Buffer.concat([Buffer.from("/data/"), Buffer.from([0xff])]));
  assert.equal(at.double.seen.at(-1)?.url.split("?")[1], "path=%2Fdata&depth=2&cursor=more");
});

test("a download never leaves its directory, whatever the sandbox says", async () => {
  await using at = await start();
  const entry = (path: string, kind = "file"): object => ({ path, kind, bytes: 1, mode: "0644", modified_at: "2026-11-21T15:04:05.123456Z" });
  at.double.on("GET", `/v1/sandboxes/${ID}/files/stat`, json(entry("data", "directory"))).on("GET", `/v1/sandboxes/${ID}/files/content`, (_request, response) => void response.end("evil"));
  const top = await mkdtemp(join(tmpdir(), "belljar-sdk-"));
  try {
    const target = join(top, "target");
    for (const path of ["../evil", "/evil", "a/../../evil", "..", "a\\..\\evil", ""]) {
      at.double.on("GET", `/v1/sandboxes/${ID}/files`, json({ entries: [entry(path)], next_cursor: null }));
      await assert.rejects(at.sandbox.files.download("data", target), (error) => error instanceof SandboxError && error.code === "bad_file_name", path);
    }
    assert.deepEqual(await readdir(top, { recursive: true } as never), ["target"]);
  } finally {
    await rm(top, { recursive: true });
  }
});

test("a download that breaks leaves the old file and nothing else", async () => {
  await using at = await start();
  at.double.on("GET", `/v1/sandboxes/${ID}/files/stat`, json({ path: "a", kind: "file", bytes: 1000, mode: "0644", modified_at: "2026-11-21T15:04:05.123456Z" })).on("GET", `/v1/sandboxes/${ID}/files/content`, (_request, response) => {
    response.writeHead(200, { "Content-Length": "1000" });
    response.write("half", () => response.socket?.destroy());
  });
  const top = await mkdtemp(join(tmpdir(), "belljar-sdk-"));
  try {
    await writeFile(join(top, "a"), "old");
    await assert.rejects(at.sandbox.files.download("a", join(top, "a")), ConnectionError);
    assert.deepEqual(await readdir(top), ["a"]);
    assert.equal(await readFile(join(top, "a"), "utf8"), "old");
  } finally {
    await rm(top, { recursive: true });
  }
});

test("a watch is in place when it is handed out, and silent when it was stopped", async () => {
  await using at = await start();
  const watch = `/v1/sandboxes/${ID}/files/watch`;
  at.double.on("GET", watch, events([event("ready", {}), event("created", { path: "a", directory: false }), event("moved_to", { path: "b", directory: true }), event("overflow", {}), event("unknown", {})], "open"));
  const heard: unknown[] = [];
  const ends: (Error | undefined)[] = [];
  const handle = await at.sandbox.files.watchDir("data", (one) => void heard.push(one), { recursive: true, onExit: (error) => void ends.push(error as Error | undefined) });
  await until("all events", () => heard.length === 3);
  assert.deepEqual(heard, [{ type: "created", path: "a", directory: false }, { type: "moved_to", path: "b", directory: true }, { type: "overflow" }]);
  await handle.stop();
  await handle.stop();
  assert.equal(ends.length, 1);
  assert.equal(ends[0] === undefined, true);
  assert.equal(at.double.seen.at(-1)?.url, `${watch}?path=data&recursive=true`);

  at.double.on("GET", watch, events([event("ready", {})], "break"));
  await at.sandbox.files.watchDir("data", () => undefined, { onExit: (error) => void ends.push(error as Error | undefined) });
  await until("the end", () => ends.length === 2);
  assert.ok(ends[1] instanceof ConnectionError);
  at.double.on("GET", watch, problem(404, "path_not_found", "x"));
  await assert.rejects(at.sandbox.files.watchDir("data", () => undefined), NotFoundError);
  at.double.on("GET", watch, events([event("error", { status: 500, code: "engine_failed", detail: "x" })]));
  await assert.rejects(at.sandbox.files.watchDir("data", () => undefined), ServerError);
});

test("pages are asked for when they are needed", async () => {
  await using at = await start();
  const page = (ids: string[], next: string | null): object => ({ sandboxes: ids.map((id) => wireSandbox({ id })), next_cursor: next });
  at.double.on("GET", "/v1/sandboxes", json(page(["a", "b"], "2")), json(page(["c"], "3")), json(page(["d"], null)));
  const list = Sandbox.list({ apiUrl: at.double.url, labels: { job: "42", x: "a=b" }, state: ["running", "paused"], limit: 2 });
  assert.equal(at.double.count("GET", "/v1/sandboxes"), 0);
  assert.deepEqual((await list.nextItems()).map((info) => info.sandboxId), ["a", "b"]);
  assert.deepEqual([list.hasNext, list.nextToken], [true, "2"]);
  assert.equal(at.double.seen.at(-1)?.url, "/v1/sandboxes?state=running%2Cpaused&label=job%3D42&label=x%3Da%3Db&limit=2");
  const rest: string[] = [];
  for await (const info of list) {
    rest.push(info.sandboxId);
  }
  assert.deepEqual([rest, list.hasNext, await list.nextItems()], [["c", "d"], false, []]);
});

test("connect resumes what is paused, and only that", async () => {
  await using at = await start();
  const options = { apiUrl: at.double.url };
  at.double.on("GET", `/v1/sandboxes/${ID}`, json(wireSandbox())).on("POST", `/v1/sandboxes/${ID}/resume`, json(wireSandbox()));
  await Sandbox.connect(ID, options);
  assert.equal(at.double.count("POST", `/v1/sandboxes/${ID}/resume`), 0);
  await Sandbox.connect(ID, { ...options, timeoutMs: 5000 });
  assert.equal(at.double.seen.at(-1)?.body, '{"timeout":5}');
  at.double.on("GET", "/v1/sandboxes/by-name", json(wireSandbox({ state: "paused" })));
  assert.equal((await Sandbox.connect("by-name", options)).sandboxId, ID);
  assert.equal(at.double.count("POST", `/v1/sandboxes/${ID}/resume`), 2);
});

test("leaving the block ends the sandbox", async () => {
  await using at = await start();
  at.double.on("DELETE", `/v1/sandboxes/${ID}`, noContent);
  {
    await using sandbox = await Sandbox.create({ apiUrl: at.double.url });
    assert.equal(sandbox.sandboxId, ID);
  }
  assert.equal(at.double.count("DELETE", `/v1/sandboxes/${ID}`), 1);
});

// Found with Node 20: a read that begins at the moment of an abort may never end, so nothing may rely on its end.
test("an abort is enough, whatever the runtime's body does with it", async () => {
  const deaf = (first: string): typeof fetch => async () => new Response(new ReadableStream({ start: (controller) => controller.enqueue(new TextEncoder().encode(first)) }), { headers: { "Content-Type": "text/event-stream" } });
  const client = (first: string): Transport => new Transport(new Configuration({ fetch: deaf(first) }), 50);

  const soon = (): AbortSignal => {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 20);
    return controller.signal;
  };

  const watch = await startWatch(client(event("ready", {})), { method: "GET", path: "/" }, () => undefined, {});
  await watch.stop();
  await assert.rejects(client("{").json({ method: "GET", path: "/", options: { requestTimeoutMs: 20 } }), TimeoutError);
  await assert.rejects(client("{").json({ method: "GET", path: "/", options: { signal: soon() } }), { name: "AbortError" });
  const { body } = await client("x").stream({ method: "GET", path: "/", options: { signal: soon() } });
  await assert.rejects(collect(body), { name: "AbortError" });
  await assert.rejects(async () => {
    for await (const one of client(event("x", {})).events({ method: "GET", path: "/" })) {
      assert.equal(one.event, "x");
    }
  }, ConnectionError);
});

test("a pid means the process that runs, or the last one that had it", async () => {
  await using at = await start();
  const { double, sandbox } = at;
  const listed = [
    { process: 3, pid: 12, running: false },
    { process: 5, pid: 12, running: false },
    { process: 4, pid: 13, running: true },
    { process: 6, pid: 13, running: false },
  ].map((changes) => wireProcess(changes));
  double.on("GET", `/v1/sandboxes/${ID}/processes`, json({ processes: listed }));
  assert.equal((await sandbox.commands.getInfo(12)).process, 5);
  assert.equal((await sandbox.commands.getInfo(13)).process, 4);
  await assert.rejects(sandbox.commands.getInfo(14), (error) => error instanceof NotFoundError && error.code === "process_not_found");
});
