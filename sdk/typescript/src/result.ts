// What comes of a command.

import { decodeData, text } from "./bytes.js";
import { outcome as outcomeFromWire } from "./convert.js";
import { SandboxError, TimeoutError } from "./errors.js";
import type { Outcome } from "./types.js";
import type { WireExecResult, WireOutput } from "./wire.js";

/** What came of a command. */
export interface CommandResult {
  /** Belljar's number of the process, which never comes twice in a sandbox. */
  process: number;
  /** The command's own exit code; null if it did not end by itself. */
  exitCode: number | null;
  /** Standard output as text, as much of it as was kept. */
  stdout: string;
  /** Standard error as text, as much of it as was kept. */
  stderr: string;
  /** Standard output byte by byte, as much of it as was kept. */
  stdoutBytes: Uint8Array;
  /** Standard error byte by byte, as much of it as was kept. */
  stderrBytes: Uint8Array;
  /** Bytes of standard output that were left out. */
  stdoutOmittedBytes: number;
  /** Bytes of standard error that were left out. */
  stderrOmittedBytes: number;
  /** The name of the signal that ended it, such as `SIGKILL`. */
  signal: string | null;
  /** How it ended. */
  outcome: Outcome;
  /** Why it did not end well, in a sentence; undefined if it did. */
  error?: string;
  /** What to do about it, if the server knows. */
  hint?: string;
  /** Milliseconds from its start to its end, where they were measured. */
  wallMs?: number;
  /** Milliseconds of processor time, where they were measured. */
  cpuMs?: number;
  /** The most memory in use at once, in bytes, where it was measured. */
  peakMemoryBytes?: number;
  /** Whether the session that it ran in remembers what it did. */
  sessionState?: "preserved" | "lost";
}

/** A command did not end with exit code 0. It knows all of the result. */
export class CommandExitError extends SandboxError implements CommandResult {
  override name = "CommandExitError";
  /** What came of the command. */
  readonly result: CommandResult;
  /** Belljar's number of the process. */
  readonly process: number;
  /** The command's own exit code; null if it did not end by itself. */
  readonly exitCode: number | null;
  /** Standard output as text. */
  readonly stdout: string;
  /** Standard error as text. */
  readonly stderr: string;
  /** Standard output byte by byte. */
  readonly stdoutBytes: Uint8Array;
  /** Standard error byte by byte. */
  readonly stderrBytes: Uint8Array;
  /** Bytes of standard output that were left out. */
  readonly stdoutOmittedBytes: number;
  /** Bytes of standard error that were left out. */
  readonly stderrOmittedBytes: number;
  /** The name of the signal that ended it. */
  readonly signal: string | null;
  /** How it ended. */
  readonly outcome: Outcome;
  /** Why it did not end well, in a sentence. */
  readonly error: string;
  /** What to do about it, if the server knows. */
  readonly hint?: string;

  constructor(result: CommandResult) {
    const error = result.error ?? describe(result.outcome);
    super(`the command ${error}${lastLine(result.stderr)}`, { code: "command_failed" });
    this.result = result;
    this.process = result.process;
    this.exitCode = result.exitCode;
    this.stdout = result.stdout;
    this.stderr = result.stderr;
    this.stdoutBytes = result.stdoutBytes;
    this.stderrBytes = result.stderrBytes;
    this.stdoutOmittedBytes = result.stdoutOmittedBytes;
    this.stderrOmittedBytes = result.stderrOmittedBytes;
    this.signal = result.signal;
    this.outcome = result.outcome;
    this.error = error;
    if (result.hint !== undefined) {
      this.hint = result.hint;
    }
  }
}

/** A command was ended because its time ran out. */
export class CommandTimeoutError extends TimeoutError {
  override name = "CommandTimeoutError";
  /** What it had written until then. */
  readonly result: CommandResult;

  constructor(result: CommandResult) {
    super("the command's time ran out, and it was ended; raise timeoutMs if it needs longer", { code: "command_timed_out" });
    this.result = result;
  }
}

/** The result as the server tells it of a command that it waited for. */
export function resultFromWire(wire: WireExecResult): CommandResult {
  const stdout = bytesOf(wire.stdout);
  const stderr = bytesOf(wire.stderr);
  const result: CommandResult = {
    process: wire.process,
    exitCode: wire.exit_code,
    stdout: text(stdout),
    stderr: text(stderr),
    stdoutBytes: stdout,
    stderrBytes: stderr,
    stdoutOmittedBytes: wire.stdout.omitted_bytes,
    stderrOmittedBytes: wire.stderr.omitted_bytes,
    signal: wire.signal,
    outcome: outcomeFromWire(wire.outcome),
    wallMs: wire.wall_ms,
  };
  if (wire.cpu_ms !== null && wire.cpu_ms !== undefined) {
    result.cpuMs = wire.cpu_ms;
  }
  if (wire.peak_memory_bytes !== null && wire.peak_memory_bytes !== undefined) {
    result.peakMemoryBytes = wire.peak_memory_bytes;
  }
  if (wire.hint) {
    result.hint = wire.hint;
  }
  if (wire.session_state) {
    result.sessionState = wire.session_state;
  }
  return withError(result);
}

/** Adds the sentence that says why a command did not end well. */
export function withError(result: CommandResult): CommandResult {
  if (!endedWell(result)) {
    result.error = describe(result.outcome);
  }
  return result;
}

/** The result, or the error that it stands for. */
export function throwUnlessWell(result: CommandResult): CommandResult {
  if (endedWell(result)) {
    return result;
  }
  throw result.outcome.kind === "timed_out" ? new CommandTimeoutError(result) : new CommandExitError(result);
}

function endedWell(result: CommandResult): boolean {
  return result.outcome.kind === "exited" && result.exitCode === 0;
}

function bytesOf(output: WireOutput): Uint8Array {
  return decodeData(output.encoding, output.data);
}

function describe(outcome: Outcome): string {
  switch (outcome.kind) {
    case "exited":
      return `ended with exit code ${outcome.code}`;
    case "signalled":
      return `was ended by ${outcome.name}`;
    case "timed_out":
      return "was ended because its time ran out";
    case "out_of_memory":
      return "was ended because its memory ran out";
    case "limit":
      return `reached its limit of ${outcome.limit}`;
    case "denied":
      return `was not run: the rule ${outcome.rule} says no`;
    case "infrastructure":
      return `could not be run: ${outcome.cause}`;
    default:
      return "did not end well";
  }
}

/** The last line of standard error tells most about what went wrong. */
function lastLine(stderr: string): string {
  const line = stderr.trimEnd().split("\n").at(-1)?.trim() ?? "";
  return line === "" ? "" : `: ${line.length > 200 ? `${line.slice(0, 200)}…` : line}`;
}
