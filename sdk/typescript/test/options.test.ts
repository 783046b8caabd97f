// Wrong options and arguments, as a caller without a compiler gives them: errors that name what is right.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Belljar, InvalidArgumentError, Sandbox, Secret, Template, Volume } from "../src/index.js";
import { Double, json, wireSandbox } from "./double.js";

const KEY = "bj_test";

/** Anything, as in JavaScript. */
type Loose = Record<string, (...given: unknown[]) => Promise<unknown>>;
const loose = (of: unknown): Loose => of as Loose;

async function start(): Promise<{ sandbox: Loose & { [part: string]: Loose }; connection: { apiUrl: string; apiKey: string }; double: Double } & AsyncDisposable> {
  const double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  const connection = { apiUrl: double.url, apiKey: KEY };
  const sandbox = (await Sandbox.create(connection)) as unknown as Loose & { [part: string]: Loose };
  return { sandbox, connection, double, [Symbol.asyncDispose]: () => double[Symbol.asyncDispose]() };
}

async function refused(call: () => unknown, field: string, said: string): Promise<void> {
  await assert.rejects(async () => call(), (error) => {
    assert.ok(error instanceof InvalidArgumentError, String(error));
    assert.ok(error.field === field && error.message.includes(said), `${String(error.field)}: ${error.message}`);
    return true;
  });
}

test("unknown options are refused, with a suggestion", async () => {
  await using at = await start();
  const { sandbox, connection } = at;
  const create = (options: object) => () => loose(Sandbox)["create"]?.({ ...connection, ...options });
  const before = at.double.seen.length;
  await refused(create({ memory: "1g" }), "memory", 'create has no option "memory"; did you mean limits: { memory: … }?');
  await refused(create({ timeout: 300 }), "timeout", "did you mean timeoutMs, in milliseconds?");
  await refused(create({ on_timeout: "pause" }), "on_timeout", "did you mean onTimeout?");
  await refused(create({ env: {} }), "env", "did you mean envs?");
  await refused(create({ allowInternetAccess: true }), "allowInternetAccess", 'network: "open"');
  await refused(create({ apiKy: "x" }), "apiKy", "did you mean apiKey?");
  await refused(create({ zzzzzzzz: 1 }), "zzzzzzzz", "its options are apiKey, apiUrl");
  await refused(() => loose(Sandbox)["kill"]?.("x", { ...connection, timeout: 1 }), "timeout", "requestTimeoutMs");
  await refused(() => loose(Sandbox)["list"]?.({ ...connection, labls: {} }), "labls", "did you mean labels?");
  await refused(() => new Belljar({ ...connection, maxRetry: 1 } as object), "maxRetry", "did you mean maxRetries?");
  await refused(() => loose(new Belljar(connection).sandboxes)["create"]?.({ cpu: 1 }), "cpu", "limits: { cpus: 2 }");
  await refused(() => sandbox["runCode"]?.("1", { lang: "python" }), "lang", "did you mean language?");
  await refused(() => sandbox["runCode"]?.("1", "python"), "the options of runCode", "must be an object");
  await refused(() => sandbox["commands"]?.["run"]?.("true", { timeout: 1 }), "timeout", "timeoutMs");
  await refused(() => sandbox["commands"]?.["run"]?.("true", { background: true, chek: false }), "chek", "run has no option");
  await refused(() => sandbox["files"]?.["write"]?.("a", "b", { mod: 1 }), "mod", "did you mean mode?");
  await refused(() => sandbox["files"]?.["read"]?.("a", { formt: "text" }), "formt", "did you mean format?");
  await refused(() => sandbox["git"]?.["clone"]?.("https://example.org/r", { pasword: "x" }), "pasword", "did you mean password?");
  await refused(() => sandbox["pty"]?.["create"]?.({ rows: 1, columns: 1 }), "columns", "pty.create has no option");
  await refused(() => sandbox["update"]?.({ label: {} }), "label", "did you mean labels?");
  await refused(() => sandbox["fork"]?.({ counts: 1 }), "counts", "did you mean count?");
  await refused(() => sandbox["files"]?.["write"]?.([{ path: "a", dat: "b" }]), "dat", "did you mean data?");
  await refused(create({ files: [{ path: "a", content: "b" }] }), "content", "its options are data, mode, path");
  await refused(() => loose(new Belljar(connection).keys)["create"]?.({ name: "n", rol: "user" }), "rol", "did you mean role?");
  await refused(() => loose(new Belljar(connection).secrets)["update"]?.("s", { valu: "x" }), "valu", "did you mean value?");
  await refused(() => loose(new Belljar(connection).secrets)["create"]?.({ name: "n", value: "v", host: "h" }), "host", "did you mean hosts?");
  await refused(() => loose(new Belljar(connection).keys)["create"]?.({ name: "n", quotas: { sandbox: 1 } }), "sandbox", "did you mean sandboxes?");
  await refused(() => loose(new Belljar(connection).keys)["update"]?.("k", { quota: {} }), "quota", "did you mean quotas?");
  await refused(() => loose(new Belljar(connection).keys)["list"]?.({ limt: 1 }), "limt", "did you mean limit?");
  await refused(() => loose(new Belljar(connection).templates)["list"]?.({ cursor: "x" }), "cursor", "its options are limit, nextToken");
  await refused(() => loose(new Belljar(connection).audit)["list"]?.({ sandboxId: "x" }), "sandboxId", "audit.list has no option");
  await refused(() => new Template("t", { bas: "debian" } as object), "bas", "did you mean base?");
  await refused(() => sandbox["resume"]?.({ timeout: 1 }), "timeout", "there is no option");
  await refused(() => sandbox["kill"]?.({ timeoutMs: 1 }), "timeoutMs", "there is no option");
  // Calls without options of their own.
  await refused(() => sandbox["getMetrics"]?.({ timeoutMs: 1 }), "timeoutMs", "there is no option");
  await refused(() => sandbox["files"]?.["makeDir"]?.("a", { parent: true }), "parent", "there is no option");
  await refused(() => sandbox["createSnapshot"]?.({ nam: "x" }), "nam", "there is no option");
  await refused(() => loose(Volume)["create"]?.("v", { ...connection, sise: "1g" }), "sise", "did you mean size?");
  await refused(() => loose(Secret)["get"]?.("s", { ...connection, tag: 1 }), "tag", "there is no option");
  assert.equal(at.double.seen.length, before, "none of them was sent");
  // What is undefined is not given.
  await Sandbox.create({ ...connection, memory: undefined } as object);
});

test("values of a wrong type are refused", async () => {
  await using at = await start();
  const { sandbox, connection } = at;
  const before = at.double.seen.length;
  await refused(() => sandbox["runCode"]?.(5), "code", "code must be a string, not 5");
  await refused(() => sandbox["runCode"]?.("1", { envs: ["A=1"] }), "envs", "an object of strings");
  await refused(() => sandbox["runCode"]?.("1", { timeoutMs: "10m" }), "timeoutMs", 'such as 600000 for "10m"');
  await refused(() => sandbox["files"]?.["write"]?.("a", null), "data", "data must be a string, bytes, a Blob or a ReadableStream, not null");
  await refused(() => sandbox["files"]?.["write"]?.(null, "b"), "path", "a list of files");
  await refused(() => sandbox["files"]?.["write"]?.([{ path: "a", data: undefined }]), "data", "not undefined");
  await refused(() => sandbox["files"]?.["read"]?.(5), "path", "path must be a string or bytes, not 5");
  await refused(() => sandbox["commands"]?.["run"]?.(5), "command", 'such as ["ls", "-l"]');
  await refused(() => sandbox["commands"]?.["run"]?.(["echo", null]), "command", "not an object (Array)");
  await refused(() => sandbox["commands"]?.["run"]?.("true", { envs: { A: 1 } }), "envs.A", "envs.A must be a string, not 1");
  await refused(() => sandbox["commands"]?.["run"]?.("true", { stdin: 5 }), "stdin", "a string or bytes");
  await refused(() => sandbox["commands"]?.["sendStdin"]?.({ process: 1 }, null), "data", "not null");
  await refused(() => sandbox["commands"]?.["streamInput"]?.({ process: 1 }, 5), "data", "an iterator");
  await refused(() => sandbox["update"]?.({ labels: { a: 1 } }), "labels.a", "must be a string");
  await refused(() => loose(Sandbox)["connect"]?.(undefined, connection), "id", "id must be a string or a number, not undefined");
  await refused(() => loose(Sandbox)["create"]?.({ ...connection, files: [{ path: "a", data: null }] }), "files: a", "a string or bytes");
  await refused(() => loose(Sandbox)["create"]?.({ ...connection, timeoutMs: "soon" }), "timeoutMs", "60_000 for a minute");
  const create = (options: object) => () => loose(Sandbox)["create"]?.({ ...connection, ...options });
  await refused(create({ limits: "1g" }), "limits", 'an object, such as { memory: "1g" }, not "1g"');
  await refused(create({ network: true }), "network", "not true");
  await refused(create({ mounts: "/a:/b" }), "mounts", "a list of strings");
  await refused(create({ mounts: [1] }), "mounts[0]", "must be a string, not 1");
  await refused(create({ volumes: { name: "v", path: "/v" } }), "volumes", "a list, such as");
  await refused(create({ files: { a: "b" } }), "files", "a list, such as");
  const { keys, secrets } = new Belljar(connection);
  await refused(() => loose(keys)["create"]?.({ name: "n", quotas: 5 }), "quotas", "not 5");
  await refused(() => loose(secrets)["create"]?.({ name: "n", value: "v", hosts: "api.example.com" }), "hosts", 'such as ["api.example.com"]');
  await refused(() => loose(secrets)["update"]?.("n", { value: "v", hosts: [null] }), "hosts[0]", "not null");
  await refused(() => loose(secrets)["create"]?.({ name: "n", value: "v", metadata: { a: 1 } }), "metadata.a", "not 1");
  assert.equal(at.double.seen.length, before, "none of them was sent");
});
