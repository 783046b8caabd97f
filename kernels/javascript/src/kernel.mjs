// The kernel: receives code over the control socket, runs it in this process's own global scope, and reports the results.

import fs from "node:fs";
import { builtinModules, createRequire, syncBuiltinESMExports } from "node:module";
import path from "node:path";
import { Readable } from "node:stream";
import { pathToFileURL } from "node:url";
import vm from "node:vm";
import threads from "node:worker_threads";
import { CellSyntaxError, HELPERS, rewrite } from "./rewrite.mjs";
import { DISPLAY, Results, formsOf, isBundle, plainForms, tableForms } from "./results.mjs";
import { InputError, Interrupted, ToolError, errorFields } from "./errors.mjs";
import { typeStripper } from "./typescript.mjs";
import { leaveStackUnchecked, nowRunning, quietly, watchInterrupts } from "./interrupt.mjs";
import { Wire } from "./wire.mjs";
import { JSON } from "./own.mjs";

// User code may replace any global; the kernel keeps references to those it needs.
const exit = process.exit.bind(process);
const reallyExit = process.reallyExit.bind(process);
const later = setImmediate;
const chdir = process.chdir.bind(process);
const currentDirectory = process.cwd.bind(process);
const kernelUrl = import.meta.url;
const stdout = process.stdout;
const stderr = process.stderr;
const MAX_PROMPT = 4096;
const MAX_ARGUMENTS = 256 * 1024;
const MAX_OPEN_CALLS = 16;
const MAX_MAPS = 200;
// Absent in Node 18.
const loader = vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER;

const maps = new Map();
let wire;
let language;
let strip;
let armed;
let cell;
let count = 0;
let calls = 0;
/** What code may call outside the sandbox: `tools` has the functions of the running execution. */
let belljar;

start();

function start() {
  const fd = Number(process.env.BELLJAR_KERNEL_FD ?? "9");
  language = process.env.BELLJAR_KERNEL_LANGUAGE || "javascript";
  delete process.env.BELLJAR_KERNEL_FD;
  delete process.env.BELLJAR_KERNEL_LANGUAGE;
  forgetStartOptions();
  for (const stream of [stdout, stderr]) {
    // Writes are synchronous, so that the order of output and results is that of the code.
    stream._handle?.setBlocking?.(true);
    stream.on("error", () => {});
  }
  replaceStdin();
  wire = new Wire(fd, onFrame, () => reallyExit(0));
  if (language === "typescript") {
    const found = typeStripper({ ...process.env });
    if (found.missing) {
      wire.send(JSON.stringify({ op: "failed", message: found.missing }));
      reallyExit(1);
    }
    strip = found.strip;
  }
  armed = watchInterrupts(interrupt).catch((error) => stderr.write(`interrupts do not work: ${error.message}\n`));
  process.on("unhandledRejection", (reason) => stray(reason));
  process.on("uncaughtException", (error) => stray(error));
  globals();
  wire.send(JSON.stringify({ op: "ready", protocol: 1, language, version: process.versions.node }));
}

/** Workers and children of user code must not inherit the kernel's own start options. Those of NODE_OPTIONS they have anyway. */
function forgetStartOptions() {
  process.execArgv.length = 0;
  const { Worker } = threads;
  threads.Worker = class extends Worker {
    static name = Worker.name;

    constructor(filename, options) {
      super(filename, { ...options, execArgv: options?.execArgv ?? [] });
    }
  };
  syncBuiltinESMExports();
}

function replaceStdin() {
  try {
    fs.closeSync(0);
    fs.openSync("/dev/null", "r");
  } catch {
    // In that case it stays an empty stream.
  }
  const empty = Object.assign(Readable.from([]), { fd: 0, isTTY: false });
  Object.defineProperty(process, "stdin", { value: empty, configurable: true, enumerable: true, writable: true });
}

function onFrame(frame) {
  if (frame?.op === "execute" && !cell) {
    const one = { id: frame.id, frame, cancelled: false, done: false, calls: new Map(), called: new WeakSet(), waiting: [] };
    cell = one;
    armed.then(() => later(() => execute(one)));
  } else if (frame?.op === "input" && cell?.question && frame.id === cell.id) {
    const { answer } = cell.question;
    cell.question = undefined;
    answer(frame);
  } else if (frame?.op === "tool" && cell && frame.id === cell.id) {
    const call = cell.calls.get(frame.call);
    cell.calls.delete(frame.call);
    sendCallsLater(cell);
    if (frame.error !== undefined) call?.reject(new ToolError(String(frame.error)));
    else call?.resolve(frame.result);
  }
}

async function execute(one) {
  count += 1;
  one.count = count;
  nowRunning(count);
  one.name = `Cell [${count}]`;
  one.results = new Results(wire, one.id, one.frame.mark);
  wire.send(JSON.stringify({ op: "started", id: one.id, count }));
  try {
    enter(one);
    belljar.tools = toolsOf(one);
    const code = prepared(one);
    // Wrapped in an object, because a promise returned by synchronous code is shown and not awaited, unless it is that of a call.
    const { value: given } = await run(one, code);
    const value = one.called.has(given) ? await given : given;
    if (one.cancelled) return;
    if (code.hasValue && value !== undefined) {
      const forms = await formsOf(value);
      if (one.cancelled) return;
      // Sent at the end, after what callbacks write until then.
      one.value = forms;
    }
  } catch (error) {
    if (one.cancelled) return;
    one.failure = { error };
  }
  // Unhandled rejections are known after the next turn.
  later(() => {
    if (!one.cancelled) finish(one, one.failure ? "error" : "ok", one.failure);
  });
}

/** Returns the text of a cell as it is run. */
function prepared(one) {
  try {
    let source = String(one.frame.code ?? "");
    let map;
    if (strip) ({ code: source, map } = strip(source));
    const code = rewrite(source, { lenientImports: Boolean(strip) });
    maps.set(one.name, { columns: code.columns, map });
    if (maps.size > MAX_MAPS) maps.delete(maps.keys().next().value);
    return code;
  } catch (error) {
    if (error instanceof CellSyntaxError) error.cell = one.name;
    throw error;
  }
}

function run(one, code) {
  leaveStackUnchecked();
  // Compiled first, so that code with a syntax error declares nothing.
  const script = new vm.Script(code.code, { filename: one.name, columnOffset: -code.shift });
  const functions = code.functions ? new vm.Script(code.functions, { filename: one.name }) : undefined;
  for (const name of code.names) declare(name);
  functions?.runInThisContext({ displayErrors: false });
  const value = script.runInThisContext({ displayErrors: false });
  return code.isAsync ? awaitValue(value) : { value };
}

async function awaitValue(promise) {
  return { value: await promise };
}

/** Turns a name into a plain variable of the global scope; it keeps its value until it is assigned. */
function declare(name) {
  const found = Object.getOwnPropertyDescriptor(globalThis, name);
  if (found && ("value" in found || !found.configurable)) return;
  Object.defineProperty(globalThis, name, { value: undefined, writable: true, enumerable: true, configurable: true });
}

/** Applies the directory and variables of one execution. */
function enter(one) {
  const { env, cwd } = one.frame;
  one.before = { variables: new Map() };
  if (typeof cwd === "string" && cwd !== "") {
    try {
      one.before.directory = currentDirectory();
    } catch {
      one.before.directory = "/";
    }
    try {
      chdir(cwd);
    } catch (error) {
      one.before.directory = undefined;
      throw new Error(`the directory cannot be entered: ${cwd}: ${error.code ?? error.message}`);
    }
  }
  for (const [name, value] of Object.entries(env ?? {})) {
    one.before.variables.set(name, process.env[name]);
    process.env[name] = String(value);
  }
}

function leave(one) {
  for (const [name, value] of one.before?.variables ?? []) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  if (one.before?.directory !== undefined) {
    try {
      chdir(one.before.directory);
    } catch {
      // The directory no longer exists; the working directory is not changed.
    }
  }
}

function finish(one, status, failure, exiting = false) {
  if (one.done) return;
  if (!one.cancelled) sendCalls(one);
  one.done = true;
  nowRunning(0);
  one.cancelled = one.cancelled || status !== "ok" || exiting;
  leave(one);
  if (one.value) one.results.send(one.value, { main: true });
  if (failure) {
    const fields = errorFields(failure.error, kernelUrl, maps);
    wire.send(JSON.stringify({ op: "error", id: one.id, ...fields }));
  }
  const done = { op: "done", id: one.id, status };
  if (exiting) done.exiting = true;
  cell = undefined;
  wire.send(JSON.stringify(done));
}

function interrupt(number) {
  if (!cell || cell.done || cell.count !== number) return;
  cell.cancelled = true;
  finish(cell, "interrupted", { error: new Interrupted() });
}

/** Handles an uncaught error: assigned to the running cell, if any. */
function stray(error) {
  if (error instanceof Interrupted) return;
  if (cell && !cell.done) {
    const one = cell;
    one.failure ??= { error };
    one.cancelled = true;
    finish(one, "error", one.failure);
  } else {
    stderr.write(`Uncaught after its execution:\n${errorFields(error, kernelUrl, maps).traceback}\n`);
  }
}

function checked(one) {
  if (one?.cancelled && one.done) throw new Interrupted();
}

function show(forms, options) {
  const one = cell;
  if (!one || one.done || !one.results) return;
  if (!one.results.send(forms, options) && !one.said) {
    one.said = true;
    stderr.write("more than 1,000 results of one execution: the others are left out\n");
  }
}

function display(value, options = {}) {
  if (typeof value?.[DISPLAY] === "function") return formsOf(value).then((forms) => show(forms, options));
  show(isBundle(value) ? value : plainForms(value), options);
  return undefined;
}

Object.assign(display, {
  html: (text) => show({ "text/html": String(text) }),
  markdown: (text) => show({ "text/markdown": String(text) }),
  svg: (text) => show({ "image/svg+xml": String(text) }),
  latex: (text) => show({ "text/latex": String(text) }),
  json: (value) => show({ "application/json": value }),
  png: (bytes) => show({ "image/png": bytes }),
  jpeg: (bytes) => show({ "image/jpeg": bytes }),
  table: (rows) => show(tableForms(rows)),
});

function ask(prompt, password) {
  if (!cell || cell.done) throw new InputError("InputError", "no execution runs that could ask");
  if (!cell.frame.input) {
    throw new InputError("InputError", "nobody answers questions of this execution: run the code with input allowed");
  }
  if (cell.question) throw new InputError("InputError", "a question waits for its answer already");
  const one = cell;
  // Those were made before, and this turn may not end before the answer.
  sendCalls(one);
  return new Promise((resolve, reject) => {
    one.question = {
      answer: (frame) => {
        one.answer = frame;
        if (frame.eof) reject(new InputError("EOFError", "nobody will answer"));
        else resolve(String(frame.value ?? ""));
      },
    };
    wire.send(JSON.stringify({ op: "input", id: one.id, prompt: [...String(prompt ?? "")].slice(0, MAX_PROMPT / 4).join(""), password }));
  });
}

/** Returns the functions that code may call. The error for another one names them. */
function toolsOf(one) {
  const names = Array.isArray(one.frame.tools) ? one.frame.tools : [];
  const caller = (name) => (given) => {
    const called = callTool(one, name, given);
    one.called.add(called);
    return called;
  };
  const tools = Object.freeze(Object.fromEntries(names.map((name) => [name, caller(name)])));
  // What others look for in any object is no call.
  const isOther = (name) => typeof name === "symbol" || name in tools || name === "then" || name === "toJSON";
  return new Proxy(tools, {
    get(_, name) {
      if (isOther(name)) return tools[name];
      throw new TypeError(names.length ? `this execution may not call ${JSON.stringify(name)}, but ${names.join(", ")}` : "this execution may call no tools");
    },
  });
}

async function callTool(one, name, given = {}) {
  if (one.done || cell !== one) throw new ToolError("the execution that could call this tool has ended");
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw new TypeError(`${name}() takes its arguments by name, in an object`);
  }
  const text = JSON.stringify(given);
  const length = Buffer.byteLength(text);
  if (length > MAX_ARGUMENTS) throw new RangeError(`the arguments of ${name}() have ${length} bytes as JSON; at most ${MAX_ARGUMENTS} are allowed`);
  calls += 1;
  const call = calls;
  const frame = `{"op":"tool","id":${one.id},"call":${call},"name":${JSON.stringify(name)},"arguments":${text}`;
  return new Promise((resolve, reject) => {
    one.waiting.push({ call, frame, resolve, reject });
    sendCallsLater(one);
  });
}

/** Sends the calls that wait at the end of this turn: then those that the code makes together are known. */
function sendCallsLater(one) {
  if (one.sends || one.waiting.length === 0) return;
  one.sends = true;
  later(() => {
    one.sends = false;
    if (!one.done) sendCalls(one);
  });
}

function sendCalls(one) {
  while (one.waiting.length > 0 && one.calls.size < MAX_OPEN_CALLS) {
    const { call, frame, resolve, reject } = one.waiting.shift();
    one.calls.set(call, { resolve, reject });
    wire.send(`${frame}${one.waiting.length > 0 ? ',"more":true' : ""}}`);
  }
}

async function input(prompt = "", { password = false } = {}) {
  return ask(prompt, Boolean(password));
}

/** Asks a question and waits synchronously, as in a browser: null if the client refuses. */
function promptInPlace(message = "", otherwise = null) {
  const one = cell;
  ask(message, false).catch(() => {});
  while (one.question && !one.done) wire.waitInPlace();
  const frame = one.answer;
  return frame?.eof ? otherwise : String(frame?.value ?? "");
}

function leaveProcess(code) {
  if (code !== undefined) process.exitCode = code;
  if (cell && !cell.done) {
    const error = new Error(`the code called process.exit(${code ?? ""})`);
    error.name = "Exit";
    finish(cell, "error", { error }, true);
  }
  if (code === undefined) exit();
  else exit(code);
}

function localRequire() {
  return createRequire(path.join(currentDirectory(), "cell.js"));
}

function load(specifier, options) {
  let wanted = String(specifier);
  if (/^\.{0,2}\//.test(wanted) || wanted === "." || wanted === "..") {
    wanted = pathToFileURL(path.resolve(currentDirectory(), wanted)).href;
    return options === undefined ? import(wanted) : import(wanted, options);
  }
  return loadPackage(wanted, options);
}

/** Imports a package, from the current directory and from the directories of `require`, such as those of NODE_PATH. */
async function loadPackage(wanted, options) {
  try {
    return await importFrom(currentDirectory(), wanted, options);
  } catch (error) {
    if (error?.code !== "ERR_MODULE_NOT_FOUND") throw error;
    let found;
    try {
      found = localRequire().resolve(wanted);
    } catch {
      throw error;
    }
    // The package may have another file for `import` than for `require`.
    const mark = `${path.sep}node_modules${path.sep}`;
    const place = found.lastIndexOf(mark);
    if (loader === undefined || place < 0) return import(pathToFileURL(found).href);
    return importFrom(found.slice(0, place), wanted, options);
  }
}

function importFrom(directory, wanted, options) {
  if (loader === undefined) return import(wanted);
  const filename = path.join(directory, "cell.mjs");
  const text = "(name, options) => options === undefined ? import(name) : import(name, options)";
  return quietly(() => new vm.Script(text, { filename, importModuleDynamically: loader }).runInThisContext()(wanted, options));
}

async function imported(specifier, options, names) {
  const namespace = await load(specifier, options);
  for (const name of names) {
    if (!(name in namespace)) throw new SyntaxError(`the module '${specifier}' has no export named '${name}'`);
  }
  return namespace;
}

function globals() {
  const helpers = Object.freeze({
    cell: () => cell,
    awaited: (one, value) => {
      checked(one);
      return value;
    },
    iterated: (current, values) => {
      if (values === null || values === undefined) return values;
      return (async function* () {
        for await (const one of values) {
          checked(current);
          yield one;
        }
      })();
    },
    load,
    imported,
    meta: () => {
      const filename = path.join(currentDirectory(), "cell.mjs");
      return {
        url: pathToFileURL(filename).href,
        filename,
        dirname: currentDirectory(),
        resolve: (name) => (/^\.{0,2}\//.test(name) ? pathToFileURL(path.resolve(name)).href : pathToFileURL(localRequire().resolve(name)).href),
      };
    },
  });
  const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, enumerable: false, configurable: true });
  Object.defineProperty(globalThis, HELPERS, { value: helpers });
  const require = (name) => localRequire()(name);
  const template = createRequire(path.join(currentDirectory(), "cell.js"));
  require.resolve = Object.assign((...all) => localRequire().resolve(...all), { paths: (...all) => localRequire().resolve.paths(...all) });
  require.cache = template.cache;
  require.extensions = template.extensions;
  hidden("require", require);
  hidden("display", display);
  hidden("input", input);
  belljar = { tools: {}, ToolError };
  hidden("belljar", belljar);
  hidden("prompt", promptInPlace);
  const module = { exports: {}, children: [], id: "<cell>" };
  hidden("module", module);
  hidden("exports", module.exports);
  Object.defineProperty(globalThis, "__dirname", { get: currentDirectory, configurable: true });
  Object.defineProperty(globalThis, "__filename", { get: () => path.join(currentDirectory(), "cell.js"), configurable: true });
  process.exit = leaveProcess;
  for (const name of builtinModules) {
    if (/[/_:]/.test(name) || name in globalThis) continue;
    Object.defineProperty(globalThis, name, {
      get: () => {
        const found = template(name);
        hidden(name, found);
        return found;
      },
      set: (value) => Object.defineProperty(globalThis, name, { value, writable: true, enumerable: true, configurable: true }),
      enumerable: false,
      configurable: true,
    });
  }
}
