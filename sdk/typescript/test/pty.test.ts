import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { WebSocket } from "ws";
import { ConnectionError, NotFoundError, Sandbox, SandboxError } from "../src/index.js";
import { Double, frame, ID, json, noContent, problem, wireProcess, wireSandbox } from "./double.js";
import { until } from "./wait.js";

async function start(): Promise<{ double: Double; sandbox: Sandbox; sockets: WebSocket[]; offsets: string[]; typed: Buffer[] } & AsyncDisposable> {
  const double = await Double.start();
  double
    .on("POST", "/v1/sandboxes", json(wireSandbox(), 201))
    .on("POST", `/v1/sandboxes/${ID}/processes`, json(wireProcess(), 201))
    .on("GET", `/v1/sandboxes/${ID}/processes/7`, json(wireProcess()));
  const sockets: WebSocket[] = [];
  const offsets: string[] = [];
  const typed: Buffer[] = [];
  double.onWebSocket((socket, request) => {
    sockets.push(socket);
    offsets.push(request.url?.split("?")[1] ?? "");
    socket.on("message", (data) => typed.push(data as Buffer));
  });
  const sandbox = await Sandbox.create({ apiUrl: double.url, apiKey: "bj_test" });
  return { double, sandbox, sockets, offsets, typed, [Symbol.asyncDispose]: () => double[Symbol.asyncDispose]() };
}

const exited = JSON.stringify({ event: "exited", exit_code: 0, signal: null, outcome: { kind: "exited", code: 0 } });

test("a terminal shows what comes and sends what is typed, in order", async () => {
  await using at = await start();
  const shown: string[] = [];
  const terminal = await at.sandbox.pty.create({ rows: 24, cols: 80, envs: { A: "b" }, onData: (data) => void shown.push(Buffer.from(data).toString()) });
  const body = JSON.parse(at.double.seen.find((request) => request.url.endsWith("/processes"))?.body ?? "") as Record<string, unknown>;
  assert.deepEqual([body["terminal"], body["env"], body["timeout"], body["stdin_open"]], [{ rows: 24, columns: 80 }, { TERM: "xterm-256color", A: "b" }, 0, true]);
  await Promise.all([..."typed before it is connected"].map((character) => terminal.sendInput(character)));
  await at.sandbox.pty.sendInput(terminal.pid, new Uint8Array([3]));
  await until("all is typed", () => Buffer.concat(at.typed).length === 29);
  assert.equal(Buffer.concat(at.typed).toString(), "typed before it is connected\x03");
  assert.equal(at.double.seen.find((request) => request.method === "UPGRADE")?.headers.authorization, "Bearer bj_test");
  at.sockets[0]?.send(frame(3, 0, "$ "));
  at.sockets[0]?.send(JSON.stringify({ event: "something_new" }));
  at.sockets[0]?.send(frame(3, 2, "hi"));
  at.sockets[0]?.send(exited);
  assert.deepEqual(await terminal.wait(), { exitCode: 0, signal: null, outcome: { kind: "exited", code: 0 } });
  assert.deepEqual(shown, ["$ ", "hi"]);
  await assert.rejects(terminal.sendInput("x"), (error) => error instanceof SandboxError && error.code === "process_ended");
});

test("a terminal goes on after a broken connection, from where it broke", async () => {
  await using at = await start();
  let shown = "";
  const terminal = await at.sandbox.pty.connect({ process: 7 }, { onData: (data) => void (shown += Buffer.from(data).toString()), offset: 5 });
  await until("the first connection", () => at.sockets.length === 1);
  at.sockets[0]?.send(frame(3, 5, "abc"));
  await until("what it shows", () => shown === "abc");
  at.sockets[0]?.terminate();
  await until("the second connection", () => at.sockets.length === 2);
  await terminal.sendInput("x");
  at.sockets[1]?.send(frame(3, 8, "def"));
  at.sockets[1]?.send(exited);
  await terminal.wait();
  assert.deepEqual([shown, at.offsets], ["abcdef", ["terminal=5", "terminal=8"]]);
});

test("a listener that is slow costs no memory: the connection is let go of and taken up again", async () => {
  await using at = await start();
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  let bytes = 0;
  const terminal = await at.sandbox.pty.connect({ process: 7 }, {
    onData: async (data) => {
      await held;
      bytes += data.length;
    },
  });
  await until("the connection", () => at.sockets.length === 1);
  const piece = Buffer.alloc(1024 * 1024);
  for (let count = 0; count < 16; count++) {
    at.sockets[0]?.send(frame(3, count * piece.length, piece));
  }
  await until("it is let go of", () => at.sockets[0]?.readyState === 3);
  release();
  await until("it is taken up again", () => at.sockets.length === 2);
  const offset = Number(at.offsets[1]?.split("=")[1]);
  assert.ok(offset === bytes && offset > 0 && offset < 8 * piece.length, `taken up at ${offset}, seen ${bytes}`);
  at.sockets[1]?.send(exited);
  await terminal.wait();
});

test("large input is sent in pieces that the server takes", async () => {
  await using at = await start();
  const terminal = await at.sandbox.pty.connect({ process: 7 }, { onData: () => undefined });
  const input = Buffer.from("0123456789".repeat(100_000));
  await terminal.sendInput(input);
  await until("all is there", () => at.typed.reduce((sum, part) => sum + part.length, 0) === input.length);
  assert.ok(at.typed.every((part) => part.length <= 64 * 1024));
  assert.deepEqual(Buffer.concat(at.typed), input);
  terminal.disconnect();
  await assert.rejects(terminal.wait(), (error) => error instanceof SandboxError && error.code === "disconnected");
  await assert.rejects(terminal.sendInput("x"), SandboxError);
});

test("a connection that is refused says why", async () => {
  await using at = await start();
  at.double.onWebSocket(undefined as never);
  at.double.on("GET", `/v1/sandboxes/${ID}/processes/7`, json(wireProcess()), problem(404, "process_not_found", "it has ended"));
  const terminal = await at.sandbox.pty.connect({ process: 7 }, { onData: () => undefined });
  await assert.rejects(terminal.wait(), NotFoundError);
  at.double.on("GET", `/v1/sandboxes/${ID}/processes/7`, json(wireProcess()));
  const other = await at.sandbox.pty.connect({ process: 7 }, { onData: () => undefined });
  await assert.rejects(other.wait(), ConnectionError);
});

test("what the server reports, and what a listener throws, ends the connection", async () => {
  await using at = await start();
  const first = await at.sandbox.pty.connect({ process: 7 }, { onData: () => undefined });
  await until("the connection", () => at.sockets.length === 1);
  at.sockets[0]?.send(JSON.stringify({ event: "error", status: 410, code: "sandbox_gone", detail: "it is gone" }));
  await assert.rejects(first.wait(), { name: "SandboxGoneError" });
  const second = await at.sandbox.pty.connect({ process: 7 }, { onData: () => Promise.reject(new RangeError("mine")) });
  await until("the connection", () => at.sockets.length === 2);
  at.sockets[1]?.send(frame(3, 0, "x"));
  await assert.rejects(second.wait(), RangeError);
  const third = await at.sandbox.pty.connect({ process: 7 }, { onData: () => undefined });
  await until("the connection", () => at.sockets.length === 3);
  at.sockets[2]?.send(Buffer.alloc(3));
  await assert.rejects(third.wait(), (error) => error instanceof SandboxError && error.code === "bad_frame");
});

test("sizes, ends, and input without a connection are ordinary requests", async () => {
  await using at = await start();
  const process = `/v1/sandboxes/${ID}/processes/7`;
  at.double.on("POST", `${process}/resize`, noContent).on("POST", `${process}/signal`, json({ signalled: 1 })).on("POST", `${process}/stdin`, json({ bytes: 1 }));
  await at.sandbox.pty.resize({ process: 7 }, { rows: 50, cols: 100 });
  assert.equal(at.double.seen.at(-1)?.body, '{"rows":50,"columns":100}');
  await at.sandbox.pty.sendInput({ process: 7 }, "x");
  assert.deepEqual([at.double.seen.at(-1)?.url, at.double.seen.at(-1)?.body], [`${process}/stdin?close=false`, "x"]);
  assert.equal(await at.sandbox.pty.kill({ process: 7 }), true);
  assert.equal(at.double.seen.at(-1)?.body, '{"signal":"SIGKILL","tree":true}');
});

test("the runtime's own WebSocket does as well as the package", async (context) => {
  await using at = await start();
  const flags = "WebSocket" in globalThis ? [] : ["--experimental-websocket"];
  const works = await promisify(execFile)(process.execPath, [...flags, "-e", "process.exit(typeof WebSocket === 'function' ? 0 : 1)"]).then(() => true, () => false);
  if (!works) {
    context.skip("this runtime has no WebSocket of its own");
    return;
  }
  at.double.onWebSocket((socket) => {
    socket.on("message", (data) => {
      socket.send(frame(3, 0, `seen ${String(data)}`));
      socket.send(exited);
    });
  });
  const program = `
    import { Sandbox } from ${JSON.stringify(new URL("../src/index.js", import.meta.url).href)};
    const sandbox = await Sandbox.create({ apiUrl: ${JSON.stringify(at.double.url)}, apiKey: "bj_test" });
    const terminal = await sandbox.pty.connect({ process: 7 }, { onData: (data) => console.log(new TextDecoder().decode(data), WebSocket.name) });
    await terminal.sendInput("it");
    await terminal.wait();`;
  const { stdout } = await promisify(execFile)(process.execPath, [...flags, "--input-type=module", "-e", program], { cwd: fileURLToPath(new URL(".", import.meta.url)), timeout: 20_000 });
  assert.equal(stdout, "seen it WebSocket\n");
  assert.equal(at.double.seen.find((request) => request.method === "UPGRADE")?.headers.authorization, "Bearer bj_test");
});
