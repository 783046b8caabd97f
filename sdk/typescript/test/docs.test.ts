// Checks and runs the code in the documentation. The blocks of a section (`##`) are one program. The text of a comment
// `// prints: …` has to be what the `console.log` on its line prints; without one it has to be printed by what precedes it.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { missing, missingVolumes } from "./live.js";

const run = promisify(execFile);
const root = new URL("../../", import.meta.url);
const workplace = new URL("build/docs/", root);

interface Program {
  name: string;
  code: string;
  prints: string[];
}

/** Begins the output of a statement whose output is known. */
const MARK = "prints-";

/** Lets each `console.log` with a comment print the number of the comment first. A value that ends in a line end ends there. */
function marked(code: string): string {
  let number = -1;
  return code.replace(/^(.*)\/\/ prints: .*$/gm, (line: string, statement: string) => {
    number += 1;
    return statement.includes("console.log(") ? line.replace("console.log(", `console.log("${MARK}${number}", `) : line;
  });
}

async function programs(page: string, path: string): Promise<Program[]> {
  const text = await readFile(new URL(path, root), "utf8");
  return text.split(/^## /m).flatMap((section, index) => {
    const blocks = [...section.matchAll(/^```ts\n(.*?)^```$/gms)].map((block) => block[1] ?? "");
    const code = blocks.join("\n");
    const prints = [...code.matchAll(/\/\/ prints: (.*)$/gm)].map((line) => line[1] ?? "");
    return blocks.length === 0 ? [] : [{ name: `${page}-${index}`, code: marked(code), prints }];
  });
}

const all = [...(await programs("page", "../../docs/typescript.md")), ...(await programs("readme", "README.md"))];

before(async () => {
  await rm(workplace, { recursive: true, force: true });
  await mkdir(workplace, { recursive: true });
  for (const program of all) {
    await writeFile(new URL(`${program.name}.ts`, workplace), `${program.code}\nexport {};\n`);
  }
  const config = { extends: "../../tsconfig.json", compilerOptions: { rootDir: ".", outDir: ".", declaration: false, noUnusedLocals: false }, include: ["*.ts"], exclude: [] };
  await writeFile(new URL("tsconfig.json", workplace), JSON.stringify(config));
});

test("the code in the documentation has the right types", async () => {
  assert.ok(all.length >= 9, `${all.length} programs were found`);
  const compiler = fileURLToPath(new URL("node_modules/typescript/bin/tsc", root));
  await run(process.execPath, [compiler, "-p", fileURLToPath(workplace)]).catch((error: { stdout: string }) => assert.fail(error.stdout));
});

for (const program of all) {
  test(`the code of ${program.name} does what it says`, { skip: program.code.includes(".volumes") ? missingVolumes : missing, timeout: 120_000 }, async () => {
    const { stdout } = await run(process.execPath, [fileURLToPath(new URL(`${program.name}.js`, workplace))]).catch((error: { stderr: string }) => assert.fail(`${error.stderr}\n${program.code}`));
    let position = 0;
    for (const [index, line] of program.prints.entries()) {
      const wanted = program.code.includes(`"${MARK}${index}"`) ? `${MARK}${index} ${line}\n` : line;
      const found = stdout.indexOf(wanted, position);
      assert.ok(found >= 0, `${JSON.stringify(wanted)} is not in what follows:\n${stdout.slice(position)}`);
      position = found + wanted.length;
    }
  });
}

for (const [name, input, expected] of [
  ["quickstart", "", /done\n\[[\s\S]*81[\s\S]*\]\nas expected: .*ZeroDivisionError/],
  ["parallel", "", /tail -n 1 numbers\.txt: 999/],
  ["terminal", "echo $((6*7))\nexit\n", /42/],
] as const) {
  test(`the example ${name} runs`, { skip: missing, timeout: 120_000 }, async () => {
    const running = run(process.execPath, [fileURLToPath(new URL(`build/examples/${name}.js`, root))]);
    running.child.stdin?.end(input);
    assert.match((await running).stdout, expected);
  });
}
