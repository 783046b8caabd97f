// Helpers of the tests. run.mjs starts the server before them.
import { after, before } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";

/** In milliseconds, far above the duration of any test. */
export const TIMEOUT_MS = 60_000;

/** An id that does not exist. */
export const MISSING = "a0000000000000000000";

/** Waits for a condition, and returns its value. */
export async function until(what, condition) {
  const end = Date.now() + TIMEOUT_MS;
  for (;;) {
    const found = await condition();
    if (found) {
      return found;
    }
    if (Date.now() > end) {
      throw new Error(`timed out waiting for ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** A sandbox shared by the tests of a file, which do not affect each other. */
export function shared() {
  const holder = {};
  before(async () => {
    holder.sandbox = await Sandbox.create({ timeoutMs: 600_000 });
  });
  after(() => holder.sandbox?.kill());
  return holder;
}

/** Runs a function with a sandbox, and ends the sandbox. */
export async function withSandbox(options, use) {
  const sandbox = await Sandbox.create({ timeoutMs: 600_000, ...options });
  try {
    return await use(sandbox);
  } finally {
    await sandbox.kill();
  }
}
