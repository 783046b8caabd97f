// SIGINT, even while code runs that never yields.
//
// A thread waits for the signal (V8's own watchdog wakes it), and asks the main thread to end the cell. If the main thread does
// not respond quickly, code is running that does not yield: the thread makes V8 stop it, and asks again.

import { Worker } from "node:worker_threads";

// Two numbers shared by both threads: the first is incremented by each response, the second is the running execution, or 0.
const ANSWERED = 0;
const RUNNING = 1;

// When the last watchdog of a process is removed, Node lets the signal end the process. So they are nested: a signal removes the
// innermost one, and the others remain until it is restored.
const THREAD = `
const vm = require("node:vm");
const inspector = require("node:inspector");
const { parentPort, workerData: shared } = require("node:worker_threads");
const never = new Int32Array(new SharedArrayBuffer(4));
const script = new vm.Script("inside()");
let session;
let pending = 0;
let told = false;
function deliver() {
  const wanted = pending;
  for (let attempt = 0; attempt < 100 && Atomics.load(shared, ${RUNNING}) === wanted; attempt += 1) {
    const before = Atomics.load(shared, ${ANSWERED});
    parentPort.postMessage(wanted);
    if (Atomics.wait(shared, ${ANSWERED}, before, attempt === 0 ? 40 : 80) !== "timed-out") break;
    if (Atomics.load(shared, ${RUNNING}) !== wanted) break;
    try {
      if (!session) { session = new inspector.Session(); session.connectToMainThread(); }
      session.post("Runtime.terminateExecution");
    } catch {}
  }
  pending = 0;
  // An open session would make the process wait for it at exit, and print a message.
  try { session?.disconnect(); } catch {}
  session = undefined;
}
function hold(level) {
  for (;;) {
    if (pending !== 0) deliver();
    globalThis.inside = level > 0 ? () => hold(level - 1) : () => {
      if (!told) parentPort.postMessage("armed");
      told = true;
      Atomics.wait(never, 0, 0);
    };
    try { script.runInThisContext({ breakOnSigint: true }); } catch { pending = Atomics.load(shared, ${RUNNING}); }
  }
}
hold(24);
`;

const shared = new Int32Array(new SharedArrayBuffer(8));

/** Calls `onInterrupt` with the number of the interrupted execution. The promise resolves when the handler is active. */
export function watchInterrupts(onInterrupt) {
  // Prevents the signal from ending the process, and other listeners from replacing this one.
  process.on("SIGINT", () => {});
  return new Promise((resolve, reject) => {
    const thread = new Worker(THREAD, { eval: true, workerData: shared, execArgv: [], env: {}, stdin: false });
    thread.unref();
    thread.on("error", reject);
    thread.on("message", (message) => {
      if (message === "armed") return resolve();
      Atomics.add(shared, ANSWERED, 1);
      Atomics.notify(shared, ANSWERED);
      return onInterrupt(message);
    });
  });
}

/** Sets the running execution; 0 for none, in which case signals have no effect. */
export function nowRunning(number) {
  Atomics.store(shared, RUNNING, number);
}

/**
 * Called before each execution. When V8 stops code in a callback, Node finds its stack of async contexts changed, and
 * would exit. That check is a debugging aid, which each async hook enables; without it Node repairs the stack.
 */
export function leaveStackUnchecked() {
  if (hooks) hooks.async_hook_fields[hooks.constants.kCheck] = 0;
}

const hooks = quietly(() => process.binding("async_wrap"));

/** Runs a function without Node's warnings. */
export function quietly(action) {
  const emit = process.emitWarning;
  try {
    process.emitWarning = () => {};
    return action();
  } catch {
    return undefined;
  } finally {
    process.emitWarning = emit;
  }
}
