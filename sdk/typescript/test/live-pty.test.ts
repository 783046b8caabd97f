import assert from "node:assert/strict";
import type { PtyHandle } from "belljar";
import { live, shared } from "./live.js";
import { until } from "./wait.js";

const at = shared();

interface Screen {
  text: string;
  terminal: PtyHandle;
}

async function open(options: { rows?: number; cols?: number; command?: string; envs?: Record<string, string>; cwd?: string } = {}): Promise<Screen> {
  const decoder = new TextDecoder();
  const screen: Screen = { text: "", terminal: undefined as never };
  screen.terminal = await at.sandbox.pty.create({ rows: 24, cols: 80, ...options, onData: (data) => void (screen.text += decoder.decode(data, { stream: true })) });
  return screen;
}

live("a shell on a terminal", async () => {
  const screen = await open({ cwd: "/tmp", envs: { WORD: "hello" } });
  await screen.terminal.sendInput("tty && pwd && echo $TERM-$WORD-$((40+2))\n");
  await until("the answer", () => screen.text.includes("xterm-256color-hello-42"));
  assert.match(screen.text, /\/dev\/pts\/\d/);
  assert.match(screen.text, /\/tmp\r\n/);
  await screen.terminal.sendInput("exit 3\n");
  assert.deepEqual(await screen.terminal.wait(), { exitCode: 3, signal: null, outcome: { kind: "exited", code: 3 } });
});

live("a command on a terminal", async () => {
  const screen = await open({ command: "stty size; test -t 0 && test -t 1 && echo terminal", rows: 33, cols: 111 });
  assert.equal((await screen.terminal.wait()).exitCode, 0);
  assert.match(screen.text, /33 111\r\nterminal\r\n/);
});

live("the size can be changed", async () => {
  const screen = await open();
  await screen.terminal.resize({ rows: 50, cols: 132 });
  await screen.terminal.sendInput("stty size; exit\n");
  await screen.terminal.wait();
  assert.match(screen.text, /50 132\r\n/);
  const other = await open();
  await at.sandbox.pty.resize(other.terminal.pid, { rows: 10, cols: 20 });
  await at.sandbox.pty.sendInput(other.terminal.pid, "stty size; exit\n");
  await other.terminal.wait();
  assert.match(other.text, /10 20\r\n/);
});

live("Ctrl-C and Ctrl-D do what they do on a keyboard", async () => {
  const screen = await open({ command: "sleep 300; echo after; cat" });
  await until("it sleeps", async () => (await at.sandbox.commands.run("ps ax | grep '[s]leep 300'", { check: false })).exitCode === 0);
  await screen.terminal.sendInput("\x03");
  await screen.terminal.wait();
  const cat = await open({ command: "cat; echo end" });
  await cat.terminal.sendInput("line\n\x04");
  assert.equal((await cat.terminal.wait()).exitCode, 0);
  assert.match(cat.text, /line\r\nline\r\nend\r\n/);
});

live("a terminal is let go of and taken up again", async () => {
  const screen = await open();
  await screen.terminal.sendInput("echo be''fore\n");
  await until("the answer", () => screen.text.includes("before\r\n"));
  screen.terminal.disconnect();
  const seen = new TextEncoder().encode(screen.text).length;
  let rest = "";
  const again = await at.sandbox.pty.connect(screen.terminal.pid, { offset: seen, onData: (data) => void (rest += Buffer.from(data).toString()) });
  await again.sendInput("echo af''ter\n");
  await until("the answer", () => rest.includes("after\r\n"));
  assert.ok(!rest.includes("before\r\n"));
  assert.equal(await again.kill(), true);
  assert.equal((await again.wait()).signal, "SIGKILL");
  assert.equal(await at.sandbox.pty.kill(again.pid), false);
});

live("much output on a terminal comes whole", async () => {
  const screen = await open({ command: "seq 1 100000" });
  await screen.terminal.wait();
  const lines = screen.text.split("\r\n");
  assert.equal(lines.length, 100_001);
  assert.equal(lines[99_999], "100000");
});
