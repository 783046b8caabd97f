// Prepares a sandbox once, and runs several variants concurrently in forks of it.
import { Sandbox } from "belljar";

await using base = await Sandbox.create({ timeoutMs: 120_000 });
await base.files.write("numbers.txt", Array.from({ length: 1000 }, (_, index) => String(index)).join("\n"));

const attempts = ["wc -l < numbers.txt", "tail -n 1 numbers.txt", "grep -c 7 numbers.txt"];
const copies = await base.fork({ count: attempts.length, timeoutMs: 60_000 });
try {
  const results = await Promise.all(copies.map((copy, index) => copy.commands.run(attempts[index] ?? "true")));
  for (const [index, result] of results.entries()) {
    console.log(`${attempts[index]}: ${result.stdout.trim()}`);
  }
} finally {
  await Promise.all(copies.map((copy) => copy.kill()));
}
