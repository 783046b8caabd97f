// A server for tests, and the test runner.
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const START_DEADLINE_MS = 60_000;
const STOP_DEADLINE_MS = 20_000;

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/**
 * Starts a server on a free port with an empty home, and resolves when it is ready. With `certificates`, the directory that
 * `belljar cert` has made for the domain, it speaks TLS. `restart` ends it, waits for a function, and starts it again there.
 */
export async function startServer(program, more = [], { domain = "localhost", certificates } = {}) {
  const home = await mkdtemp(join(tmpdir(), "belljar-sdk-home-"));
  const address = `127.0.0.1:${await freePort()}`;
  const url = `${certificates ? "https" : "http"}://${address}`;
  const tls = certificates ? ["--set", `server.tls_certificate=${join(certificates, "certificate.pem")}`, "--set", `server.tls_key=${join(certificates, "key.pem")}`] : [];
  const flags = ["serve", "--listen", address, "--on-exit", "end", "--set", "sandboxes.share_host_tree=true", "--domain", domain, ...tls, ...more];
  let server;
  let exit;
  let output = "";
  let ended = false;

  const end = async () => {
    server.kill("SIGTERM");
    const late = setTimeout(() => server.kill("SIGKILL"), STOP_DEADLINE_MS);
    await exit;
    clearTimeout(late);
  };
  const stop = async () => {
    await end();
    await rm(home, { recursive: true, force: true });
  };
  const begin = async () => {
    ended = false;
    server = spawn(program, flags, { env: { ...process.env, BELLJAR_HOME: home }, stdio: ["ignore", "pipe", "pipe"] });
    exit = new Promise((resolve) => {
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
    const deadline = Date.now() + START_DEADLINE_MS;
    for (;;) {
      // It prints its first key once, when it listens. With TLS no certificate covers its address, so readiness is not polled.
      const key = /\bbj_[0-9a-f]{64}\b/.exec(output)?.[0];
      const ready = key !== undefined && (certificates !== undefined || (await fetch(`${url}/ready`).then((answer) => answer.ok, () => false)));
      if (ready) {
        return key;
      }
      if (ended || Date.now() > deadline) {
        await stop();
        throw new Error(`the server ${ended ? "ended" : "was not ready in time"}:\n${output}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  };
  const restart = async (between) => {
    await end();
    await between?.();
    await begin();
  };
  return { url, key: await begin(), stop, restart, output: () => output };
}

/** Runs test files in a directory, with Node's flags, and resolves with the exit code. */
export async function runFiles(directory, files, environment, flags = []) {
  // The gate also reads the results from a file; older versions of Node cannot write it.
  const junit = parseInt(process.versions.node) >= 20 ? process.env.GATE_JUNIT : undefined;
  const reporters = junit ? ["--test-reporter=spec", "--test-reporter-destination=stdout", "--test-reporter=junit", `--test-reporter-destination=${junit}`] : [];
  const runner = spawn(process.execPath, ["--test", ...flags, ...reporters, ...files], { cwd: directory, env: { ...process.env, ...environment }, stdio: "inherit" });
  return new Promise((resolve, reject) => {
    runner.once("exit", (code) => resolve(code ?? 1)).once("error", reject);
  });
}
