const fs = require("fs");

for (const argument of process.argv.slice(2)) {
  console.log(argument);
}
process.stdout.write(fs.readFileSync(0));
process.exitCode = 3;
