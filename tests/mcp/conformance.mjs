// Runs the protocol's conformance suite against the fixtures of a server, for each revision, with all guards of a server in between.
// BELLJAR_BIN is the path of the belljar binary. Arguments are names of scenarios, for all of a revision if there are none.
import { spawn } from "node:child_process";
import http from "node:http";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { startServer } from "../../sdk/typescript/scripts/server.mjs";

const REVISIONS = ["2026-07-28", "2025-11-25"];
const suite = fileURLToPath(new URL("node_modules/@modelcontextprotocol/conformance/dist/index.js", import.meta.url));

/** Adds the key, which the suite cannot send, and asks for the fixtures. The rest of each message passes unchanged. */
function addKey(server) {
  const { hostname, port } = new URL(server.url);
  const proxy = http.createServer((request, response) => {
    const headers = { ...request.headers, authorization: `Bearer ${server.key}` };
    const path = "/mcp?tools=conformance";
    const passed = http.request({ hostname, port, path, method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    passed.on("error", () => response.destroy());
    response.on("close", () => passed.destroy());
    request.pipe(passed);
  });
  return new Promise((resolve) => proxy.listen(0, "127.0.0.1", () => resolve(proxy)));
}

function run(url, revision, scenarios, results) {
  const selected = scenarios.length === 0 ? [["--requirements", revision]] : scenarios.map((name) => ["--scenario", name, "--spec-version", revision]);
  return selected.reduce(async (before, flags) => {
    const status = await before;
    const child = spawn(process.execPath, [suite, "server", "--url", url, "--output-dir", results, ...flags], { cwd: results, stdio: "inherit" });
    const ended = await new Promise((resolve, reject) => child.once("exit", (code) => resolve(code ?? 1)).once("error", reject));
    return status || ended;
  }, Promise.resolve(0));
}

// The suite's checks come at once, from one address.
const server = await startServer(process.env.BELLJAR_BIN);
const proxy = await addKey(server);
const results = await mkdtemp(join(tmpdir(), "belljar-mcp-"));
try {
  for (const revision of REVISIONS) {
    console.log(`== ${revision}`);
    const url = `http://localhost:${proxy.address().port}/mcp`;
    process.exitCode = (await run(url, revision, process.argv.slice(2), results)) || process.exitCode;
  }
} finally {
  proxy.closeAllConnections();
  proxy.close();
  await server.stop();
  await rm(results, { recursive: true, force: true });
}
