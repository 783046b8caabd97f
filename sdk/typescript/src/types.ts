// What the SDK takes and gives back. Times are Dates, spans are milliseconds, sizes are bytes.

import type { Problem } from "./errors.js";

/** A state of a sandbox. */
export type SandboxState = "creating" | "running" | "paused" | "stopping" | "gone";

/** What happens when the time of a sandbox is over. */
export type OnTimeout = "kill" | "pause";

/** A size: bytes, or a text such as `"256m"`. */
export type Size = number | string;

/** A span of time: seconds, or a text such as `"30s"`, `"10m"` or `"2h"`. */
export type Span = number | string;

/** Limits that a sandbox is to have; what is not given is the server's choice. */
export interface Limits {
  /** Memory, files in memory included. */
  memory?: Size;
  /** Processors, such as 0.5. */
  cpus?: number;
  /** Milliseconds that a command may take unless it says otherwise. */
  timeoutMs?: number;
  /** Processes and threads at once. */
  pids?: number;
  /** Room in `/tmp`. */
  tmp?: Size;
  /** Room in the home directory. */
  disk?: Size;
  /** Files and directories in the home directory. */
  inodes?: number;
  /** Bytes of each output stream that are kept of a command. */
  output?: Size;
  /** Files that a process may have open. */
  openFiles?: number;
}

/** A file that a sandbox has from the beginning; all of them together have at most 1 MiB. */
export interface InitialFile {
  /** Absolute, or relative to the home directory. */
  path: string;
  data: string | Uint8Array;
  /** Permission bits, such as `0o755` or `"0755"`. */
  mode?: FileMode;
}

/** Limits of a sandbox as they are; null where there is none. */
export interface SandboxLimits {
  memoryBytes: number | null;
  cpus: number | null;
  /** Milliseconds that a command may take unless it says otherwise. */
  timeoutMs: number | null;
  pids: number | null;
  tmpBytes: number | null;
  diskBytes: number | null;
  inodes: number | null;
  outputBytes: number | null;
  openFiles: number | null;
}

/** One wall around a sandbox. */
export interface IsolationLayer {
  /** Such as `seccomp`. */
  name: string;
  /** `in_force`, `weaker` or `absent`. */
  state: string;
  /** What it consists of, or why it does not stand. */
  detail: string;
}

/** Which walls are really in force. */
export interface Isolation {
  engine: string;
  grade: string;
  tree: string;
  layers: IsolationLayer[];
}

/** A sandbox, as the server describes it. */
export interface SandboxInfo {
  sandboxId: string;
  name: string | null;
  state: SandboxState;
  template: string;
  labels: Record<string, string>;
  createdAt: Date;
  startedAt: Date | null;
  /** When its time is over; null if it has no end, or if the clock stands because it is paused. */
  expiresAt: Date | null;
  /** Milliseconds without any activity after which its time is over; null if that does not matter. */
  idleTimeoutMs: number | null;
  onTimeout: OnTimeout;
  /** Whether using it resumes it when it is paused. */
  autoResume: boolean;
  pausedAt: Date | null;
  endedAt: Date | null;
  /** Why it ended or was paused. */
  reason: string | null;
  engine: string;
  limits: SandboxLimits;
  network: string;
  isolation: Isolation | null;
  /** The home directory inside. */
  home: string;
  hostname: string;
  /** Published ports. */
  ports: number[];
  /** The host name of published ports with `{port}` in it; null if the server has no domain. */
  host: string | null;
  /** Whether it had been made ahead. */
  pooled: boolean;
  /** Milliseconds that the start took. */
  startMs: number | null;
  tenant: string;
  /** The id of the key that made it. */
  key: string | null;
}

/** What a sandbox uses. Null where the machine does not measure it. */
export interface Metrics {
  at: Date;
  /** Processor time in seconds. */
  cpuSeconds: number | null;
  memoryBytes: number | null;
  memoryPeakBytes: number | null;
  memoryLimitBytes: number | null;
  /** Processors that it may use. */
  cpus: number | null;
  pids: number | null;
  pidsLimit: number | null;
  disks: DiskUse[];
  /** Processes that were ended because the memory ran out. */
  oomKills: number | null;
  uptimeMs: number;
}

/** How full a file system of a sandbox is. */
export interface DiskUse {
  path: string;
  bytesUsed: number;
  bytesTotal: number;
  inodesUsed: number;
  inodesTotal: number;
}

/** Something that happened to a sandbox. */
export interface LogEntry {
  at: Date;
  /** Rises by one with each entry. */
  seq: number;
  /** Such as `created`, `exec`, `exit`, `paused`. */
  event: string;
  /** The process that it is about, if it is about one. */
  process?: number;
  detail: unknown;
}

/** Entries of a sandbox's log, and where to go on. */
export interface LogPage {
  entries: LogEntry[];
  /** Give it as `after` for what comes later. */
  next: number;
}

/** How a command ended. */
export type Outcome =
  | { kind: "exited"; code: number }
  | { kind: "signalled"; signal: number; name: string }
  | { kind: "timed_out" }
  | { kind: "out_of_memory" }
  | { kind: "limit"; limit: string }
  | { kind: "denied"; rule: string }
  | { kind: "infrastructure"; cause: string };

/** A process that was started through the interface. */
export interface ProcessInfo {
  /** Belljar's number of the process; the other methods take it. It never comes twice in a sandbox. */
  pid: number;
  /** The process id that the sandbox's own programs see. */
  systemPid: number;
  argv: string[];
  running: boolean;
  exitCode: number | null;
  /** The name of the signal that ended it. */
  signal: string | null;
  outcome: Outcome | null;
  /** Bytes that it has written so far. */
  stdoutBytes: number;
  stderrBytes: number;
  terminalBytes: number;
}

/** What is at a path. */
export type FileKind = "file" | "directory" | "symlink" | "fifo" | "socket" | "device";

/** Permission bits: a number such as `0o644`, or text such as `"0644"`. */
export type FileMode = number | string;

/** A path inside: absolute, or relative to the home directory. Bytes where it is no UTF-8. */
export type SandboxPath = string | Uint8Array;

/** A file, a directory or another thing at a path. */
export interface FileInfo {
  /** The last part of the path. */
  name: string;
  path: string;
  /** The path's bytes, only where it is no UTF-8. */
  pathBytes?: Uint8Array;
  kind: FileKind;
  /** Its size in bytes. */
  bytes: number;
  /** Permission bits as text, such as `0644`. */
  mode: string;
  modifiedAt: Date;
  /** Where it leads, if it is a symbolic link. */
  symlinkTarget?: string;
}

/** A place that a search found. */
export interface SearchMatch {
  path: string;
  /** From 1, when contents were searched. */
  lineNumber?: number;
  line?: string;
  column?: number;
}

/** A template: what new sandboxes begin with. */
export interface TemplateInfo {
  templateId: string;
  name: string | null;
  kind: "builtin" | "snapshot";
  bytes: number | null;
  digest: string | null;
  createdAt: Date | null;
  /** The sandbox that it was taken from, if it is a snapshot. */
  source: string | null;
  note: string | null;
}

/** A port of a sandbox that can be reached from outside. */
export interface PortInfo {
  port: number;
  /** Whether it can be reached without credentials. */
  public: boolean;
  /** Its address by host name; null if the server has no domain. */
  url: string | null;
  /** Its address below the server's own. */
  pathUrl: string;
}

/** What a key may do. */
export type Role = "admin" | "user" | "read";

/** How much a key may use; what is not given has no bound of its own. */
export interface Quotas {
  /** Sandboxes at once. */
  sandboxes?: number | null;
  memoryBytes?: number | null;
  diskBytes?: number | null;
  cpuSecondsPerHour?: number | null;
  executionsPerMinute?: number | null;
}

/** An API key, without the key itself. */
export interface KeyInfo {
  keyId: string;
  /** Its beginning, to tell it from others. */
  hint: string;
  name: string | null;
  role: Role;
  tenant: string;
  quotas: Quotas;
  createdAt: Date;
  expiresAt: Date | null;
  revokedAt: Date | null;
  lastUsedAt: Date | null;
}

/** A record of the audit log, as the server keeps it. */
export type AuditRecord = Readonly<Record<string, unknown>>;

/** The end of the audit log's chain. */
export interface AuditHead {
  seq: number;
  hash: string;
}

/** Whether the audit log is as it was written. */
export type AuditVerdict = { ok: true; records: number; head: string } | { ok: false; seq: number; why: string };

export type { Problem };
