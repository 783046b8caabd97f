// Executors of models' tool calls: a call as its vendor's interface has it, to its result in the same form.

import { wholeText } from "./bytes.js";
import { type Execution, TIMED_OUT } from "./code.js";
import { FileNotFoundError, InvalidArgumentError, RateLimitError, SandboxError, ServerError, TimeoutError } from "./errors.js";
import { wrongType } from "./options.js";
import type { CommandResult } from "./result.js";
import type { Sandbox } from "./sandbox.js";
import type { Transport } from "./transport.js";
import type { FileInfo } from "./types.js";

/** Revision of the Model Context Protocol that calls use. */
const REVISION = "2026-07-28";

/** The server's own tools that work in one sandbox. They are the ones that `definitions` has. */
const OFFERED: readonly string[] = ["run_code", "run_command", "read_file", "write_file", "list_directory", "publish_port"];

/** The server's own tools. All others are stored. */
const OWN: readonly string[] = [...OFFERED, "create_sandbox", "list_sandboxes", "kill_sandbox"];

/** Maximum length of a file that the text editor shows or changes, in bytes, as with `read_file`; of a text in a result, in UTF-16 code units. */
const MAX_LENGTH = 2 ** 20;

/** Maximum number of entries of a directory that the text editor shows, as with `list_directory`. */
const MAX_ENTRIES = 1000;

/** Maximum number of entries of a directory that are fetched, which is a page. Some may be hidden. */
const MAX_FETCHED_ENTRIES = 10_000;

/** Maximum depth of the arguments of a tool. The server reads messages of JSON to a depth of 127, its own part included. */
const MAX_DEPTH = 100;

/** Names of Anthropic's text editor. */
const TEXT_EDITORS: readonly string[] = ["str_replace_based_edit_tool", "str_replace_editor"];

/** Names of the tools of Anthropic's code execution. */
const CODE_EXECUTION: readonly string[] = ["code_execution", "bash_code_execution", "text_editor_code_execution"];

/** Time that a call over MCP may take, as it may wait for the approval of a person: a day, in milliseconds. */
const LONGEST_CALL_MS = 24 * 3_600_000;

/** An object of JSON whose form is checked where it is used. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
type Json = Record<string, any>;

/** A block of Anthropic's that answers a `tool_use`. */
export interface ToolResultBlock {
  type: "tool_result";
  tool_use_id: string;
  content: ({ type: "text"; text: string } | { type: "image"; source: { type: "base64"; media_type: string; data: string } })[];
  is_error: boolean;
}

/** A block as Anthropic's own code execution answers with. */
export interface CodeExecutionBlock {
  type: string;
  tool_use_id: string;
  content: { type: string; [name: string]: unknown };
}

/** An item of OpenAI's Responses that answers a `function_call`. */
export interface FunctionCallOutput {
  type: "function_call_output";
  call_id: string;
  output: string | ({ type: "input_text"; text: string } | { type: "input_image"; image_url: string; detail: "auto" })[];
}

/** An item of OpenAI's Responses that answers a `shell_call`, with an output for each command. */
export interface ShellCallOutput {
  type: "shell_call_output";
  call_id: string;
  output: { stdout: string; stderr: string; outcome: { type: "timeout" } | { type: "exit"; exit_code: number } }[];
  max_output_length?: number;
}

/** An item of OpenAI's Responses that answers an `apply_patch_call`. */
export interface ApplyPatchCallOutput {
  type: "apply_patch_call_output";
  call_id: string;
  status: "completed" | "failed";
  output: string;
}

/** A message of OpenAI's Chat Completions that answers a tool call. */
export interface ToolMessage {
  role: "tool";
  tool_call_id: string;
  content: string;
}

/** What answers a call of OpenAI's. */
export type OpenAIToolOutput = FunctionCallOutput | ShellCallOutput | ApplyPatchCallOutput | ToolMessage;

/** The description of a tool, in the form of an interface. */
export interface ToolDefinition {
  name: string;
  description: string;
  [key: string]: unknown;
}

/** Interfaces in whose form tools are described. */
export type Vendor = "anthropic" | "openai" | "mcp";

/** A part of a result in the form of MCP. */
interface Part {
  type: string;
  text?: string;
  data?: string;
  mimeType?: string;
}

/** A result in the form of MCP. */
export interface ToolCallResult {
  /** Texts and pictures. */
  content: Part[];
  /** Whether the call has failed. */
  isError?: boolean;
  /** The result as data. */
  structuredContent?: unknown;
}

/** What an edit tells the model, and what code execution tells of it. */
type Edited = [text: string, told: Json];

/** Runs tool calls of models in a sandbox. A call that fails has a result that says so, for the model. */
export class Tools {
  readonly #transport: Transport;
  readonly #sandbox: Sandbox;

  /** @internal */
  constructor(transport: Transport, sandbox: Sandbox) {
    this.#transport = transport;
    this.#sandbox = sandbox;
  }

  /** Returns the server's tools, also the stored ones, as functions in the form of an interface. */
  async definitions(vendor: Vendor): Promise<ToolDefinition[]> {
    const { tools } = await this.#message<{ tools: Json[] }>("default", "tools/list", {});
    return tools.filter((tool) => OFFERED.includes(tool["name"]) || !OWN.includes(tool["name"])).map((tool) => definition(tool, vendor));
  }

  /** Calls a tool of `definitions` in this sandbox, and returns its result in the form of MCP. */
  async call(name: string, args: object): Promise<ToolCallResult> {
    if (!OFFERED.includes(name) && OWN.includes(name)) {
      throw new InvalidArgumentError(`${name} is no tool of a sandbox; use one of ${OFFERED.join(", ")}`, { field: "name" });
    }
    return this.#mcp("default", name, args);
  }

  /**
   * Runs a `tool_use` block, and returns a `tool_result` block.
   *
   * `bash_20250124` runs in one shell, which keeps its directory and variables; `text_editor_20250728` changes files; any other name is
   * one of `definitions`. `maxCharacters`: that of the text editor's definition; 1 MiB if not given.
   */
  async anthropic(block: object, options: { maxCharacters?: number } = {}): Promise<ToolResultBlock> {
    const { id, name, input } = anthropicCall(block);
    if (options.maxCharacters !== undefined && !isInteger(options.maxCharacters, 0)) {
      throw new InvalidArgumentError("maxCharacters: give an integer from 0", { field: "maxCharacters" });
    }
    const result = await answered(async () => {
      if (name === "bash") {
        return this.#mcp("claude", "bash", input);
      }
      if (CODE_EXECUTION.includes(name)) {
        throw new InvalidArgumentError(`${name} is run by anthropicCodeExecution`, { field: "name" });
      }
      return TEXT_EDITORS.includes(name) ? textResult((await this.#edit(input))[0], options.maxCharacters) : this.call(name, input);
    });
    const content = result.content.flatMap((part): ToolResultBlock["content"] => {
      if (part.type === "image") {
        return [{ type: "image", source: { type: "base64", media_type: part.mimeType ?? "", data: part.data ?? "" } }];
      }
      // Empty texts are refused.
      return part.text ? [{ type: "text", text: part.text }] : [];
    });
    return { type: "tool_result", tool_use_id: id, content, is_error: result.isError === true };
  }

  /**
   * Runs a call of `code_execution`, `bash_code_execution` or `text_editor_code_execution`, and returns the block that Anthropic's own
   * code execution would answer with. Files that code has made are not in it, as they have no ids there: they are in the sandbox.
   */
  async anthropicCodeExecution(block: object): Promise<CodeExecutionBlock> {
    const { id, name, input } = anthropicCall(block);
    const known = CODE_EXECUTION.includes(name);
    const kind = known ? name : "code_execution";
    let content: CodeExecutionBlock["content"];
    try {
      if (!known) {
        throw new InvalidArgumentError(`${JSON.stringify(name)} is no tool of code execution`, { field: "name" });
      }
      content = name === "text_editor_code_execution" ? editExecution(input, await this.#edit(input)) : codeExecution(kind, await this.#execute(name, input));
    } catch (error) {
      content = executionError(kind, checked(error));
    }
    return { type: `${kind}_tool_result`, tool_use_id: id, content };
  }

  /**
   * Runs a `function_call`, a `shell_call` or an `apply_patch_call` of Responses, or a tool call of Chat Completions, and returns the
   * item or the message that answers it. Functions are those of `definitions`.
   */
  async openai(call: object): Promise<OpenAIToolOutput> {
    if (typeof call !== "object" || call === null) {
      throw wrongType("call", call, "a tool call");
    }
    const item = call as Json;
    if (item["type"] === "shell_call") {
      return this.#shell(item);
    }
    if (item["type"] === "apply_patch_call") {
      const result = await answered(async () => this.#mcp("codex", "apply_patch", { input: patch(item) }));
      return { type: "apply_patch_call_output", call_id: item["call_id"], status: result.isError ? "failed" : "completed", output: texts(result) };
    }
    const isChat = item["type"] === "function";
    const called = isChat ? item["function"] : item;
    const id = isChat ? item["id"] : item["call_id"];
    if (!(isChat || item["type"] === "function_call") || typeof called?.["name"] !== "string" || typeof id !== "string") {
      throw new InvalidArgumentError("no tool call: give one function_call, shell_call, apply_patch_call or tool call of Chat Completions at a time", { field: "item" });
    }
    const result = await answered(async () => this.call(called["name"], parsedArguments(called["arguments"])));
    const text = texts(result);
    if (isChat) {
      const left = leftOut(result.content.filter((part) => part.type === "image").length);
      return { role: "tool", tool_call_id: id, content: [text, left].filter((part) => part !== "").join("\n") };
    }
    const pictures = result.content.filter((part) => part.type === "image").map((part) => ({ type: "input_image" as const, image_url: `data:${part.mimeType};base64,${part.data}`, detail: "auto" as const }));
    const output = pictures.length === 0 ? text : [...(text ? [{ type: "input_text" as const, text }] : []), ...pictures];
    return { type: "function_call_output", call_id: id, output };
  }

  #execute(name: string, input: Json): Promise<Execution> {
    const isPython = name === "code_execution";
    return this.#sandbox.runCode(required(input, isPython ? "code" : "command"), { language: isPython ? "python" : "bash" });
  }

  async #shell(item: Json): Promise<ShellCallOutput> {
    const action = record(item["action"]);
    const commands: unknown = action["commands"];
    if (!Array.isArray(commands)) {
      throw new InvalidArgumentError("no shell_call: action.commands is missing", { field: "action" });
    }
    const output: ShellCallOutput["output"] = [];
    let most: number | undefined;
    for (const command of commands) {
      try {
        const timeoutMs = optionalInteger(action, "timeout_ms", 1);
        most = optionalInteger(action, "max_output_length", 0);
        output.push(shellOutput(await this.#sandbox.commands.run(required({ command }, "command"), { check: false, ...(timeoutMs === undefined ? {} : { timeoutMs }) }), most));
      } catch (error) {
        output.push({ stdout: "", stderr: bounded(`Error: ${checked(error).message}`), outcome: { type: "exit", exit_code: 1 } });
      }
    }
    return { type: "shell_call_output", call_id: item["call_id"], output, ...(most === undefined ? {} : { max_output_length: most }) };
  }

  /** Calls a tool of a profile of the server. Which sandbox is never for the model to say. */
  async #mcp(profile: string, name: string, args: object): Promise<ToolCallResult> {
    checkArguments(args);
    const given = profile !== "default" || OFFERED.includes(name) ? { ...args, sandbox: this.#sandbox.sandboxId } : args;
    return this.#message(profile, "tools/call", { name, arguments: given });
  }

  async #message<Result>(profile: string, method: string, params: Json): Promise<Result> {
    const meta = { "io.modelcontextprotocol/protocolVersion": REVISION, "io.modelcontextprotocol/clientCapabilities": {} };
    const headers: Record<string, string> = { Accept: "application/json, text/event-stream", "MCP-Protocol-Version": REVISION, "Mcp-Method": method };
    const name: unknown = params["name"];
    if (name !== undefined) {
      if (typeof name !== "string" || !/^[!-~]{1,128}$/.test(name)) {
        throw new InvalidArgumentError(`${JSON.stringify(name)} is no name of a tool`, { field: "name" });
      }
      headers["Mcp-Name"] = name;
    }
    const query = profile === "default" ? undefined : { tools: profile };
    const json = { jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: meta } };
    const answer = await this.#transport.work<{ result?: Result; error?: { message?: string; data?: { tool?: string } | null } }>({ method: "POST", path: "/mcp", query, json, headers }, name === undefined ? 0 : LONGEST_CALL_MS);
    if (answer.error?.data?.tool !== undefined) {
      // Of the server's own, only some are tools of a sandbox.
      throw new InvalidArgumentError(`unknown tool ${JSON.stringify(name)}; use one of ${OFFERED.join(", ")}, or a stored tool`, { field: "name" });
    }
    if (answer.error) {
      throw new InvalidArgumentError(answer.error.message ?? "the call was refused", { field: "name" });
    }
    if (answer.result === undefined) {
      throw new ServerError("unexpected response from the server: a message without `result`");
    }
    return answer.result;
  }

  /** Runs a command of the text editor. */
  async #edit(args: Json): Promise<Edited> {
    const [command, path] = [required(args, "command"), required(args, "path")];
    const files = this.#sandbox.files;
    if (command === "view") {
      return (await files.getInfo(path)).kind === "directory" ? this.#list(path) : viewed(await this.#read(path), args["view_range"]);
    }
    if (command === "create") {
      const content = required(args, "file_text");
      const isUpdate = await files.exists(path);
      await files.write(path, content);
      return [`File created successfully at: ${path}`, { is_file_update: isUpdate }];
    }
    let edited: Edited;
    if (command === "str_replace") {
      const [old, replacement] = [required(args, "old_str"), required(args, "new_str", "")];
      edited = replaced(path, await this.#read(path), old, replacement);
    } else if (command === "insert") {
      const insertion = required(args, "insert_text");
      edited = inserted(await this.#read(path), args["insert_line"], insertion);
    } else {
      throw new InvalidArgumentError(`${JSON.stringify(command)} is no command of the text editor`, { field: "command" });
    }
    await files.write(path, edited[0]);
    return [`The file ${path} has been edited successfully.`, edited[1]];
  }

  async #list(path: string): Promise<Edited> {
    const entries: FileInfo[] = [];
    for await (const entry of this.#sandbox.files.iterate(path, { depth: 2, pageSize: MAX_FETCHED_ENTRIES })) {
      entries.push(entry);
      if (entries.length > MAX_FETCHED_ENTRIES) {
        break;
      }
    }
    return listed(path, entries.slice(0, MAX_FETCHED_ENTRIES), entries.length <= MAX_FETCHED_ENTRIES);
  }

  /** Reads a file of text. Its length is bounded while it is read, as code may change it. */
  async #read(path: string): Promise<string> {
    const bytes = await this.#sandbox.files.read(path, { format: "bytes", end: MAX_LENGTH + 1 });
    if (bytes.length > MAX_LENGTH) {
      throw new InvalidArgumentError(`path: ${path} has more than ${MAX_LENGTH} bytes; use a command for it`, { field: "path" });
    }
    const content = wholeText(bytes);
    if (content === undefined) {
      throw new InvalidArgumentError(`path: ${path} is no text in UTF-8; use a command for it`, { field: "path" });
    }
    return content;
  }
}

/** The outcome of code, as programs have it. */
export interface ExecutionResult {
  /** Whether it ended without an error, or by an exit with 0. */
  success: boolean;
  /** Standard output. */
  stdout: string;
  /** Standard error, with the traceback of an error. */
  stderr: string;
  /** 0, or 1 after an error; code in bash, and an interpreter that exits, have their own; 124 timed out, 130 interrupted, 137 the interpreter was killed. */
  exitCode: number;
  /** The value of the last expression, as text. */
  value?: string;
}

/** Returns the outcome of code, as programs have it. */
export function toResult(done: Execution): ExecutionResult {
  const exitCode = { ok: 0, error: done.exitCode ?? 1, died: done.exitCode ?? 137, timed_out: 124, interrupted: 130 }[done.status];
  const error = done.error ? `${done.error.traceback || `${done.error.name}: ${done.error.value}`}\n` : "";
  // What the interpreter itself reports of a time limit is the interrupt.
  const late = done.status === "timed_out" && done.error?.name !== "TimeoutError" ? `TimeoutError: ${TIMED_OUT}\n` : "";
  const result: ExecutionResult = { success: exitCode === 0, stdout: done.logs.stdout.join(""), stderr: done.logs.stderr.join("") + error + late, exitCode };
  return done.text === undefined ? result : { ...result, value: done.text };
}

/** Returns an error of the SDK; throws any other. */
function checked(error: unknown): SandboxError {
  if (error instanceof SandboxError) {
    return error;
  }
  throw error;
}

/** Runs a call; if it fails, the result says so. */
async function answered(run: () => Promise<ToolCallResult>): Promise<ToolCallResult> {
  try {
    return await run();
  } catch (error) {
    return { ...textResult(`Error: ${checked(error).message}`), isError: true };
  }
}

function definition(tool: Json, vendor: Vendor): ToolDefinition {
  const schema = structuredClone(tool["inputSchema"]);
  // Which sandbox is not for the model to say.
  delete schema.properties?.sandbox;
  const named = { name: tool["name"], description: tool["description"] ?? "" };
  const forms: Record<Vendor, ToolDefinition> = {
    anthropic: { ...named, input_schema: schema },
    openai: { type: "function", ...named, parameters: schema, strict: false },
    mcp: { ...named, inputSchema: schema },
  };
  if (!Object.hasOwn(forms, vendor)) {
    throw new InvalidArgumentError(`${JSON.stringify(vendor)} is not known; give anthropic, openai or mcp`, { field: "vendor" });
  }
  return forms[vendor];
}

function anthropicCall(block: object): { id: string; name: string; input: Json } {
  const { id, name, input } = (block ?? {}) as Json;
  if (typeof id !== "string" || typeof name !== "string" || typeof input !== "object" || input === null || Array.isArray(input)) {
    throw new InvalidArgumentError("no tool_use block: id, name or input is missing; give one block of a message's content at a time", { field: "block" });
  }
  return { id, name, input };
}

function parsedArguments(text: unknown): Json {
  const source = required({ arguments: text }, "arguments", "");
  let args: unknown;
  try {
    args = JSON.parse(source || "{}");
  } catch (error) {
    // What it quotes may end within a character.
    const reason = String(error instanceof Error ? error.message : error).replace(/\p{Surrogate}/gu, "\ufffd");
    throw new InvalidArgumentError(`arguments: ${reason}`, { field: "arguments" });
  }
  if (typeof args !== "object" || args === null || Array.isArray(args)) {
    throw new InvalidArgumentError("arguments: give an object", { field: "arguments" });
  }
  return args as Json;
}

/** Refuses arguments that a message to the server cannot have. */
function checkArguments(args: object): void {
  const refused = (reason: string): InvalidArgumentError => new InvalidArgumentError(`arguments: ${reason}`, { field: "arguments" });
  const waiting: [unknown, number][] = [[args, 1]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [value, depth] = next;
    if (typeof value === "string") {
      checkText("arguments", value);
    } else if (typeof value === "object" && value !== null) {
      if (depth > MAX_DEPTH) {
        throw refused(`they are more than ${MAX_DEPTH} levels deep`);
      }
      for (const [key, one] of Object.entries(value)) {
        waiting.push([key, depth], [one, depth + 1]);
      }
    } else if (typeof value === "number" && !Number.isFinite(value)) {
      throw refused("a number is too large");
    } else if (typeof value === "bigint" || typeof value === "function" || typeof value === "symbol") {
      throw refused(`${typeof value} has no form in JSON`);
    }
  }
}

/** Refuses a string that UTF-8 cannot encode. Models can write one in JSON, as an escape. */
function checkText(name: string, text: string): void {
  if (/\p{Surrogate}/u.test(text)) {
    throw new InvalidArgumentError(`${name}: half of a surrogate pair is no text in UTF-8`, { field: name });
  }
}

/** Returns an argument that must be a string; if it is missing, `missing`. */
function required(args: Json, name: string, missing?: string): string {
  const value: unknown = args[name] ?? missing;
  if (typeof value !== "string") {
    throw new InvalidArgumentError(`${name}: give a string`, { field: name });
  }
  checkText(name, value);
  return value;
}

function isInteger(value: unknown, least: number): value is number {
  return Number.isSafeInteger(value) && (value as number) >= least;
}

/** Returns an argument that must be an integer, or undefined if it is missing. */
function optionalInteger(args: Json, name: string, least: number): number | undefined {
  const value: unknown = args[name] ?? undefined;
  if (value !== undefined && !isInteger(value, least)) {
    throw new InvalidArgumentError(`${name}: give an integer from ${least} to ${Number.MAX_SAFE_INTEGER}`, { field: name });
  }
  return value;
}

/** Returns a part of an item, empty if there is none. */
function record(value: unknown): Json {
  return typeof value === "object" && value !== null ? value : {};
}

function texts(result: ToolCallResult): string {
  return result.content.flatMap((part) => (part.text ? [part.text] : [])).join("\n");
}

/** Returns the first code units of a text, without the half of a pair that the end has split. */
function start(text: string, most: number): string {
  const isSplit = most > 0 && most < text.length && /^[\ud800-\udbff][\udc00-\udfff]$/.test(text.slice(most - 1, most + 1));
  return text.slice(0, isSplit ? most - 1 : most);
}

/** Returns at most `most` code units of a text, and how many are left out. */
function bounded(text: string, most = MAX_LENGTH): string {
  const shown = start(text, most);
  return shown.length === text.length ? text : `${shown}\n[${text.length - shown.length} characters left out]`;
}

function textResult(text: string, most?: number): ToolCallResult {
  return { content: [{ type: "text", text: bounded(text, most) }] };
}

function shellOutput(done: CommandResult, most: number | undefined): ShellCallOutput["output"][number] {
  const stdout = most === undefined ? bounded(done.stdout) : start(done.stdout, Math.min(most, MAX_LENGTH));
  const stderr = most === undefined ? bounded(done.stderr) : start(done.stderr, Math.min(most - stdout.length, MAX_LENGTH));
  // A shell's own number for what did not end by itself.
  return { stdout, stderr, outcome: done.outcome.kind === "timed_out" ? { type: "timeout" } : { type: "exit", exit_code: done.exitCode ?? 137 } };
}

/** Returns the operation of an `apply_patch_call` as a patch. */
function patch(item: Json): string {
  const operation = record(item["operation"]);
  const [kind, path, diff] = [required(operation, "type"), required(operation, "path"), required(operation, "diff", "")];
  const heads: Record<string, string> = { create_file: "Add", update_file: "Update", delete_file: "Delete" };
  const head = Object.hasOwn(heads, kind) ? heads[kind] : undefined;
  if (head === undefined) {
    throw new InvalidArgumentError(`type: ${JSON.stringify(kind)} is no operation`, { field: "type" });
  }
  // Else the rest of a path, or a line of a diff, could be another operation.
  if (/[\r\n]/.test(path)) {
    throw new InvalidArgumentError("path: it has more than one line", { field: "path" });
  }
  const lines = head === "Delete" ? [] : linesOf(diff);
  if (lines.some((line) => line.startsWith("*** ") && !["*** End of File", "*** End of File\r"].includes(line))) {
    throw new InvalidArgumentError("diff: it is of one file, without lines that begin with ***", { field: "diff" });
  }
  return ["*** Begin Patch", `*** ${head} File: ${path}`, ...lines, "*** End Patch"].join("\n");
}

/** Returns the lines of a text without the newlines that end them. Nothing else ends a line. */
function linesOf(text: string): string[] {
  const lines = text.split("\n");
  return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
}

/** Returns a directory as the text editor shows it. Hidden entries, and those below them, are left out. */
function listed(path: string, entries: readonly FileInfo[], isWhole: boolean): Edited {
  const prefix = path === "" || path === "." ? 0 : path.length;
  const shown = entries.filter((entry) => !`/${entry.path.slice(prefix)}`.includes("/."));
  const names = shown.slice(0, MAX_ENTRIES).map((entry) => (entry.kind === "directory" ? `${entry.path}/` : entry.path));
  const lines = [`Files and directories in ${path}, down to two levels:`, ...names.sort()];
  if (!isWhole || shown.length > MAX_ENTRIES) {
    lines.push("[more entries; list a directory below]");
  }
  const text = lines.join("\n");
  return [text, { content: text, num_lines: lines.length, start_line: 1, total_lines: lines.length }];
}

/** Returns lines of a file with their numbers; a last line of -1 is the end. */
function viewed(text: string, given: unknown): Edited {
  const lines = linesOf(text);
  let [first, last] = [1, lines.length];
  if (given !== undefined && given !== null) {
    const whole = Array.isArray(given) && given.length === 2 && given.every(Number.isInteger);
    [first, last] = whole ? [given[0], given[1] === -1 ? lines.length : given[1]] : [0, 0];
    if (!(first >= 1 && first <= last && last <= Math.max(lines.length, 1))) {
      throw new InvalidArgumentError(`view_range: give two lines from 1 to ${lines.length}`, { field: "view_range" });
    }
  }
  const shown = lines.slice(first - 1, last);
  const numbered = shown.map((line, index) => `${String(first + index).padStart(6)}\t${line}`).join("\n");
  return [numbered, { content: shown.join("\n"), num_lines: shown.length, start_line: first, total_lines: lines.length }];
}

/** Replaces a text that occurs once. */
function replaced(path: string, text: string, old: string, replacement: string): Edited {
  const count = old === "" ? 0 : text.split(old).length - 1;
  if (count !== 1) {
    const reason = count === 0 ? "did not appear verbatim" : `appears ${count} times; it must be unique`;
    throw new InvalidArgumentError(`no replacement was performed: old_str ${reason} in ${path}`, { field: "old_str" });
  }
  const first = text.slice(0, text.indexOf(old)).split("\n").length;
  const [removed, added] = [linesOf(old), linesOf(replacement)];
  const lines = [...removed.map((line) => `-${line}`), ...added.map((line) => `+${line}`)];
  return [text.split(old).join(replacement), { lines, old_start: first, old_lines: removed.length, new_start: first, new_lines: added.length }];
}

/** Inserts lines after a line, or at the beginning after line 0. A newline is added only where a line has none. */
function inserted(text: string, line: unknown, insertion: string): Edited {
  const lines = linesOf(text);
  if (!isInteger(line, 0) || line > lines.length) {
    throw new InvalidArgumentError(`insert_line: give a line from 0 to ${lines.length}`, { field: "insert_line" });
  }
  const place = lines.slice(0, line).reduce((sum, one) => sum + one.length + 1, 0);
  const added = linesOf(insertion);
  const told = { lines: added.map((one) => `+${one}`), old_start: line, old_lines: 0, new_start: line + 1, new_lines: added.length };
  const parts = [text.slice(0, place), insertion].map((part) => (part === "" || part.endsWith("\n") ? part : `${part}\n`));
  return [insertion === "" ? text : parts.join("") + text.slice(place), told];
}

function codeExecution(kind: string, done: Execution): CodeExecutionBlock["content"] {
  if (done.status === "timed_out") {
    return { type: `${kind}_tool_result_error`, error_code: "execution_time_exceeded" };
  }
  const { stdout, stderr, exitCode, value } = toResult(done);
  const pictures = done.results.filter(({ png, jpeg, svg, extra }) => (png ?? jpeg ?? svg) !== undefined || Object.keys(extra).some((mime) => mime.startsWith("image/"))).length;
  const shown = [value, leftOut(pictures)].map((part) => (part ? `${part}\n` : ""));
  return { type: `${kind}_result`, stdout: bounded(stdout + shown.join("")), stderr: bounded(stderr), return_code: exitCode, content: [] };
}

/** Returns how many pictures a result has no place for, empty if there are none. */
function leftOut(pictures: number): string {
  return pictures === 0 ? "" : `[pictures left out: ${pictures}; code can save them to files]`;
}

function editExecution(args: Json, [, told]: Edited): CodeExecutionBlock["content"] {
  const command = args["command"] === "insert" ? "str_replace" : args["command"];
  return { type: `text_editor_code_execution_${command}_result`, ...told, ...(command === "view" ? { file_type: "text" } : {}) };
}

function executionError(kind: string, error: SandboxError): CodeExecutionBlock["content"] {
  const isEditor = kind.startsWith("text_editor");
  const codes: [new (...args: never[]) => SandboxError, string][] = [
    [FileNotFoundError, isEditor ? "file_not_found" : "invalid_tool_input"],
    [InvalidArgumentError, "invalid_tool_input"],
    [RateLimitError, "too_many_requests"],
    [TimeoutError, "execution_time_exceeded"],
  ];
  const code = codes.find(([of]) => error instanceof of)?.[1] ?? "unavailable";
  return { type: `${kind}_tool_result_error`, error_code: code, ...(isEditor ? { error_message: bounded(error.message) } : {}) };
}
