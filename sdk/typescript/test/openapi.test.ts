// The package sends and reads everything that the server's OpenAPI document has for the schemas of sdk/conformance.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Belljar, InvalidArgumentError, Sandbox, Template } from "../src/index.js";
import * as convert from "../src/convert.js";
import { networkForecast, networkOffer } from "../src/network.js";
import { Double, ID, json, problem, wireSandbox } from "./double.js";

interface Schema {
  $ref?: string;
  type?: string | string[];
  format?: string;
  enum?: string[];
  items?: Schema;
  allOf?: Schema[];
  oneOf?: Schema[];
  properties?: Record<string, Schema>;
}

const read = (path: string): unknown => JSON.parse(readFileSync(new URL(path, new URL("../../../../", import.meta.url)), "utf8"));
const { schemas } = (read("docs/openapi.json") as { components: { schemas: Record<string, Schema> } }).components;
const covered = (read("sdk/conformance/cases.json") as { schemas: { requests: string[]; answers: string[] } }).schemas;

const requests: Record<string, (client: Belljar, sandbox: Sandbox) => Promise<unknown>> = {
  CreateSandbox: ({ sandboxes }) =>
    sandboxes.create({
      template: "t",
      name: "n",
      ifExists: "return",
      timeoutMs: 1000,
      idleTimeoutMs: 1000,
      onTimeout: "pause",
      autoResume: true,
      labels: { a: "b" },
      envs: { a: "b" },
      limits: { memory: 1 },
      network: "open",
      engine: "local",
      grade: "cgroup",
      machine: true,
      user: "root",
      hostname: "h",
      portHost: "localhost:{port}",
      mounts: ["/a:/b"],
      volumes: [{ name: "v", path: "/v" }],
      files: [{ path: "f", data: "text" }],
    }),
  UpdateSandbox: (_, sandbox) => sandbox.update({ labels: { a: null }, limits: { memory: 1 }, idleTimeoutMs: 1, onTimeout: "kill", autoResume: false, network: "disabled" }),
  NewKey: ({ keys }) => keys.create({ name: "n", role: "user", tenant: "t", expires: "1h", quotas: {}, owner: "o", approval: "never" }),
  KeyUpdate: ({ keys }) => keys.update("k", { name: "n", role: "read", expires: 1, quotas: {}, owner: "", approval: "always" }),
  Approve: ({ approvals }) => approvals.approve("a", { note: "n", uses: 2, within: "1m", scope: "tool" }),
  Deny: ({ approvals }) => approvals.deny("a", { note: "n" }),
  NewSecret: ({ secrets }) => secrets.create({ name: "n", value: "v", hosts: ["h"], header: "x", metadata: { a: "b" } }),
  SecretUpdate: ({ secrets }) => secrets.update("n", { value: "v", hosts: ["h"], header: "x", metadata: { a: "b" } }),
  CheckNetwork: ({ network }) => network.check({ network: "open", hosts: ["h"], sandboxId: "s" }),
  ToolDefinition: ({ tools }) =>
    tools.schema("t", "mcp", {
      definition: { name: "t", description: "d", languages: ["bash"], session: true, approval: "never", limits: { memory: 1 }, network: "disabled", template: "t", timeoutMs: 1000 },
    }),
  NewVolume: ({ volumes }) => volumes.create("v", { size: "64m" }),
  BuildTemplate: ({ templates }) => templates.build(new Template("t").copy(fileURLToPath(import.meta.url), "/x"), { name: "n", mirror: "/m", image: "/i", fresh: true }),
  Snapshot: (_, sandbox) => sandbox.createSnapshot({ name: "n", note: "note" }),
};

const answers: Record<string, (value: never) => unknown> = {
  Sandbox: convert.sandboxInfo,
  KeyInfo: convert.keyInfo,
  CreatedKey: convert.keyInfo,
  Approval: convert.approvalInfo,
  SecretInfo: convert.secretInfo,
  TemplateInfo: convert.templateInfo,
  Volume: convert.volumeInfo,
  Metrics: convert.metrics,
  NetworkOffer: networkOffer,
  NetworkForecast: networkForecast,
  PortInfo: convert.portInfo,
};

/** The parts of a schema, without references. */
function resolved(schema: Schema): Schema[] {
  const referred = schema.$ref === undefined ? [] : resolved(schemas[schema.$ref.split("/").at(-1) as string] as Schema);
  const chosen = schema.oneOf?.find((one) => one.type !== "null");
  return [...referred, ...(schema.allOf ?? []).flatMap(resolved), ...(chosen === undefined ? [] : resolved(chosen)), ...(schema.type === undefined ? [] : [schema])];
}

function properties(schema: Schema): Record<string, Schema> {
  return Object.assign({}, ...resolved(schema).map((part) => part.properties ?? {})) as Record<string, Schema>;
}

/** A value of a schema with all of its properties, which removes from `unread` the paths of those that are read. */
function sample(schema: Schema, unread: Set<string>, path: string): unknown {
  const first = resolved(schema)[0] as Schema;
  switch ([first.type].flat().find((one) => one !== "null")) {
    case "object": {
      const value: Record<string, unknown> = {};
      for (const [name, one] of Object.entries(properties(schema))) {
        const made = sample(one, unread, `${path}.${name}`);
        unread.add(`${path}.${name}`);
        Object.defineProperty(value, name, { enumerable: true, get: () => (unread.delete(`${path}.${name}`), made) });
      }
      return value;
    }
    case "array":
      return [sample(first.items as Schema, unread, `${path}[]`)];
    case "string":
      return first.format === "date-time" ? "2026-11-21T15:04:05Z" : (first.enum?.[0] ?? "text");
    case "boolean":
      return true;
    default:
      return 1;
  }
}

test("requests have everything", async () => {
  await using double = await Double.start();
  const refused = problem(400, "invalid_field", "enough");
  double.on("POST", /./, refused).on("PUT", /./, refused).on("PATCH", /./, refused).on("POST", "/v1/sandboxes", json(wireSandbox(), 201), refused);
  const connection = { apiUrl: double.url, apiKey: "bj_test" };
  const sandbox = await Sandbox.create(connection);
  assert.equal(sandbox.sandboxId, ID);
  for (const name of covered.requests) {
    await assert.rejects(async () => requests[name]?.(new Belljar(connection), sandbox), InvalidArgumentError, name);
    const body = JSON.parse(double.seen.at(-1)?.body ?? "") as object;
    assert.deepEqual(Object.keys(body).sort(), Object.keys(properties(schemas[name] as Schema)).sort(), name);
  }
});

test("answers are read whole", () => {
  for (const name of covered.answers) {
    const unread = new Set<string>();
    const value = sample(schemas[name] as Schema, unread, name);
    // What is passed on unchanged is read here.
    JSON.stringify(answers[name]?.(value as never));
    // The call that creates a key adds the key itself.
    unread.delete("CreatedKey.key");
    assert.deepEqual([...unread], [], name);
  }
});
