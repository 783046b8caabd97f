// What the tests share. The server is there before they begin (run.mjs).
import { after, before } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";

/** A net in milliseconds, far above what anything takes. */
export const NET_MS = 60_000;

/** An id that no sandbox has. */
export const MISSING = "a0000000000000000000";

/** Waits until something holds, and returns what it gave. */
export async function until(what, holds) {
  const end = Date.now() + NET_MS;
  for (;;) {
    const found = await holds();
    if (found) {
      return found;
    }
    if (Date.now() > end) {
      throw new Error(`this has not come: ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** A sandbox for the tests of a file, which leave nothing in each other's way. */
export function shared() {
  const holder = {};
  before(async () => {
    holder.sandbox = await Sandbox.create({ timeoutMs: 600_000 });
  });
  after(() => holder.sandbox?.kill());
  return holder;
}

/** Gives a sandbox to a test, and ends it. */
export async function withSandbox(options, use) {
  const sandbox = await Sandbox.create({ timeoutMs: 600_000, ...options });
  try {
    return await use(sandbox);
  } finally {
    await sandbox.kill();
  }
}
