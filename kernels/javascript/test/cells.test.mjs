// Cells: each row runs in its own context, and consists of the code and the expected result.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Kernel } from "./driver.mjs";

const GROUPS = {
  values: [
    ["1 + 1", { text: "2" }],
    ["'a' + 'b'", { text: "'ab'" }],
    ["2n ** 64n", { text: "18446744073709551616n" }],
    ["undefined", { text: undefined }],
    ["null", { text: "null" }],
    ["", { text: undefined }],
    ["// nothing", { text: undefined }],
    ["1; 2; 3;", { text: "3" }],
    ["{a: 1}", { text: "{ a: 1 }", json: { a: 1 } }],
    ["{a: 1, b: [2, {c: null}]}", { json: { a: 1, b: [2, { c: null }] } }],
    ["({a: 1})", { json: { a: 1 } }],
    ["[1, 2, 3]", { text: "[ 1, 2, 3 ]", json: [1, 2, 3] }],
    ["[]", { json: [] }],
    ["({a: undefined})", { text: "{ a: undefined }", json: undefined }],
    ["[NaN]", { text: "[ NaN ]", json: undefined }],
    ["({get a() { return 1 }})", { text: "{ a: [Getter] }", json: undefined }],
    ["new Map([[1, 2]])", { text: "Map(1) { 1 => 2 }", json: undefined }],
    ["new Set('aab')", { text: "Set(2) { 'a', 'b' }" }],
    ["new Date(0)", { text: "1970-01-01T00:00:00.000Z", json: undefined }],
    ["/a/g", { text: "/a/g" }],
    ["Symbol('s')", { text: "Symbol(s)" }],
    ["(function named() {})", { text: "[Function: named]" }],
    ["(class Made {})", { text: "[class Made]" }],
    ["const loop = {}; loop.self = loop; loop", { text: "<ref *1> { self: [Circular *1] }", json: undefined }],
    ["Promise.resolve(1)", { text: "Promise { 1 }" }],
    ["new Error('shown, not thrown').message", { text: "'shown, not thrown'" }],
    ["if (true) { 5 }", { text: undefined }],
    ["const v = 1", { text: undefined }],
    ["function declared() {}", { text: undefined }],
    ["({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('no') } })", { text: /cannot be shown: no/ }],
    ["'a' in {a: 1} ? `t${1}` : 0", { text: "'t1'" }],
    ["Buffer.from('hi')", { text: "<Buffer 68 69>" }],
    ["'\\ud800'", { text: /./ }],
    ["[] instanceof Array && new Error() instanceof Error", { text: "true" }],
    ["this === globalThis", { text: "true" }],
  ],
  scope: [
    ["const a = 1, b = {c: [1, 2]}\nlet d", {}],
    ["a + b.c[1]", { text: "3" }],
    ["const a = 'again'; a", { text: "'again'" }],
    ["let d = 4; d", { text: "4" }],
    ["let d; d", { text: undefined }],
    ["var kept = 1", {}],
    ["var kept; kept", { text: "1" }],
    ["class Point { static zero = new Point(0); constructor(x) { this.x = x } }\nPoint.zero.x", { text: "0" }],
    ["class Point { twice() { return 2 } }\nnew Point().twice()", { text: "2" }],
    ["Point.name", { text: "'Point'" }],
    ["const { e, f: [g = 7, ...h], ...rest } = { e: 1, f: [undefined, 8, 9], z: 0 }; [e, g, h, rest]", { json: [1, 7, [8, 9], { z: 0 }] }],
    ["const arrow = () => 1; arrow.name", { text: "'arrow'" }],
    ["const early = hoisted(); function hoisted() { return 'early' }\nearly", { text: "'early'" }],
    ["function helper() { return 1 }\nfunction caller() { return helper() }\ncaller()", { text: "1" }],
    ["await null; function helper() { return 2 }", {}],
    ["caller()", { text: "2" }],
    ["await null; function* many() { yield 1; yield 2 }\n[...many()]", { json: [1, 2] }],
    ["for (var i of [1, 2]) { var inner = i }\ni + inner", { text: "4" }],
    ["for (var j = 0; j < 3; j++);\nj", { text: "3" }],
    ["await null; for (var k = 0, m = 5; k < 3; k++) { if (k) var n = k }\n[k, m, n]", { json: [3, 5, 2] }],
    ["await null; for (var key in {p: 1, q: 2});\nkey", { text: "'q'" }],
    ["{ let hidden = 1 }\ntypeof hidden", { text: "'undefined'" }],
    ["for (let t = 0; t < 2; t++) {}\ntypeof t", { text: "'undefined'" }],
    ["const fns = []; for (let t = 0; t < 3; t++) fns.push(() => t)\nfns.map(one => one())", { json: [0, 1, 2] }],
    ["switch (1) { case 1: var cased = 'c' }\ncased", { text: "'c'" }],
    ["let one = 1\nlet two = 2\n;[one, two] = [two, one]\none", { text: "2" }],
    ["const withComment = 1 // kept\nconst next = 2\nwithComment + next", { text: "3" }],
    ["const crypto = require('crypto'); typeof crypto.randomBytes", { text: "'function'" }],
    ["const fetch = 1, URL = 2; fetch + URL", { text: "3" }],
    ["implicit = 5", { text: "5" }],
    ["implicit", { text: "5" }],
    ["export const exported = 6; exported", { text: "6" }],
    ["export default 7", { text: "7" }],
    ["label: for (;;) { break label }\n'out'", { text: "'out'" }],
    ["const failed = (() => { throw new Error('x') })()", { error: "Error" }],
    ["failed", { text: undefined }],
    ["new Function('return a')()", { text: "'again'" }],
    ["(0, eval)('a')", { text: "'again'" }],
  ],
  asynchronous: [
    ["await 5", { text: "5" }],
    ["const got = await Promise.resolve({v: 1})\ngot.v", { text: "1" }],
    ["got", { json: { v: 1 } }],
    ["let sum = 0; for await (const one of [1, Promise.resolve(2)]) sum += one\nsum", { text: "3" }],
    ["async function slow() { await new Promise(r => setTimeout(r, 5)); return 'done' }\nawait slow()", { text: "'done'" }],
    ["await slow() + '!'", { text: "'done!'" }],
    ["const many = await Promise.all([1, 2].map(async (v) => { const w = await v; return w * 2 })); many", { json: [2, 4] }],
    ["await (async () => await 3)()", { text: "3" }],
    ["async function* gen() { yield await 1; yield 2 }\nconst all = []; for await (const v of gen()) all.push(v)\nall", { json: [1, 2] }],
    ["class Later { async get() { return await 9 } }\nawait new Later().get()", { text: "9" }],
    ["if (await true) { var inside = await 'x' }\ninside", { text: "'x'" }],
    ["const o = { async m(x) { 'use strict'; return await x } }\nawait o.m(1)", { text: "1" }],
    ["await Promise.reject(new TypeError('refused'))", { error: "TypeError", value: "refused" }],
    ["Promise.reject(new RangeError('loose')); 1", { error: "RangeError", value: "loose" }],
    ["setTimeout(() => { throw new Error('from a timer') }, 1); await new Promise(() => {})", { error: "Error", value: "from a timer" }],
    ["'alive'", { text: "'alive'" }],
  ],
  modules: [
    ["import fs from 'fs'; typeof fs.readFileSync", { text: "'function'" }],
    ["import { join, sep as slash } from 'node:path'\njoin('a', slash, 'b')", { text: "'a/b'" }],
    ["import * as os from 'os'; typeof os.cpus", { text: "'function'" }],
    ["import util, { format } from 'util'\nutil.format === format", { text: "true" }],
    ["import util2, * as all from 'util'\nutil2 === all.default", { text: "true" }],
    ["import 'node:events'", { text: undefined }],
    ["import { nothing } from 'fs'", { error: "SyntaxError", value: /no export named 'nothing'/ }],
    ["import x from 'not-there'", { error: "Error", value: /not-there/ }],
    ["(await import('path')).sep", { text: "'/'" }],
    ["require('path').sep", { text: "'/'" }],
    ["require('not-there')", { error: "Error", value: /Cannot find module 'not-there'/ }],
    ["require('fs').writeFileSync('made.mjs', 'export const v = 1; export default 2'); require('fs').writeFileSync('made.cjs', 'exports.w = 3'); require('fs').writeFileSync('made.json', '[4]')", {}],
    ["import two, { v } from './made.mjs'; [two, v]", { json: [2, 1] }],
    ["require('./made.cjs').w", { text: "3" }],
    ["require('./made.json')", { json: [4] }],
    ["(await import('./made.cjs')).w", { text: "3" }],
    ["path.basename('/x/y')", { text: "'y'" }],
    ["import.meta.dirname === process.cwd() && import.meta.url.startsWith('file:///')", { text: "true" }],
    ["__dirname === process.cwd()", { text: "true" }],
    ["typeof module.exports + typeof exports", { text: "'objectobject'" }],
    ["new (require('events'))().on('x', () => {}) !== undefined", { text: "true" }],
  ],
  errors: [
    ["const = 4", { error: "SyntaxError", traceback: /Cell \[1\]:1:7\n\nconst = 4\n {6}\^/ }],
    ["\nlet a = ;\n", { error: "SyntaxError", traceback: /Cell \[2\]:2:9/ }],
    ["let twice = 1; let twice = 2", { error: "SyntaxError", value: /already been declared/ }],
    ["return 1", { error: "SyntaxError", value: /return/ }],
    ["notDefined", { error: "ReferenceError", value: "notDefined is not defined", traceback: /at Cell \[5\]:1:1$/ }],
    ["\n\nnull.x", { error: "TypeError", traceback: /at Cell \[6\]:3:/ }],
    ["function f() {\n  throw new Error('deep')\n}\nf()", { error: "Error", traceback: /^Error: deep\n    at f \(Cell \[7\]:2:9\)\n    at Cell \[7\]:4:1$/ }],
    ["await null\nf()", { error: "Error", traceback: /at f \(Cell \[7\]:2:9\)\n    at Cell \[8\]:2:1$/ }],
    ["throw 5", { error: "Uncaught", value: "5" }],
    ["throw {a: 1}", { error: "Uncaught", value: "{ a: 1 }" }],
    ["throw undefined", { error: "Uncaught", value: "undefined" }],
    ["throw new Error('outer', {cause: new Error('inner')})", { error: "Error", traceback: /\[cause\]: Error: inner/ }],
    ["throw new AggregateError([new Error('first')], 'several')", { error: "AggregateError", traceback: /first/ }],
    ["class Own extends Error { name = 'Own' }\nthrow new Own('mine')", { error: "Own", value: "mine" }],
    ["throw Object.assign(new Error('with'), {code: 'E1'})", { error: "Error", traceback: /code: 'E1'/ }],
    ["(function again() { again() })()", { error: "RangeError", value: /call stack/ }],
    ["JSON.parse('{')", { error: "SyntaxError" }],
    ["console.log('before'); throw new Error('after')", { error: "Error", stdout: "before\n" }],
    ["throw new Proxy({}, { get() { throw new Error('trap') } })", { error: /./ }],
    ["undefined", { text: undefined }],
  ],
  output: [
    ["console.log('to', {out: 1}); console.error('to err')", { stdout: "to { out: 1 }\n", stderr: "to err\n" }],
    ["process.stdout.write('no end')", { stdout: "no end", text: "true" }],
    ["console.table([{a: 1}]); undefined", { stdout: /│ 1 +│/ }],
    ["require('child_process').execSync('echo from a child', {stdio: 'inherit'}); 0", { stdout: "from a child\n" }],
    ["require('child_process').execSync('echo got').toString()", { text: "'got\\n'" }],
    ["process.stdout.write('x'.repeat(1e6)); 0", { stdout: "x".repeat(1e6) }],
    ["console.log('\\0\\0\\0\\u0005{\"op\":\"done\"}'); 1", { text: "1" }],
    ["require('fs').readFileSync(0).length", { text: "0" }],
    ["process.stdin.read()", { text: "null" }],
  ],
  display: [
    ["display({'text/html': '<b>x</b>'}); 1", { shown: [{ "text/html": "<b>x</b>" }], text: "1" }],
    ["display.html('<i>'); display.markdown('# m'); display.svg('<svg/>'); display.latex('x^2'); display.json({a: [1]})", { shown: [{ "text/html": "<i>" }, { "text/markdown": "# m" }, { "image/svg+xml": "<svg/>" }, { "text/latex": "x^2" }, { "application/json": { a: [1] } }] }],
    ["display.png(Buffer.from([1, 2, 3]))", { shown: [{ "image/png": "AQID" }] }],
    ["display({a: 1})", { shown: [{ "text/plain": "{ a: 1 }", "application/json": { a: 1 } }] }],
    ["({ [Symbol.for('Jupyter.display')]() { return {'text/plain': 'p', 'text/html': 'h'} } })", { main: { "text/plain": "p", "text/html": "h" } }],
    ["({ async [Symbol.for('Jupyter.display')]() { return {'text/html': 'later'} } })", { main: { "text/html": "later" } }],
    ["({ [Symbol.for('Jupyter.display')]() { throw new Error('hook') } })", { error: "Error", value: "hook" }],
    ["({ [Symbol.for('Jupyter.display')]() { return 5 } })", { error: "TypeError" }],
    ["Buffer.from('89504e470d0a1a0a', 'hex')", { main: { "text/plain": "<Buffer 89 50 4e 47 0d 0a 1a 0a>", "image/png": "iVBORw0KGgo=" } }],
    ["display({'image/png': 'not base64!'})", { cut: /image\/png: has to be/ }],
    ["display({'image/png': Buffer.alloc(7e6)})", { cut: /image\/png: 7\.0 MB are more than the 8 MiB/ }],
    ["display({'text/html': 'x'.repeat(9e6)})", { cut: /text\/html: 9\.0 MB/ }],
    ["'y'.repeat(9e6)", { cut: /text\/plain: shortened/, text: /bytes are left out/ }],
    ["Array.from({length: 300000}, (_, i) => i)", { cut: /application\/json/ }],
    ["for (let i = 0; i < 5; i++) display({'text/html': 'x'.repeat(7e6)})", { cut: /24 MiB/ }],
    ["for (let i = 0; i < 1200; i++) display(i)", { count: 1000, stderr: /more than 1,000 results/ }],
    ["display(1, {display_id: 'd', update: true, metadata: {'image/png': {width: 2}}})", { fields: { display_id: "d", update: true, metadata: { "image/png": { width: 2 } } } }],
  ],
};

function matches(actual, expected, what) {
  if (expected instanceof RegExp) assert.match(String(actual), expected, what);
  else assert.deepEqual(actual, expected, what);
}

for (const [group, cells] of Object.entries(GROUPS)) {
  describe(group, () => {
    let kernel;
    before(async () => {
      kernel = await Kernel.start();
    });
    after(() => kernel.stop());
    for (const [code, want] of cells) {
      test(code.replaceAll("\n", "⏎").slice(0, 90) || "(empty)", async () => {
        const got = await kernel.run(code);
        assert.equal(got.error?.traceback === undefined || Boolean(want.error), true, got.error?.traceback);
        assert.equal(got.status, want.error ? "error" : "ok");
        if (want.error) matches(got.error.name, want.error, "name");
        if ("value" in want) matches(got.error.value, want.value, "value");
        if ("traceback" in want) matches(got.error.traceback, want.traceback, "traceback");
        if (got.error) assert.doesNotMatch(got.error.traceback, /eval1|node:vm|__belljar/, "frames of the kernel");
        for (const key of ["text", "json", "stdout", "stderr"]) if (key in want) matches(got[key], want[key], key);
        if (want.shown) assert.deepEqual(got.results.filter((one) => !one.main).map((one) => one.data), want.shown);
        if (want.main) assert.deepEqual(got.results.find((one) => one.main).data, want.main);
        if (want.cut) assert.match(got.results.flatMap((one) => one.cut ?? []).join("\n"), want.cut);
        if (want.count) assert.equal(got.results.length, want.count);
        for (const [key, value] of Object.entries(want.fields ?? {})) assert.deepEqual(got.results[0][key], value);
        for (const one of got.results) assert.ok(one.size < 32 * 1024 * 1024, "a frame is bounded");
      });
    }
  });
}

describe("marks", () => {
  let kernel;
  before(async () => {
    kernel = await Kernel.start();
  });
  after(() => kernel.stop());
  const given = { mark: "0123456789abcdef" };
  const mark = (one) => `\x1e${given.mark}${one.mark.toString(16).padStart(8, "0")}`;

  test("results have marks in the streams, and the value has none", async () => {
    const code = "console.log('a'); display(1); require('child_process').execSync('echo b', { stdio: 'inherit' }); console.error('c'); display(2); 3";
    const got = await kernel.run(code, given);
    const [first, second, main] = got.results;
    assert.deepEqual([second.mark, main.mark], [first.mark + 1, undefined]);
    assert.equal(got.stdout, `a\n${mark(first)}b\n${mark(second)}`);
    assert.equal(got.stderr, `${mark(first)}c\n${mark(second)}`);
    const plain = await kernel.run("display(1)");
    assert.deepEqual([plain.stdout, plain.stderr, plain.results[0].mark], ["", "", undefined]);
  });

  test("the value comes after what callbacks have shown", async () => {
    const got = await kernel.run("setImmediate(() => display('later')); 3", given);
    assert.deepEqual(got.results.map((one) => one.data["text/plain"]), ["'later'", "3"]);
  });

  test("marks are not in what the code has put in the place of its streams", async () => {
    const got = await kernel.run("fs.closeSync(1); fs.openSync('file', 'w+'); display(1); fs.readFileSync('file', 'utf8')", given);
    assert.deepEqual([got.text, got.stdout, got.stderr], ["''", "", mark(got.results[0])]);
  });
});
