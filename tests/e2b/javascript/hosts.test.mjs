// Host names with TLS, the other way to reach a server. The program is a separate process, configured by environment variables.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { startServer } from "../../../sdk/typescript/scripts/server.mjs";
import { TIMEOUT_MS } from "./shared.mjs";

const DOMAIN = "sandboxes.localhost";
const place = (name) => fileURLToPath(new URL(name, import.meta.url));
const run = promisify(execFile);
let certificates;
let server;
let variables;

before(async () => {
  certificates = await mkdtemp(join(tmpdir(), "belljar-tls-"));
  await run(process.env.BELLJAR_BIN, ["cert", DOMAIN, "--dir", certificates]);
  server = await startServer(process.env.BELLJAR_BIN, ["--e2b"], { domain: DOMAIN, certificates });
  const { port } = new URL(server.url);
  variables = Object.fromEntries([...server.output().matchAll(/^export ((?:E2B|SSL|NODE)_\w+)=(\S+)/gm)].map(([, name, value]) => [name, value]));
  assert.equal(variables.E2B_DOMAIN, `${DOMAIN}:${port}`);
});

after(async () => {
  await server?.stop();
  await rm(certificates, { recursive: true, force: true });
});

function program(name, given) {
  const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith("E2B_") && !name.startsWith("NODE_"));
  return run(process.execPath, ["--import", place("programs/resolver.mjs"), place(name)], { env: { ...Object.fromEntries(inherited), ...given }, timeout: TIMEOUT_MS });
}

test("by host names", async () => {
  assert.equal((await program("programs/hosts.mjs", variables)).stdout, "done\n");
});

test("by host names, with the oldest client", async () => {
  assert.equal((await program("oldest/oldest.mjs", variables)).stdout, "done\n");
});

test("other certificates are not trusted", async () => {
  const { NODE_EXTRA_CA_CERTS, ...rest } = variables;
  assert.ok(NODE_EXTRA_CA_CERTS);
  await assert.rejects(program("programs/hosts.mjs", rest), (error) => /certificate|fetch failed/.test(error.stderr));
});
