// Code in contexts: interpreters with persistent variables.

import { decodeData, fromBase64, text, toBase64 } from "./bytes.js";
import { type Chart, CHART, chartFromWire, type Table, TABLE, tableFromWire } from "./code-data.js";
import { ofRequest, REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { date, seconds } from "./convert.js";
import { ConflictError, ConnectionError, InvalidArgumentError, NotFoundError, ServerError } from "./errors.js";
import { checkMapping, checkText, checkTexts, known, names, wrongType } from "./options.js";
import { errorFromEvent, HeadAndTail, type OnText, parseEvent, readEvent, TextOutput } from "./output.js";
import type { ServerSentEvent } from "./sse.js";
import { type ApiRequest, isShort, newIdempotencyKey, route, type Transport } from "./transport.js";
import type { Size } from "./types.js";
import type { WireOutput } from "./wire.js";

/** An interpreter whose variables persist from one execution to the next. */
export interface CodeContext {
  /** Its id: the language's name for the default context, else `c1`, `c2`, … */
  id: string;
  /** Its language. */
  language: string;
  /** Its working directory. */
  cwd: string;
  /** `lost`: its interpreter has ended, and the next execution gets a fresh one. */
  state: "idle" | "busy" | "lost";
  /** The interpreter's process inside, if there is one. */
  pid: number | null;
  /** Number of executions since the interpreter started. */
  executions: number;
  /** Milliseconds since the last execution ended; 0 while one runs. */
  idleMs: number;
  /** Version of the language, as reported by the interpreter. */
  version: string;
  /** How the interpreter was started: as an ordinary process, or from a prepared one. */
  start: "plain" | "warm";
  /** Why it is not warm, if a warm one was requested. */
  startNote: string | null;
  /** Number of starts of the interpreter, 1 for the first. */
  generation: number;
}

/** A context, or its id. */
export type ContextRef = string | CodeContext;

/** Options of a new context. */
export interface CodeContextOptions extends RequestOptions {
  /** `python` (default), `javascript`, `typescript` or `bash`. */
  language?: string;
  /** Initial working directory: absolute, or relative to the home directory, which is the default. */
  cwd?: string;
  /** Environment variables of everything that runs in it, added to those of the sandbox. */
  envs?: Record<string, string>;
  /** Another name of `envs`. */
  env?: Record<string, string>;
}

/** A result of code, in one or several representations. */
export interface Result {
  /** As text. */
  text?: string;
  /** As HTML. */
  html?: string;
  /** As Markdown. */
  markdown?: string;
  /** As SVG. */
  svg?: string;
  /** As PNG: the bytes of the file. */
  png?: Uint8Array;
  /** As JPEG: the bytes of the file. */
  jpeg?: Uint8Array;
  /** As PDF: the bytes of the file. */
  pdf?: Uint8Array;
  /** As LaTeX. */
  latex?: string;
  /** As a JSON value. */
  json?: unknown;
  /** As JavaScript, for a page to run. */
  javascript?: string;
  /** A data frame as data. */
  data?: Table;
  /** The data of a chart: its type, title, axes and series. */
  chart?: Chart;
  /** Other representations, by MIME type: text, JSON values or bytes. */
  extra: Record<string, unknown>;
  /** Whether it is the value of the code's last expression; otherwise it was displayed explicitly. */
  isMainResult: boolean;
  /** Hints by MIME type, such as a picture's width. */
  metadata: Record<string, unknown>;
  /** A later result with `update` replaces an earlier one with the same id. */
  displayId?: string;
  /** Whether it replaces earlier ones. */
  update: boolean;
  /** Representations that were omitted or shortened because they were too large, one sentence each. */
  cut: string[];
  /** The names of the available representations, and the MIME types of `extra`. */
  formats(): string[];
  /** Everything as JSON values, with bytes in base64: for `JSON.stringify`. */
  toJSON(): Record<string, unknown>;
}

/** An error that code raised, or why it did not end well: `TimeoutError`, `KeyboardInterrupt`, or a {@link KernelDied}. */
export interface ExecutionError {
  /** Its name, such as `ValueError`. */
  name: string;
  /** Its message. */
  value: string;
  /** As the interpreter prints it. */
  traceback: string;
}

/** The interpreter ended before the code did, and the variables of the context are lost. The next execution gets a fresh one. */
export class KernelDied implements ExecutionError {
  readonly name = "KernelDied";
  readonly value: string;
  readonly traceback: string;
  /** What ended it: `timed_out`, `out_of_memory`, `pids` or `stopped`, if it was one of them. */
  readonly cause?: string;
  /** Its exit code, if it ended by itself. */
  readonly exitCode?: number;
  /** The name of the signal that ended it. */
  readonly signal?: string;

  /** @internal */
  constructor(value: string, details: { cause?: string; exitCode?: number; signal?: string }) {
    this.value = value;
    this.traceback = `${this.name}: ${value}`;
    Object.assign(this, details);
  }
}

/** Printed output of code. */
export interface Logs {
  /** The kept part of standard output: one piece, or none. */
  stdout: string[];
  /** The kept part of standard error: one piece, or none. */
  stderr: string[];
  /** Whether some of it was omitted because it exceeded the limit. Of a long stream its head and its tail are kept. */
  truncated: boolean;
}

/** The outcome of code. */
export interface Execution {
  /** The value of the last expression, as text. */
  text?: string;
  /** The displayed results, in order. */
  results: Result[];
  /** What it printed. */
  logs: Logs;
  /** The error that it raised, or why it did not end well; undefined if `status` is `ok`. */
  error?: ExecutionError;
  /** `died`: the interpreter ended before the code did. */
  status: "ok" | "error" | "interrupted" | "timed_out" | "died";
  /** State of the context's variables. */
  state: "preserved" | "lost" | "unknown";
  /** Why they are not preserved. */
  reason?: string;
  /** The id of the context that it ran in. */
  context: string;
  /** Its number in the sandbox, never reused. */
  execution: number;
  /** Its number in the interpreter: 1 for the first. */
  executionCount: number;
  /** Set if the interpreter is a fresh one because the previous one was lost: the reason for that. */
  rebuilt?: string;
  /** What ended the interpreter: `timed_out`, `out_of_memory`, `pids` or `stopped`. */
  cause?: string;
  /** The interpreter's exit code, if it ended by itself; of code in bash also if it failed. */
  exitCode?: number;
  /** The name of the signal that ended the interpreter. */
  signal?: string;
  /** What to do about it, such as which limit to raise. */
  hint?: string;
  /** Milliseconds from start to end. */
  wallMs: number;
  /** Milliseconds of processor time. */
  cpuMs: number;
  /** Everything as JSON values, with pictures in base64: for `JSON.stringify`. */
  toJSON(): Record<string, unknown>;
}

/** Options for running code. */
export interface RunCodeOptions extends RequestOptions {
  /**
   * `python` (default), `javascript`, `typescript` or `bash`: runs in the default context of the language. Any other language of
   * `belljar run`, such as `ruby` or `c`, is a separate program each time, without persistent variables.
   */
  language?: string;
  /** A context, or its id, instead of a language. */
  context?: ContextRef;
  /** Environment variables for this execution alone. */
  envs?: Record<string, string>;
  /** Another name of `envs`. */
  env?: Record<string, string>;
  /** Working directory, for this execution alone: absolute, or relative to the home directory. */
  cwd?: string;
  /**
   * Time limit in milliseconds; then the code is interrupted, and if that does not help its interpreter is killed. Default: the
   * sandbox's `limits.timeoutMs`; 0 for no limit.
   */
  timeoutMs?: number;
  /** Called with pieces of standard output. */
  onStdout?: OnText;
  /** Called with pieces of standard error. */
  onStderr?: OnText;
  /** Called with each result. */
  onResult?: (result: Result) => unknown;
  /** Called with the error, if there is one. */
  onError?: (error: ExecutionError) => unknown;
  /** Answers a question of the code (`input()`) with a line, or with null to refuse. Without it a question is an error. */
  onInput?: (prompt: string, password: boolean) => string | null | Promise<string | null>;
  /**
   * Stored tools that the code may call as `belljar.tools.NAME(…)`: `NAME` or `NAME@VERSION`. Each call is one of this client's key, and
   * may wait for approval.
   */
  tools?: string[];
  /** Functions of this program that the code may call in the same way, by name: the code gets the result, or a `ToolError`. */
  functions?: Record<string, ToolFunction>;
  /** How often the code may call them together: 100 if not given, at most 1,000. */
  maxToolCalls?: number;
  /** Behaviour if the connection breaks: the code continues (default), or is ended. */
  onDisconnect?: "continue" | "kill";
  /** Bytes of each output stream that the server keeps, such as `"4m"`. Listeners get everything. */
  output?: Size;
}

/** Options for running code in steps. */
export interface CodeStepOptions extends Omit<RunCodeOptions, "functions" | "onStdout" | "onStderr" | "onResult" | "onError" | "onInput"> {
  /** Names of the functions that the code may call as `belljar.tools.NAME(…)`. */
  functions: string[];
  /**
   * Milliseconds for which calls wait for their results: 10 minutes if not given, 1 second to 1 hour. Then the code gets an error for
   * each, and goes on or is ended as `onDisconnect` says.
   */
  callTimeoutMs?: number;
}

/** The results of all calls of a step, by the ids of the calls: values of JSON, or errors, which the code gets as a `ToolError`. */
export type CallResults = Record<string, unknown>;

/** A call of a function that waits for its result. */
export interface CodeCall {
  /** Its id. */
  id: string;
  /** The function. */
  name: string;
  /** Its arguments, by name. */
  arguments: Record<string, unknown>;
}

/** How a step of code has ended: with calls that wait for their results, or with the end of the code. */
export interface CodeStep {
  /** Calls that wait. The sandbox is frozen until all of them are answered, or their time is over. */
  toolCalls: CodeCall[];
  /** When their time is over. */
  expiresAt?: Date;
  /** The outcome of the code, once no call waits, with the output of all steps. */
  execution?: Execution;
}

/** A function that code may call: it gets the arguments by name, and its result is a value of JSON. */
export type ToolFunction = { call(args: Record<string, unknown>): unknown }["call"];

/** Maximum length of an error that code gets, in characters: 64 KiB at most. */
const MAX_ERROR = 16_000;

const CONTEXT_OPTIONS = names<Omit<CodeContextOptions, keyof RequestOptions>>({ language: true, cwd: true, envs: true, env: true });

const RUN_CODE_OPTIONS = names<Omit<RunCodeOptions, keyof RequestOptions>>({
  language: true,
  context: true,
  envs: true,
  env: true,
  cwd: true,
  timeoutMs: true,
  onStdout: true,
  onStderr: true,
  onResult: true,
  onError: true,
  onInput: true,
  tools: true,
  functions: true,
  maxToolCalls: true,
  onDisconnect: true,
  output: true,
});

const CODE_STEP_OPTIONS = names<Omit<CodeStepOptions, keyof RequestOptions>>({
  language: true,
  context: true,
  envs: true,
  env: true,
  cwd: true,
  timeoutMs: true,
  tools: true,
  functions: true,
  maxToolCalls: true,
  callTimeoutMs: true,
  onDisconnect: true,
  output: true,
});

interface WireContext {
  id: string;
  language: string;
  cwd: string;
  state: string;
  pid?: number | null;
  executions: number;
  idle_ms: number;
  version: string;
  start: string;
  start_note?: string | null;
  generation: number;
}

interface WireResult {
  main?: boolean;
  data: Record<string, unknown>;
  metadata?: Record<string, unknown>;
  display_id?: string;
  update?: boolean;
  cut?: string[];
}

interface WireHead {
  execution?: number;
  context?: string | WireContext;
  count?: number;
  rebuilt?: string;
}

interface WireEnd {
  status: string;
  state: string;
  reason?: string | null;
  cause?: string | null;
  exit_code?: number | null;
  signal?: string | null;
  hint?: string | null;
  wall_ms?: number;
  cpu_ms?: number;
}

/** Parses a complete execution. */
type WireExecution = WireHead & WireEnd & { results: WireResult[]; stdout: WireOutput; stderr: WireOutput; error?: ExecutionError | null };

type WireStep = WireExecution | { status: "tool_calls"; tool_calls: CodeCall[]; expires_at: string };

const TEXTS = { text: "text/plain", html: "text/html", markdown: "text/markdown", svg: "image/svg+xml", latex: "text/latex", javascript: "application/javascript" } as const;
const FILES = { png: "image/png", jpeg: "image/jpeg", pdf: "application/pdf" } as const;
const OTHERS = { json: "application/json", data: TABLE, chart: CHART } as const;
const NAMES: Record<string, string> = Object.fromEntries(Object.entries({ ...TEXTS, ...FILES, ...OTHERS }).map(([name, mime]) => [mime, name]));
/** Number of bytes of each streamed output that are kept. */
const MOST_KEPT_BYTES = 16 * 1024 * 1024;

/** @internal Parses a result. */
export function resultFromWire(wire: WireResult): Result {
  const extra: Record<string, unknown> = {};
  const forms: Record<string, unknown> = {};
  for (const [mime, value] of Object.entries(wire.data)) {
    const name = NAMES[mime];
    const read = form(mime, value);
    if (name === undefined) {
      extra[mime] = read;
    } else {
      forms[name] = read;
    }
  }
  const result: Result = {
    ...(forms as Pick<Result, keyof typeof TEXTS | keyof typeof FILES | keyof typeof OTHERS>),
    extra,
    isMainResult: wire.main === true,
    metadata: wire.metadata ?? {},
    ...(wire.display_id === undefined ? {} : { displayId: wire.display_id }),
    update: wire.update === true,
    cut: wire.cut ?? [],
    formats: () => [...Object.keys(forms), ...Object.keys(extra)],
    toJSON: () => plain({ ...result, extra: plain(extra) }),
  };
  return result;
}

/** Returns the values that JSON can express, and bytes in base64. */
function plain(values: object): Record<string, unknown> {
  const entries = Object.entries(values).filter(([, value]) => typeof value !== "function");
  return Object.fromEntries(entries.map(([name, value]) => [name, value instanceof Uint8Array ? toBase64(value) : value]));
}

function form(mime: string, value: unknown): unknown {
  if (mime === TABLE) {
    return tableFromWire(value);
  }
  if (mime === CHART) {
    return chartFromWire(value);
  }
  const asItIs = mime.startsWith("text/") || mime === "application/javascript" || mime === "application/json" || /\+(json|xml)$/.test(mime);
  if (asItIs || typeof value !== "string") {
    return value;
  }
  try {
    return fromBase64(value);
  } catch (cause) {
    throw new ServerError(`unexpected response from the server: ${mime} is not base64`, { cause });
  }
}

function contextFromWire(wire: WireContext): CodeContext {
  return {
    id: wire.id,
    language: wire.language,
    cwd: wire.cwd,
    state: wire.state as CodeContext["state"],
    pid: wire.pid ?? null,
    executions: wire.executions,
    idleMs: wire.idle_ms,
    version: wire.version,
    start: wire.start as CodeContext["start"],
    startNote: wire.start_note ?? null,
    generation: wire.generation,
  };
}

function executionFromWire(wire: WireExecution): Execution {
  const read = (output: WireOutput): string => text(decodeData(output.encoding, output.data));
  const logs = logsFrom(read(wire.stdout), read(wire.stderr), wire.stdout.truncated === true || wire.stderr.truncated === true);
  return executionFrom(wire, wire.results.map(resultFromWire), logs, wire.error ?? undefined, wire);
}

function logsFrom(stdout: string, stderr: string, truncated: boolean): Logs {
  return { stdout: stdout === "" ? [] : [stdout], stderr: stderr === "" ? [] : [stderr], truncated };
}

function stepFromWire(wire: WireStep): CodeStep {
  if ("tool_calls" in wire) {
    const toolCalls = wire.tool_calls.map(({ id, name, arguments: args }) => ({ id, name, arguments: args }));
    return { toolCalls, expiresAt: date(wire.expires_at) };
  }
  return { toolCalls: [], execution: executionFromWire(wire) };
}

function executionFrom(head: WireHead, results: Result[], logs: Logs, error: ExecutionError | undefined, end: WireEnd): Execution {
  const main = results.find((result) => result.isMainResult)?.text;
  const context = head.context ?? "";
  const execution: Execution = {
    ...given({ text: main, error: error ?? errorOfEnd(end), reason: end.reason, rebuilt: head.rebuilt || undefined, cause: end.cause, exitCode: end.exit_code, signal: end.signal, hint: end.hint }),
    results,
    logs,
    status: end.status as Execution["status"],
    state: end.state as Execution["state"],
    context: typeof context === "string" ? context : context.id,
    execution: head.execution ?? 0,
    executionCount: head.count ?? 0,
    wallMs: end.wall_ms ?? 0,
    cpuMs: end.cpu_ms ?? 0,
    toJSON: () => plain({ ...execution, results: results.map((result) => result.toJSON()) }),
  };
  return execution;
}

/** @internal The message of a `TimeoutError`. */
export const TIMED_OUT = "the code took longer than it may";

/** Returns the error for an end that the interpreter could not report itself. */
function errorOfEnd(end: WireEnd): ExecutionError | undefined {
  const made = (name: string, value: string): ExecutionError => ({ name, value: end.reason ?? value, traceback: `${name}: ${end.reason ?? value}` });
  switch (end.status) {
    case "died":
      return new KernelDied(end.reason ?? "the interpreter ended before the code did", given({ cause: end.cause, exitCode: end.exit_code, signal: end.signal }));
    case "timed_out":
      return made("TimeoutError", TIMED_OUT);
    case "interrupted":
      return made("KeyboardInterrupt", "the code was interrupted");
    default:
      return undefined;
  }
}

type Given<T> = { [K in keyof T]?: Exclude<T[K], null | undefined> };

function given<T extends Record<string, unknown>>(values: T): Given<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined && value !== null)) as Given<T>;
}

/** @internal Code in the contexts of one sandbox. */
export class Code {
  readonly #transport: Transport;
  readonly #sandboxId: string;
  readonly #defaultTimeoutMs: number | undefined;

  constructor(transport: Transport, sandboxId: string, defaultTimeoutMs: number | undefined) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
    this.#defaultTimeoutMs = defaultTimeoutMs;
  }

  async create(options: CodeContextOptions): Promise<CodeContext> {
    known("createCodeContext", options, CONTEXT_OPTIONS, REQUEST_OPTIONS);
    const json = { language: options.language, cwd: options.cwd, env: variables(options) };
    return contextFromWire(await this.#transport.json<WireContext>({ method: "POST", path: route`/v1/sandboxes/${this.#sandboxId}/contexts`, json, options: ofRequest(options) }));
  }

  async list(options?: RequestOptions): Promise<CodeContext[]> {
    const { contexts } = await this.#transport.json<{ contexts: WireContext[] }>({ method: "GET", path: route`/v1/sandboxes/${this.#sandboxId}/contexts`, options });
    return contexts.map(contextFromWire);
  }

  async restart(context: ContextRef, options?: RequestOptions): Promise<CodeContext> {
    const path = route`/v1/sandboxes/${this.#sandboxId}/contexts/${id(context)}/restart`;
    return contextFromWire(await this.#transport.json<WireContext>({ method: "POST", path, json: {}, options }));
  }

  async interrupt(context: ContextRef, options?: RequestOptions): Promise<boolean> {
    const path = route`/v1/sandboxes/${this.#sandboxId}/contexts/${id(context)}/interrupt`;
    return (await this.#transport.json<{ interrupted: boolean }>({ method: "POST", path, json: {}, options })).interrupted;
  }

  async remove(context: ContextRef, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/sandboxes/${this.#sandboxId}/contexts/${id(context)}`, undefined, options);
  }

  async run(code: string, options: RunCodeOptions): Promise<Execution> {
    known("runCode", options, RUN_CODE_OPTIONS, REQUEST_OPTIONS);
    const functions = functionNames(options.functions);
    const asked = { allow_input: options.onInput === undefined ? undefined : true, functions: functions.length === 0 ? undefined : functions };
    const request: ApiRequest = { ...this.#request(code, options, asked), idempotencyKey: newIdempotencyKey() };
    const timeoutMs = options.timeoutMs ?? this.#defaultTimeoutMs;
    const listened = [options.onStdout, options.onStderr, options.onResult, options.onError, options.onInput].some((one) => one !== undefined);
    if (!listened && functions.length === 0 && isShort(timeoutMs)) {
      return executionFromWire(await this.#transport.work<WireExecution>(request, timeoutMs));
    }
    const running = new Running(options, (context, answer) => this.#answer(context, answer));
    for await (const event of this.#transport.events(request)) {
      const done = await running.take(event);
      if (done) {
        return done;
      }
    }
    throw new ConnectionError("the stream ended before the code; the state of its context is unknown");
  }

  /** Runs code to its first calls, or answers those of a step. It is not sent again: a step is not to begin twice. */
  async step(code: string | CallResults, options: CodeStepOptions | RequestOptions): Promise<CodeStep> {
    if (typeof code !== "string") {
      known("runCodeStep", options, {}, REQUEST_OPTIONS);
      const json = { tool_results: Object.entries(checkMapping("code", code as object, "{ [call.id]: result }")).map(([call, result]) => callResult(call, result)) };
      return this.#step({ method: "POST", path: route`/v1/sandboxes/${this.#sandboxId}/code/continue`, json, options: ofRequest(options) }, undefined);
    }
    const begin = known("runCodeStep", options as CodeStepOptions, CODE_STEP_OPTIONS, REQUEST_OPTIONS);
    const functions = begin.functions as unknown;
    if (!Array.isArray(functions) || functions.length === 0) {
      throw wrongType("functions", functions, 'the names of those that the code may call, such as ["lookup"]');
    }
    const asked = { functions, call_timeout: seconds("callTimeoutMs", begin.callTimeoutMs) };
    return this.#step(this.#request(code, begin, asked), begin.timeoutMs ?? this.#defaultTimeoutMs);
  }

  async #step(request: ApiRequest, timeoutMs: number | undefined): Promise<CodeStep> {
    if (isShort(timeoutMs)) {
      return stepFromWire(await this.#transport.work<WireStep>(request, timeoutMs));
    }
    return stepFromWire(await this.#transport.longWork<WireStep>(request));
  }

  #request(code: string, options: Omit<CodeStepOptions, "functions" | "callTimeoutMs">, more: Record<string, unknown>): ApiRequest {
    checkText("code", code);
    if (options.context !== undefined && options.language !== undefined) {
      throw new InvalidArgumentError("give either a language or a context, which has its own language", { field: "language" });
    }
    return {
      method: "POST",
      path: route`/v1/sandboxes/${this.#sandboxId}/code`,
      json: {
        code,
        context: options.context === undefined ? undefined : id(options.context),
        language: options.language,
        env: variables(options),
        cwd: options.cwd,
        timeout: seconds("timeoutMs", options.timeoutMs),
        tools: options.tools,
        max_tool_calls: options.maxToolCalls,
        on_disconnect: options.onDisconnect,
        output: options.output,
        ...more,
      },
      options: ofRequest(options),
    };
  }

  async #answer(context: string, answer: Record<string, unknown>): Promise<void> {
    const path = route`/v1/sandboxes/${this.#sandboxId}/contexts/${context}/answer`;
    await this.#transport.done({ method: "POST", path, json: answer });
  }
}

/** Running code and its results. */
class Running {
  readonly #options: RunCodeOptions;
  readonly #send: (context: string, answer: Record<string, unknown>) => Promise<void>;
  readonly #output: TextOutput;
  readonly #results: Result[] = [];
  readonly #kept = { stdout: new HeadAndTail(MOST_KEPT_BYTES), stderr: new HeadAndTail(MOST_KEPT_BYTES) };
  #head: WireHead = {};
  #error: ExecutionError | undefined;

  constructor(options: RunCodeOptions, send: (context: string, answer: Record<string, unknown>) => Promise<void>) {
    this.#options = options;
    this.#send = send;
    this.#output = new TextOutput(options.onStdout, options.onStderr);
  }

  /** Handles an event, and returns the outcome of the code if it was the last one. */
  async take(event: ServerSentEvent): Promise<Execution | undefined> {
    switch (event.event) {
      case "started":
        this.#head = parseEvent<WireHead>(event);
        return undefined;
      case "result": {
        const result = resultFromWire(parseEvent<WireResult>(event));
        this.#results.push(result);
        await this.#options.onResult?.(result);
        return undefined;
      }
      case "error": {
        // A problem of the server has the same event name, and no traceback.
        const error = parseEvent<Partial<ExecutionError>>(event);
        if (error.traceback === undefined) {
          throw errorFromEvent(event);
        }
        this.#error = { name: error.name ?? "", value: error.value ?? "", traceback: error.traceback };
        await this.#options.onError?.(this.#error);
        return undefined;
      }
      case "input_requested":
        await this.#ask(parseEvent<{ prompt?: string; password?: boolean }>(event));
        return undefined;
      case "tool_called":
        await this.#call(parseEvent<{ call: number; name: string; arguments: Record<string, unknown> }>(event));
        return undefined;
      case "ended": {
        await this.#output.end();
        const { stdout, stderr } = this.#kept;
        const logs = logsFrom(stdout.text(), stderr.text(), stdout.isTruncated() || stderr.isTruncated());
        const execution = executionFrom(this.#head, this.#results, logs, this.#error, parseEvent<WireEnd>(event));
        if (this.#error === undefined && execution.error !== undefined) {
          await this.#options.onError?.(execution.error);
        }
        return execution;
      }
      default: {
        const read = readEvent(event);
        if (read?.kind === "output") {
          const { stream, offset, data } = read.chunk;
          if (stream !== "terminal") {
            this.#kept[stream].push(offset, data);
          }
          await this.#output.push(read.chunk);
        }
        return undefined;
      }
    }
  }

  async #ask(question: { prompt?: string; password?: boolean }): Promise<void> {
    const answer = (value: string | null) => this.#answer(value === null ? { end_of_file: true } : { value });
    let value: string | null;
    try {
      value = (await this.#options.onInput?.(question.prompt ?? "", question.password === true)) ?? null;
    } catch (error) {
      // Do not leave the code waiting. Whether that works or not, the caller gets this error.
      await answer(null).catch(() => undefined);
      throw error;
    }
    await answer(value);
  }

  async #answer(answer: Record<string, unknown>): Promise<void> {
    const context = this.#head.context;
    try {
      await this.#send(typeof context === "object" ? context.id : (context ?? ""), { execution: this.#head.execution ?? 0, ...answer });
    } catch (error) {
      // Otherwise nothing waits for it: the code has ended meanwhile, which the next event says. In a sandbox that is paused it goes on to wait.
      const hasEnded = error instanceof NotFoundError || (error instanceof ConflictError && error.code === "failed_precondition");
      if (!hasEnded) {
        throw error;
      }
    }
  }

  async #call(called: { call: number; name: string; arguments: Record<string, unknown> }): Promise<void> {
    const functions = this.#options.functions ?? {};
    // Others are stored tools, which the server calls.
    if (!Object.hasOwn(functions, called.name)) {
      return;
    }
    let answer: Record<string, unknown>;
    try {
      const result = (await functions[called.name]?.(called.arguments)) ?? null;
      if (JSON.stringify(result) === undefined) {
        throw new TypeError(`${called.name}() returned what is no JSON`);
      }
      answer = { result };
    } catch (error) {
      answer = failure(error);
    }
    try {
      await this.#answer({ call: called.call, ...answer });
    } catch (error) {
      // Such as a result that is too long: the code must not wait for another. If only the response was lost, the call has its result,
      // and this one is not waited for.
      await this.#answer({ call: called.call, ...failure(error) });
    }
  }
}

/** Returns the names of functions that the code may call. */
function functionNames(functions: unknown): string[] {
  if (functions === undefined) {
    return [];
  }
  if (typeof functions !== "object" || functions === null || Array.isArray(functions)) {
    throw wrongType("functions", functions, "an object of functions, such as { lookup }");
  }
  const wrong = Object.entries(functions).find(([, one]) => typeof one !== "function");
  if (wrong !== undefined) {
    throw wrongType(`functions.${wrong[0]}`, wrong[1], "a function");
  }
  return Object.keys(functions);
}

/** Returns the answer to a call of a step. */
function callResult(call: string, result: unknown): Record<string, unknown> {
  if (result instanceof Error) {
    return { call_id: call, ...failure(result) };
  }
  const value = result ?? null;
  try {
    if (JSON.stringify(value) === undefined) {
      throw new TypeError("it has no form in JSON");
    }
  } catch (cause) {
    throw new InvalidArgumentError(`the result for ${call} is no JSON: ${String(cause)}`, { field: "code", cause });
  }
  return { call_id: call, result: value };
}

function failure(error: unknown): { error: string } {
  let text = "";
  try {
    text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  } catch {
    // An error need not have a text.
  }
  // What is no Unicode cannot be sent.
  return { error: new TextDecoder().decode(new TextEncoder().encode(text || "the function has failed")).slice(0, MAX_ERROR) };
}

function id(context: ContextRef): string {
  return typeof context === "string" ? context : context.id;
}

function variables(options: { envs?: Record<string, string>; env?: Record<string, string> }): Record<string, string> | undefined {
  if (options.env !== undefined && options.envs !== undefined) {
    throw new InvalidArgumentError("env is another name of envs; pass only one", { field: "env" });
  }
  return checkTexts("envs", options.envs ?? options.env);
}
