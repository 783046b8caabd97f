// Runs the tests against one server, to which the variables lead that `belljar serve --e2b` prints. BELLJAR_BIN is the program.
import { readdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { runFiles, startServer } from "../../../sdk/typescript/scripts/server.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const chosen = process.argv.slice(2);
const tests = (await readdir(here)).filter((name) => name.endsWith(".test.mjs")).sort();
const files = tests.filter((name) => chosen.length === 0 || chosen.some((part) => name.includes(part)));

// These tests present more wrong tokens in a minute than a client may, and clients wait when they are told to.
const server = await startServer(process.env.BELLJAR_BIN, ["--e2b", "--set", "server.max_failed_attempts=1000", "--set", "sandboxes.volumes.size=64m"]);
try {
  // The clients' timers would keep each file's process for half a minute.
  const variables = [...server.output().matchAll(/^export (E2B_\w+)=(\S+)/gm)].map(([, name, value]) => [name, value]);
  process.exitCode = await runFiles(here, files, Object.fromEntries(variables), ["--test-force-exit"]);
  if (process.exitCode !== 0 && process.env.BELLJAR_SHOW_LOG) {
    console.error(server.output());
  }
} finally {
  await server.stop();
}
