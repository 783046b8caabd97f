// Runs the tests of the console, in Debian's Chromium. BELLJAR_BIN is the path of a belljar binary with removable walls.
import { fileURLToPath } from "node:url";
import { runFiles } from "../../sdk/typescript/scripts/server.mjs";

const directory = fileURLToPath(new URL(".", import.meta.url));
process.exitCode = await runFiles(directory, ["console.test.mjs", "screens.test.mjs", "trouble.test.mjs", "scale.test.mjs"], {}, ["--test-concurrency=1"]);
