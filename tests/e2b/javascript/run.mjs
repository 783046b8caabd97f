// Runs the tests against one server, with the variables that `belljar serve --e2b` prints. BELLJAR_BIN is the path of the belljar binary.
import { readdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { runFiles, startServer } from "../../../sdk/typescript/scripts/server.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const selected = process.argv.slice(2);
const tests = (await readdir(here)).filter((name) => name.endsWith(".test.mjs")).sort();
const files = tests.filter((name) => selected.length === 0 || selected.some((part) => name.includes(part)));

// These tests send more wrong tokens per minute than a client may, and clients obey Retry-After.
const server = await startServer(process.env.BELLJAR_BIN, ["--e2b", "--set", "server.max_failed_attempts=1000", "--set", "sandboxes.volumes.size=64m"]);
try {
  // The clients' timers would keep each file's process alive for half a minute.
  const variables = [...server.output().matchAll(/^export (E2B_\w+)=(\S+)/gm)].map(([, name, value]) => [name, value]);
  process.exitCode = await runFiles(here, files, Object.fromEntries(variables), ["--test-force-exit"]);
  if (process.exitCode !== 0 && process.env.BELLJAR_SHOW_LOG) {
    console.error(server.output());
  }
} finally {
  await server.stop();
}
