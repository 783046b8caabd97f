// Runs the tests. With BELLJAR_BIN set, it starts its own server for them, and stops it afterwards.
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { runFiles, startServer } from "./server.mjs";

const here = fileURLToPath(new URL("..", import.meta.url));

async function runTests(environment) {
  const tests = (await readdir(join(here, "build/test"))).filter((name) => name.endsWith(".test.js")).sort();
  const chosen = process.argv.slice(2);
  const files = tests.filter((name) => chosen.length === 0 || chosen.some((part) => name.includes(part))).map((name) => join("build/test", name));
  return runFiles(here, files, environment);
}

const program = process.env.BELLJAR_BIN;
if (program) {
  const server = await startServer(program);
  try {
    process.exitCode = await runTests({ BELLJAR_API_URL: server.url, BELLJAR_API_KEY: server.key, BELLJAR_TEST_TENANTS: "1" });
    if (process.exitCode !== 0 && process.env.BELLJAR_SHOW_LOG) {
      console.error(server.output());
    }
  } finally {
    await server.stop();
  }
} else {
  if (!process.env.BELLJAR_API_URL) {
    console.error("== No server: tests that need one are skipped. Set BELLJAR_BIN, or BELLJAR_API_URL and BELLJAR_API_KEY.");
  }
  process.exitCode = await runTests({});
}
