#!/usr/bin/env node
// Runs the program `belljar` of the package for this platform, in the place of this one.
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");

/** The status of a command that was not found, as in a shell. */
const NOT_FOUND = 127;

const platform = `@belljar/${process.platform}-${process.arch}`;

function fail(reason) {
  process.stderr.write(`belljar: ${reason}\n`);
  process.exit(NOT_FOUND);
}

let program;
try {
  ({ program } = require(platform));
} catch {
  fail(
    process.platform === "linux" && process.arch === "x64"
      ? `the package ${platform} is not installed; install belljar again without --no-optional or --omit=optional`
      : `it runs on Linux on x64, and this is ${process.platform} on ${process.arch}; the SDK of this package can use a server elsewhere`,
  );
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => fail(`cannot run ${program}: ${error.message}`));
// A terminal sends its signals to both; others come here only.
for (const signal of ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"]) {
  process.on(signal, () => child.kill(signal));
}
for (const signal of ["SIGINT", "SIGQUIT"]) {
  process.on(signal, () => undefined);
}
child.on("exit", (status, signal) => process.exit(status ?? 128 + constants.signals[signal]));
