// Connects this terminal to a shell in a sandbox. `exit` ends both.
import { Sandbox } from "belljar";

await using sandbox = await Sandbox.create({ timeoutMs: 3_600_000 });
const { stdin, stdout } = process;

const size = (): { rows: number; cols: number } => ({ rows: stdout.rows ?? 24, cols: stdout.columns ?? 80 });
const terminal = await sandbox.pty.create({
  ...size(),
  // The promise makes a slow terminal slow down the sandbox instead of filling the memory.
  onData: (data) => new Promise<void>((resolve, reject) => stdout.write(data, (error) => (error ? reject(error) : resolve()))),
});

if (stdin.isTTY) {
  stdin.setRawMode(true);
}
stdin.on("data", (data: Uint8Array) => void terminal.sendInput(data).catch(() => undefined));
stdout.on("resize", () => void terminal.resize(size()).catch(() => undefined));
try {
  const { exitCode } = await terminal.wait();
  process.exitCode = exitCode ?? 1;
} finally {
  if (stdin.isTTY) {
    stdin.setRawMode(false);
  }
  stdin.destroy();
}
