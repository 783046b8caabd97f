// The cases of sdk/conformance: the engines' own cases, as a user of this SDK sees them.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Belljar, type CommandHandle, type CommandResult, type CreateOptions, Sandbox, SandboxError, type Session } from "belljar";
import * as belljar from "../src/index.js";
import { chartFromWire } from "../src/code-data.js";
import { Configuration } from "../src/config.js";
import { errorFromProblem } from "../src/errors.js";
import { LABELS, live } from "./live.js";
import { until } from "./wait.js";

/** One step. Its first key is the action; `sdk/conformance/README.md` lists all of them. */
interface Step {
  [key: string]: unknown;
  error?: string;
}

interface Case {
  name: string;
  create?: Pick<CreateOptions, "envs" | "limits">;
  steps: Step[];
}

test("conformance: defaults", async () => {
  const { maxRetries, requestTimeoutMs } = new Configuration();
  assert.deepEqual([maxRetries, requestTimeoutMs / 1000], [table.defaults["max_retries"], table.defaults["request_timeout_s"]]);
});

test("conformance: errors", () => {
  for (const [code, [status, name, base]] of Object.entries(table.errors)) {
    const error = errorFromProblem({ code, detail: "d" }, status);
    const kind = (belljar as Record<string, unknown>)[`${base}Error`] as new (message: string) => Error;
    assert.ok(error.name === `${name}Error` && error.constructor.name === error.name && error instanceof kind, `${code}: ${error.name}`);
  }
});

test("conformance: charts", () => {
  for (const type of Object.keys(table.charts)) {
    assert.equal(chartFromWire({ type, title: null, elements: [] }).type, type);
  }
});

const table = JSON.parse(readFileSync(new URL("../../../conformance/cases.json", import.meta.url), "utf8")) as { cases: Case[]; defaults: Record<string, number>; errors: Record<string, [status: number, name: string, base: string]>; charts: Record<string, string> };

for (const one of table.cases) {
  live(`conformance: ${one.name}`, async () => {
    await using sandbox = await Sandbox.create({ ...one.create, timeoutMs: 120_000, labels: LABELS });
    await new Run(sandbox).all(one.steps);
  });
}

const bytesOf = (step: Step): Uint8Array => new Uint8Array(typeof step["base64"] === "string" ? Buffer.from(step["base64"], "base64") : Buffer.from(step["text"] as string));

/** One case in one sandbox. */
class Run {
  #handle: CommandHandle | undefined;
  #session: Session | undefined;

  constructor(readonly sandbox: Sandbox) {}

  async all(steps: Step[]): Promise<void> {
    for (const step of steps) {
      await this.step(step);
    }
  }

  async step(step: Step): Promise<void> {
    const kind = Object.keys(step)[0] as keyof typeof this.does;
    assert.ok(kind in this.does, `nothing is called ${kind}`);
    const done = this.does[kind](step, step[kind] as never);
    if (step.error === undefined) {
      await done;
      return;
    }
    await assert.rejects(done, (error) => {
      assert.ok(error instanceof SandboxError, String(error));
      assert.ok(step.error === "*" || step.error === error.code, `${JSON.stringify(step)}: ${error.code} ${error.message}`);
      return true;
    });
  }

  get #started(): CommandHandle {
    assert.ok(this.#handle, "nothing was started");
    return this.#handle;
  }

  readonly does = {
    run: async (step: Step, what: string | string[]): Promise<void> => {
      const { timeout_ms: timeoutMs, ...given } = (step["with"] ?? {}) as { timeout_ms?: number; envs?: Record<string, string>; cwd?: string; stdin?: string };
      checkResult(step, await this.sandbox.commands.run(what, { check: false, ...given, ...(timeoutMs === undefined ? {} : { timeoutMs }) }));
    },
    session: async (step: Step, line: string): Promise<void> => {
      this.#session ??= await this.sandbox.sessions.create();
      checkResult(step, await this.#session.run(line, { check: false }));
    },
    code_step: async (step: Step, code: string): Promise<void> => {
      let end = await this.sandbox.runCodeStep(code, { language: step["language"] as string, functions: step["functions"] as string[] });
      for (const answers of step["answers"] as { name: string; arguments: object; result?: unknown; fails?: string }[][]) {
        assert.deepEqual(end.toolCalls.map(({ name, arguments: args }) => [name, args]), answers.map(({ name, arguments: args }) => [name, args]));
        const result = (at: number) => (answers[at]?.fails === undefined ? answers[at]?.result : new RangeError(answers[at]?.fails));
        end = await this.sandbox.runCodeStep(Object.fromEntries(end.toolCalls.map((call, at) => [call.id, result(at)])));
      }
      assert.deepEqual([end.execution?.status, end.execution?.logs.stdout.join("")], ["ok", step["stdout"]]);
    },
    code: async (step: Step, code: string): Promise<void> => {
      const done = await this.sandbox.runCode(code, { language: step["language"] as string });
      const found = { status: done.status, state: done.state, failed: done.error?.name ?? null, stdout: done.logs.stdout.join(""), rebuilt: done.rebuilt !== undefined };
      const wanted: Record<string, unknown> = { status: "ok", state: "preserved", failed: null, stdout: found.stdout, rebuilt: false, ...step };
      assert.deepEqual(found, Object.fromEntries(Object.keys(found).map((name) => [name, wanted[name]])), JSON.stringify(step));
    },
    at_once: async (_: Step, steps: Step[]): Promise<void> => {
      await Promise.all(steps.map((one) => this.step(one)));
    },
    start: async (step: Step, what: string | string[]): Promise<void> => {
      this.#handle = await this.sandbox.commands.run(what, { background: true, stdin: step["stdin"] === true });
    },
    processes: async (_: Step, wanted: unknown): Promise<void> => {
      assert.deepEqual((await this.sandbox.commands.list()).map(({ argv, running }) => ({ argv, running })), wanted);
    },
    send_stdin: async (step: Step, text: string): Promise<void> => {
      await this.sandbox.commands.sendStdin((step["pid"] as number | undefined) ?? this.#started, text);
    },
    close_stdin: async (): Promise<void> => {
      await this.#started.closeStdin();
    },
    connect: async (_: Step, pid: number): Promise<void> => {
      await this.sandbox.commands.connect(pid);
    },
    disconnect: async (): Promise<void> => {
      this.#started.disconnect();
    },
    reconnect: async (): Promise<void> => {
      this.#handle = await this.sandbox.commands.connect(this.#started.pid);
    },
    until_stdout: async (_: Step, text: string): Promise<void> => {
      await until(text, () => this.#started.stdout.includes(text));
    },
    signal: async (_: Step, signal: string | number): Promise<void> => {
      assert.equal(await this.sandbox.commands.sendSignal(this.#started, signal), true);
    },
    kill: async (_: Step, wanted: boolean): Promise<void> => {
      assert.equal(await this.#started.kill(), wanted);
    },
    wait: async (step: Step): Promise<void> => {
      checkResult(step, await this.#started.wait({ check: false }));
    },
    terminal: async (step: Step, command: string): Promise<void> => {
      let shown = "";
      const terminal = await this.sandbox.pty.create({ command, rows: (step["rows"] as number | undefined) ?? 24, cols: (step["cols"] as number | undefined) ?? 80, onData: (data) => void (shown += Buffer.from(data).toString()) });
      await until("the terminal is ready", () => shown.includes((step["ready"] as string | undefined) ?? ""), 60_000);
      if (typeof step["input"] === "string") {
        await terminal.sendInput(step["input"]);
      }
      assert.equal((await terminal.wait({ signal: AbortSignal.timeout(60_000) })).exitCode, step["exit_code"] ?? 0);
      assert.ok(shown.includes((step["shows"] as string | undefined) ?? ""), shown);
    },
    write: async (step: Step, path: string): Promise<void> => {
      const { mode, append, exclusive } = step as { mode?: string; append?: boolean; exclusive?: boolean };
      await this.sandbox.files.write(path, bytesOf(step), { ...(mode === undefined ? {} : { mode }), ...(append === undefined ? {} : { append }), ...(exclusive === undefined ? {} : { exclusive }) });
    },
    read: async (step: Step, path: string): Promise<void> => {
      const [start, end] = (step["range"] ?? [null, null]) as (number | null)[];
      const found = await this.sandbox.files.read(path, { format: "bytes", ...(start == null ? {} : { start }), ...(end == null ? {} : { end }) });
      assert.deepEqual(Buffer.from(found), Buffer.from(bytesOf(step)));
    },
    info: async (step: Step, path: string): Promise<void> => {
      const info = await this.sandbox.files.getInfo(path, { follow: step["follow"] !== false });
      const found = { kind: info.kind, mode: info.mode.toString(8).padStart(4, "0"), bytes: info.size };
      for (const name of ["kind", "mode", "bytes"] as const) {
        assert.equal(found[name], step[name] ?? found[name], `${name} of ${path}`);
      }
    },
    exists: async (step: Step, path: string): Promise<void> => {
      assert.equal(await this.sandbox.files.exists(path), step["there"]);
    },
    list: async (step: Step, path: string): Promise<void> => {
      const found = await this.sandbox.files.list(path, { depth: (step["depth"] as number | undefined) ?? 1 });
      assert.deepEqual(found.map((entry) => entry.path), step["paths"]);
    },
    make_dir: async (step: Step, path: string): Promise<void> => {
      assert.equal(await this.sandbox.files.makeDir(path), step["made"] ?? true);
    },
    remove: async (step: Step, path: string): Promise<void> => {
      await this.sandbox.files.remove(path, step["recursive"] === undefined ? {} : { recursive: step["recursive"] === true });
    },
    rename: async (step: Step, [from, to]: [string, string]): Promise<void> => {
      await this.sandbox.files.rename(from, to, { overwrite: step["overwrite"] === true });
    },
    chmod: async (_: Step, [path, mode]: [string, string]): Promise<void> => {
      await this.sandbox.files.chmod(path, mode);
    },
    search: async (step: Step, options: { path: string }): Promise<void> => {
      assert.deepEqual((await this.sandbox.files.search(options)).matches.map((match) => match.path).sort(), step["paths"]);
    },
    pause: async (_: Step, state: string): Promise<void> => {
      assert.equal(await this.sandbox.pause(), true);
      assert.equal(await this.sandbox.pause(), false);
      assert.equal((await this.sandbox.getInfo()).state, state);
    },
    resume: async (_: Step, state: string): Promise<void> => {
      assert.equal((await this.sandbox.resume()).state, state);
    },
    set_limits: async (step: Step, limits: { memory: string; pids: number }): Promise<void> => {
      const found = (await this.sandbox.update({ limits })).limits;
      assert.deepEqual([found.memoryBytes, found.pids], [step["memory_bytes"], step["pids"]]);
    },
    beside: async (_: Step, steps: Step[]): Promise<void> => {
      await using other = await Sandbox.create({ timeoutMs: 120_000, labels: LABELS });
      await new Run(other).all(steps);
    },
    fork: async (_: Step, steps: Step[]): Promise<void> => {
      for (const made of await this.sandbox.fork({ labels: LABELS })) {
        await using copy = made;
        await new Run(copy).all(steps);
      }
    },
    snapshot: async (_: Step, steps: Step[]): Promise<void> => {
      const template = await this.sandbox.createSnapshot();
      try {
        await using other = await Sandbox.create(template.snapshotId, { timeoutMs: 120_000, labels: LABELS });
        await new Run(other).all(steps);
      } finally {
        await new Belljar().templates.delete(template.templateId);
      }
    },
  };
}

/** Checks the result of a command against the step. By default it must have succeeded. */
function checkResult(step: Step, result: CommandResult): void {
  const wanted = { exit_code: 0, stdout: result.stdout, stderr: result.stderr, signal: result.signal, outcome: result.outcome.kind, stdout_bytes: result.stdoutBytes.length, ...step };
  const found = [result.exitCode, result.stdout, result.stderr, result.signal, result.outcome.kind, result.stdoutBytes.length];
  assert.deepEqual(found, [wanted.exit_code, wanted.stdout, wanted.stderr, wanted.signal, wanted.outcome, wanted.stdout_bytes], JSON.stringify(step));
  assert.ok((result.hint ?? "").includes((step["hint"] as string | undefined) ?? "") && !result.hint?.includes("--"), result.hint);
  for (const [name, bytes] of [["stdout_base64", result.stdoutBytes], ["stderr_base64", result.stderrBytes]] as const) {
    assert.equal(Buffer.from(bytes).toString("base64"), step[name] ?? Buffer.from(bytes).toString("base64"));
  }
}
