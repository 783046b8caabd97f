// Builds the package when npm installs it from a checkout or packs it, with what the build needs.
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

if (!existsSync(new URL("../node_modules/typescript/bin/tsc", import.meta.url))) {
  // The settings of the outer npm are in the environment; those that would change what is installed here are set again.
  const settings = ["--ignore-scripts", "--include=dev", "--global=false", "--dry-run=false", "--no-audit", "--no-fund"];
  execFileSync("npm", ["ci", ...settings], { cwd: fileURLToPath(new URL("..", import.meta.url)), stdio: "inherit", shell: process.platform === "win32" });
}
await import("./build.mjs");
