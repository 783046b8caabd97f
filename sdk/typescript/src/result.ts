// Results of commands.

import { decodeData, text } from "./bytes.js";
import { outcome as outcomeFromWire } from "./convert.js";
import { AuthenticationError, SandboxError, TimeoutError } from "./errors.js";
import type { Outcome } from "./types.js";
import type { WireExecResult, WireOutput } from "./wire.js";

/** The result of a command. */
export interface CommandResult {
  /** Belljar's own id of the process, never reused in a sandbox. */
  process: number;
  /** The command's exit code; null if it did not end by itself. */
  exitCode: number | null;
  /** The kept standard output as text. */
  stdout: string;
  /** The kept standard error as text. */
  stderr: string;
  /** The kept standard output as bytes. */
  stdoutBytes: Uint8Array;
  /** The kept standard error as bytes. */
  stderrBytes: Uint8Array;
  /** Number of omitted bytes of standard output. */
  stdoutOmittedBytes: number;
  /** Number of omitted bytes of standard error. */
  stderrOmittedBytes: number;
  /** The name of the signal that ended it, such as `SIGKILL`. */
  signal: string | null;
  /** How it ended. */
  outcome: Outcome;
  /** Why it failed, as a sentence; undefined if it succeeded. */
  error?: string;
  /** A suggestion of the server, if any. */
  hint?: string;
  /** Milliseconds from its start to its end, if measured. */
  wallMs?: number;
  /** Milliseconds of processor time, if measured. */
  cpuMs?: number;
  /** Peak memory use in bytes, if measured. */
  peakMemoryBytes?: number;
  /** Whether the state of its session is preserved. */
  sessionState?: "preserved" | "lost";
}

/** A command did not end with exit code 0. Contains the whole result. */
export class CommandExitError extends SandboxError implements CommandResult {
  override name = "CommandExitError";
  /** The result of the command. */
  readonly result: CommandResult;
  /** Belljar's number of the process. */
  readonly process: number;
  /** The command's exit code; null if it did not end by itself. */
  readonly exitCode: number | null;
  /** Standard output as text. */
  readonly stdout: string;
  /** Standard error as text. */
  readonly stderr: string;
  /** Standard output as bytes. */
  readonly stdoutBytes: Uint8Array;
  /** Standard error as bytes. */
  readonly stderrBytes: Uint8Array;
  /** Number of omitted bytes of standard output. */
  readonly stdoutOmittedBytes: number;
  /** Number of omitted bytes of standard error. */
  readonly stderrOmittedBytes: number;
  /** The name of the signal that ended it. */
  readonly signal: string | null;
  /** How it ended. */
  readonly outcome: Outcome;
  /** Why it failed, as a sentence. */
  readonly error: string;
  /** A suggestion of the server, if any. */
  readonly hint?: string;

  constructor(result: CommandResult) {
    const error = result.error ?? describe(result.outcome);
    super(`the command ${error}${lastLine(result.stderr)}${result.hint === undefined ? "" : `; ${result.hint}`}`, { code: "command_failed" });
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

/** A command was ended because it timed out. */
export class CommandTimeoutError extends TimeoutError {
  override name = "CommandTimeoutError";
  /** Its result until then. */
  readonly result: CommandResult;

  constructor(result: CommandResult) {
    super("the command's time ran out, and it was ended; raise timeoutMs if it needs longer", { code: "command_timed_out" });
    this.result = result;
  }
}

/** A remote repository refused the credentials of a git command, or needs some. */
export class GitAuthError extends AuthenticationError {
  override name = "GitAuthError";
  /** The result of the command. */
  readonly result: CommandResult;

  constructor(result: CommandResult) {
    super(`git ${result.error ?? describe(result.outcome)}${lastLine(result.stderr)}`, { code: "git_auth_failed" });
    this.result = result;
  }
}

/** Parses the server's result of a foreground command. */
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

/** Adds the sentence that explains why a command failed. */
export function withError(result: CommandResult): CommandResult {
  if (!endedWell(result)) {
    result.error = describe(result.outcome);
  }
  return result;
}

/** Returns the result, or throws the corresponding error. */
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

/** The last line of standard error is the most informative one. */
function lastLine(stderr: string): string {
  const line = stderr.trimEnd().split("\n").at(-1)?.trim() ?? "";
  return line === "" ? "" : `: ${line.length > 200 ? `${line.slice(0, 200)}…` : line}`;
}
