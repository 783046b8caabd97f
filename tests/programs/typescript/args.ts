import { readFileSync } from "fs";

interface Program {
  args: string[];
  status: number;
}

const program: Program = { args: process.argv.slice(2), status: 3 };
for (const argument of program.args) {
  console.log(argument);
}
process.stdout.write(readFileSync(0));
process.exitCode = program.status;
