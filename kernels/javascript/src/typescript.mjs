// Strips types: with esbuild if installed, else with Node if it supports that.

import { spawnSync } from "node:child_process";
import fs from "node:fs";
import * as nodeModule from "node:module";
import path from "node:path";
import { CellSyntaxError } from "./rewrite.mjs";
import { JSON } from "./own.mjs";

const OPTIONS = [
  "--loader=ts", "--format=esm", "--target=esnext", "--sourcemap=inline", "--sources-content=false", "--log-level=error", "--color=false",
  "--tsconfig-raw={\"compilerOptions\":{\"verbatimModuleSyntax\":true,\"target\":\"esnext\",\"experimentalDecorators\":true}}",
];

/** Returns the type stripper of this machine: a function, or a sentence about what is missing. */
export function typeStripper(environment) {
  for (const directory of (environment.PATH ?? "").split(":")) {
    const program = path.join(directory || ".", "esbuild");
    try {
      fs.accessSync(program, fs.constants.X_OK);
      if (fs.statSync(program).isFile()) return { strip: (code, cell) => withEsbuild(program, environment, code, cell) };
    } catch {
      // Not in this directory.
    }
  }
  if (typeof nodeModule.stripTypeScriptTypes === "function") return { strip: withNode };
  return { missing: "TypeScript needs esbuild, or Node 22.13 or later: install the package esbuild (apt install esbuild, or npm install --global esbuild) in the sandbox's template" };
}

function withEsbuild(program, environment, code) {
  const ran = spawnSync(program, OPTIONS, {
    input: code,
    encoding: "utf8",
    env: { ...environment, GOMAXPROCS: "2" },
    maxBuffer: 64 * 1024 * 1024,
    timeout: 60_000,
  });
  if (ran.error) throw new Error(`esbuild could not take the types away: ${ran.error.message}`);
  if (ran.status !== 0) throw syntaxError(ran.stderr, code);
  const mark = ran.stdout.lastIndexOf("//# sourceMappingURL=data:application/json;base64,");
  if (mark < 0) return { code: ran.stdout };
  const map = JSON.parse(Buffer.from(ran.stdout.slice(ran.stdout.indexOf(",", mark) + 1).trim(), "base64").toString("utf8"));
  return { code: ran.stdout.slice(0, mark), map: new nodeModule.SourceMap(map) };
}

function syntaxError(said, code) {
  const message = /\[ERROR\] (.*)/.exec(said)?.[1] ?? "esbuild refused the code";
  const place = /<stdin>:(\d+):(\d+)/.exec(said);
  const line = place ? Number(place[1]) : 1;
  return new CellSyntaxError(message, line, place ? Number(place[2]) + 1 : 1, code.split("\n")[line - 1] ?? "");
}

function withNode(code) {
  const emit = process.emitWarning;
  try {
    process.emitWarning = () => {};
    return { code: nodeModule.stripTypeScriptTypes(code, { mode: "strip" }) };
  } catch (error) {
    throw new CellSyntaxError(String(error?.message ?? error).split("\n")[0], 1, 1, code.split("\n")[0] ?? "");
  } finally {
    process.emitWarning = emit;
  }
}
