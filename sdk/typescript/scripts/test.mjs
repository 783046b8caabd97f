// Runs the tests. With BELLJAR_BIN set, it starts a server of its own for them, on a free port and with an empty home, and ends it.
import { spawn } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const START_DEADLINE_MS = 60_000;
const STOP_DEADLINE_MS = 20_000;
const here = fileURLToPath(new URL("..", import.meta.url));

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Starts a server, and resolves when it is ready. */
async function startServer(program) {
  const home = await mkdtemp(join(tmpdir(), "belljar-sdk-home-"));
  const url = `http://127.0.0.1:${await freePort()}`;
  const server = spawn(program, ["serve", "--listen", url.slice("http://".length), "--on-exit", "end", "--set", "sandboxes.share_host_tree=true", "--domain", "localhost"], { env: { ...process.env, BELLJAR_HOME: home }, stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  let ended = false;
  const exit = new Promise((resolve) => {
    server.once("exit", resolve).once("error", (error) => {
      output += String(error);
      resolve(-1);
    });
  }).then(() => {
    ended = true;
  });
  for (const stream of [server.stdout, server.stderr]) {
    stream.setEncoding("utf8").on("data", (text) => {
      output = (output + text).slice(-1_000_000);
    });
  }
  const stop = async () => {
    server.kill("SIGTERM");
    const late = setTimeout(() => server.kill("SIGKILL"), STOP_DEADLINE_MS);
    await exit;
    clearTimeout(late);
    await rm(home, { recursive: true, force: true });
  };

  const deadline = Date.now() + START_DEADLINE_MS;
  for (;;) {
    // It prints its first key once.
    const key = /\bbj_[0-9a-f]{64}\b/.exec(output)?.[0];
    const ready = key !== undefined && (await fetch(`${url}/ready`).then((answer) => answer.ok, () => false));
    if (ready) {
      return { url, key, stop, output: () => output };
    }
    if (ended || Date.now() > deadline) {
      await stop();
      throw new Error(`the server ${ended ? "ended" : "was not ready in time"}:\n${output}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function runTests(environment) {
  const tests = (await readdir(join(here, "build/test"))).filter((name) => name.endsWith(".test.js")).sort();
  const chosen = process.argv.slice(2);
  const files = tests.filter((name) => chosen.length === 0 || chosen.some((part) => name.includes(part))).map((name) => join("build/test", name));
  // The gate reads the results from a file as well; older versions of Node cannot write it.
  const junit = parseInt(process.versions.node) >= 20 ? process.env.GATE_JUNIT : undefined;
  const reporters = junit ? ["--test-reporter=spec", "--test-reporter-destination=stdout", "--test-reporter=junit", `--test-reporter-destination=${junit}`] : [];
  const runner = spawn(process.execPath, ["--test", ...reporters, ...files], { cwd: here, env: { ...process.env, ...environment }, stdio: "inherit" });
  return new Promise((resolve, reject) => {
    runner.once("exit", (code) => resolve(code ?? 1)).once("error", reject);
  });
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
