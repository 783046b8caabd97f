// Tests that need a server: the one that BELLJAR_API_URL and BELLJAR_API_KEY name.

import { after, before, test, type TestContext } from "node:test";
import { Sandbox } from "belljar";

/** Why the tests that need a server do not run, if they do not. */
export const missing: string | undefined = process.env["BELLJAR_API_URL"] && process.env["BELLJAR_API_KEY"] ? undefined : "needs a server: set BELLJAR_API_URL and BELLJAR_API_KEY, or BELLJAR_BIN with make";

/** Labels of what these tests make, so that a server that serves others too can be cleaned up. */
export const LABELS = { made_by: `typescript-tests-${process.pid}` };

/** A test against the server. */
export function live(name: string, run: (context: TestContext) => Promise<void>): void {
  test(name, { skip: missing, timeout: 120_000 }, run);
}

/** A sandbox that the tests of one file share. */
export function shared(): { readonly sandbox: Sandbox } {
  let sandbox: Sandbox | undefined;
  if (missing === undefined) {
    before(async () => {
      sandbox = await Sandbox.create({ labels: LABELS, timeoutMs: 600_000 });
    });
    after(async () => {
      await sandbox?.kill();
    });
  }
  return {
    get sandbox(): Sandbox {
      if (!sandbox) {
        throw new Error("the sandbox that these tests share was not made");
      }
      return sandbox;
    },
  };
}
