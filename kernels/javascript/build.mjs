// Bundles src/ into kernel.mjs, a single file without dependencies. With --check it only compares the checked-in file.

import fs from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const licence = fs.readFileSync(here("node_modules/acorn/LICENSE"), "utf8").trim();
const banner = `// Made by kernels/javascript/build.mjs of src/; do not edit.
//
// Contains acorn and acorn-walk, under this licence:
//
${licence.split("\n").map((line) => `// ${line}`.trimEnd()).join("\n")}
`;
const made = await build({
  entryPoints: [here("src/kernel.mjs")],
  bundle: true,
  platform: "node",
  format: "esm",
  target: "node18",
  charset: "utf8",
  legalComments: "inline",
  banner: { js: banner },
  absWorkingDir: here("."),
  write: false,
  logLevel: "error",
});
const text = made.outputFiles[0].text;
if (process.argv.includes("--check")) {
  if (fs.readFileSync(here("kernel.mjs"), "utf8") !== text) {
    console.error("kernel.mjs is not what src/ gives: run `make -C kernels/javascript build`");
    process.exit(1);
  }
} else {
  fs.writeFileSync(here("kernel.mjs"), text);
}
