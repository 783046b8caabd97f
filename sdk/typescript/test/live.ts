// Helpers for tests that need the server in BELLJAR_API_URL and BELLJAR_API_KEY.

import { after, before, test, type TestContext } from "node:test";
import { Sandbox } from "belljar";

/** The reason to skip tests that need a server, if any. */
export const missing: string | undefined = process.env["BELLJAR_API_URL"] && process.env["BELLJAR_API_KEY"] ? undefined : "needs a server: set BELLJAR_API_URL and BELLJAR_API_KEY, or BELLJAR_BIN with make";

/** Labels of sandboxes of these tests, so that a shared server can be cleaned up. */
export const LABELS = { made_by: `typescript-tests-${process.pid}` };

/** The reason to skip tests with several tenants, if any. A server with the machine's own tree refuses others while they run. */
export const missingTenants: string | undefined = missing ?? (process.env["BELLJAR_TEST_TENANTS"] ? undefined : "needs a server that may serve several tenants: set BELLJAR_TEST_TENANTS=1");

/** The reason to skip tests of volumes, if any. */
export const missingVolumes: string | undefined = missing ?? (process.getuid?.() === 0 ? undefined : "needs a server of root, which alone mounts volumes");

/** A test against the server. */
export function live(name: string, run: (context: TestContext) => Promise<void>, skip: string | undefined = missing): void {
  test(name, { skip, timeout: 120_000 }, run);
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
