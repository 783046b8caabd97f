// Runs code in a sandbox, and reads the files it created.
import { CommandExitError, Sandbox } from "belljar";

await using sandbox = await Sandbox.create({ timeoutMs: 60_000, limits: { memory: "256m" } });

await sandbox.files.write(
  "squares.py",
  `import json
json.dump([n * n for n in range(10)], open("squares.json", "w"))
print("done")
`,
);
const { stdout } = await sandbox.commands.run("python3 squares.py", { timeoutMs: 10_000 });
console.log(stdout.trim());
console.log(JSON.parse(await sandbox.files.read("squares.json")));

try {
  await sandbox.commands.run(["python3", "-c", "1 / 0"]);
} catch (error) {
  if (!(error instanceof CommandExitError)) {
    throw error;
  }
  console.log("as expected:", error.message);
}
