// Builds both formats of the package: ES modules in dist/esm, CommonJS in dist/cjs, each with its types.
import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL("..", import.meta.url));
const compiler = fileURLToPath(new URL("../node_modules/typescript/bin/tsc", import.meta.url));

// The output of sources that are gone must not stay: it would be published, and compiled tests (build/) would run.
for (const output of ["../dist", "../build"]) {
  rmSync(new URL(output, import.meta.url), { recursive: true, force: true });
}
for (const [form, config, type] of [["esm", "tsconfig.json", "module"], ["cjs", "tsconfig.cjs.json", "commonjs"]]) {
  execFileSync(process.execPath, [compiler, "-p", config], { cwd: here, stdio: "inherit" });
  const out = new URL(`../dist/${form}/`, import.meta.url);
  mkdirSync(out, { recursive: true });
  // Sets the module type of the .js files beside it, independent of the package's own type.
  writeFileSync(new URL("package.json", out), `${JSON.stringify({ type })}\n`);
}
