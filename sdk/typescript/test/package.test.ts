import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import * as esm from "belljar";

const root = new URL("../../", import.meta.url);
const run = promisify(execFile);

test("both forms of the package have the same", () => {
  const cjs = createRequire(import.meta.url)("belljar") as Record<string, unknown>;
  assert.deepEqual(Object.keys(cjs).sort(), Object.keys(esm).sort());
  assert.equal(typeof cjs["Sandbox"], "function");
});

test("both forms have types that a strict compiler takes", async () => {
  for (const form of ["esm", "cjs"]) {
    const types = await readFile(new URL(`dist/${form}/index.d.ts`, root), "utf8");
    assert.match(types, /export \{.*Sandbox/s);
    assert.deepEqual(JSON.parse(await readFile(new URL(`dist/${form}/package.json`, root), "utf8")), { type: form === "esm" ? "module" : "commonjs" });
  }
});

test("the types pass with the oldest compiler that the page names, and with the newest", async () => {
  const page = await readFile(new URL("../../docs/typescript.md", root), "utf8");
  const { version } = JSON.parse(await readFile(new URL("node_modules/typescript-oldest/package.json", root), "utf8")) as { version: string };
  assert.ok(page.includes(`TypeScript ${version.split(".").slice(0, 2).join(".")} or later`), version);
  const settings = /^```json\n(.*?)^```$/ms.exec(page)?.[1] ?? "";
  const directory = await mkdtemp(join(tmpdir(), "belljar-types-"));
  try {
    await mkdir(join(directory, "node_modules/@types"), { recursive: true });
    await symlink(fileURLToPath(root), join(directory, "node_modules/belljar"));
    await symlink(fileURLToPath(new URL("node_modules/@types/node", root)), join(directory, "node_modules/@types/node"));
    await writeFile(join(directory, "program.mts"), PROGRAM);
    await writeFile(join(directory, "tsconfig.json"), settings);
    for (const version of ["typescript-oldest", "typescript"]) {
      const compiler = fileURLToPath(new URL(`node_modules/${version}/bin/tsc`, root));
      await run(process.execPath, [compiler, "--noEmit"], { cwd: directory }).catch((error: { stdout: string }) => assert.fail(`${version}: ${error.stdout}`));
    }
  } finally {
    await rm(directory, { recursive: true });
  }
});

/** A program of a user. Charts narrow by their type. */
const PROGRAM = `
import { type BarElement, KernelDied, type LineChart, type PieElement, Sandbox } from "belljar";

export async function main(): Promise<string> {
  await using sandbox = await Sandbox.create();
  const execution = await sandbox.runCode("x");
  const chart = execution.results[0]?.chart;
  if (chart?.type === "line") {
    const line: LineChart = chart;
    console.log(line.elements[0]?.points);
  } else if (chart?.type === "bar") {
    const bar: BarElement | undefined = chart.elements[0];
    console.log(bar?.group);
  } else if (chart?.type === "pie") {
    const slice: PieElement | undefined = chart.elements[0];
    console.log(slice?.angle);
  } else if (chart?.type === "superchart") {
    console.log(chart.elements[0]?.type);
  }
  if (execution.error instanceof KernelDied) {
    console.log(execution.error.exitCode);
  }
  process.stdout.write("done");
  return (await sandbox.commands.run("true")).stdout;
}
`;

for (const page of ["../../docs/typescript.md", "README.md"]) {
  test(`the package is installed from a checkout with the command of ${page}`, { timeout: 300_000 }, async () => {
    const [, command = ""] = /^npm (install \.\.\/belljar\/sdk\/typescript)\b/m.exec(await readFile(new URL(page, root), "utf8")) ?? [];
    const directory = await mkdtemp(join(tmpdir(), "belljar-install-"));
    try {
      const ours = fileURLToPath(root);
      const unpacked = new Set(["node_modules", "dist", "build"].map((name) => join(ours, name)));
      await cp(ours, join(directory, "belljar/sdk/typescript"), { recursive: true, filter: (path) => !unpacked.has(path) });
      const project = join(directory, "project");
      await mkdir(project);
      await writeFile(join(project, "package.json"), '{ "type": "module" }');
      await run("npm", [...command.split(" "), "--no-audit", "--no-fund", "--prefer-offline"], { cwd: project }).catch((error: { stderr: string }) => assert.fail(error.stderr));
      await writeFile(join(project, "program.js"), 'import { Sandbox } from "belljar"; console.log(typeof Sandbox.create);');
      assert.equal((await run(process.execPath, ["program.js"], { cwd: project })).stdout, "function\n");
      const required = 'const { Sandbox } = require("belljar"); console.log(typeof Sandbox.create);';
      assert.equal((await run(process.execPath, ["--input-type=commonjs", "-e", required], { cwd: project })).stdout, "function\n");
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  });
}

test("no public type is any", async () => {
  const { stdout } = await run("grep", ["-rnE", "\\bany\\b", fileURLToPath(new URL("dist/esm", root)), "--include=*.d.ts"]).catch((error: { stdout: string }) => error);
  const outsideOfComments = stdout.split("\n").filter((line) => line !== "" && !/:\s*(\/?\*|\/\/)/.test(line.replace(/^[^:]*:\d+/, "")));
  assert.deepEqual(outsideOfComments, []);
});

test("the lock file names no place to fetch from", async () => {
  const lock = await readFile(new URL("package-lock.json", root), "utf8");
  assert.ok(!lock.includes('"resolved"'));
  assert.ok(!/https?:\/\/(?!(opencollective|github|tidelift|www\.patreon)\.?)/.test(lock), "an address other than those of funding");
});

test("the package is small and has what it needs", async () => {
  const { stdout } = await run("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: fileURLToPath(root) });
  const [pack] = JSON.parse(stdout) as [{ size: number; files: { path: string }[] }];
  const paths = pack.files.map((file) => file.path);
  for (const wanted of ["LICENSE", "README.md", "package.json", "dist/esm/index.js", "dist/cjs/index.js", "dist/cjs/package.json", "bin/belljar.cjs"]) {
    assert.ok(paths.includes(wanted), wanted);
  }
  assert.ok(paths.every((path) => /^(dist\/|bin\/belljar\.cjs$|LICENSE$|README\.md$|package\.json$)/.test(path)), paths.join());
  assert.ok(pack.size < 150_000, `${pack.size} bytes`);
});

test("the only dependency is ws", async () => {
  const { dependencies } = JSON.parse(await readFile(new URL("package.json", root), "utf8")) as { dependencies: Record<string, string> };
  assert.deepEqual(Object.keys(dependencies), ["ws"]);
});
