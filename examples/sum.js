// Sums up sales by region, from the given file or from standard input.
const fs = require("fs");

const text = fs.readFileSync(process.argv[2] ?? 0, "utf8");
const [header, ...rows] = text.trim().split("\n").map((line) => line.split(","));
const column = Object.fromEntries(header.map((name, index) => [name, index]));

// Money is counted in whole cents to avoid rounding errors.
const regions = new Map();
const total = { units: 0, cents: 0 };
for (const row of rows) {
  const region = row[column.region];
  const units = Number(row[column.units]);
  const cents = units * Math.round(Number(row[column.price]) * 100);
  const sum = regions.get(region) ?? { units: 0, cents: 0 };
  regions.set(region, { units: sum.units + units, cents: sum.cents + cents });
  total.units += units;
  total.cents += cents;
}

function printRow(name, units, revenue) {
  console.log(name.padEnd(8) + String(units).padStart(8) + revenue.padStart(12));
}

printRow("region", "units", "revenue");
for (const [region, sum] of [...regions].sort()) {
  printRow(region, sum.units, (sum.cents / 100).toFixed(2));
}
printRow("total", total.units, (total.cents / 100).toFixed(2));
