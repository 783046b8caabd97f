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
  /** What is in it. */
  data: string | Uint8Array;
  /** Permission bits, such as `0o755` or `"0755"`. */
  mode?: FileMode;
}

/** Limits of a sandbox as they are; null where there is none. */
export interface SandboxLimits {
  /** Memory, files in memory included. */
  memoryBytes: number | null;
  /** Processors. */
  cpus: number | null;
  /** Milliseconds that a command may take unless it says otherwise. */
  timeoutMs: number | null;
  /** Processes and threads at once. */
  pids: number | null;
  /** Room in `/tmp`. */
  tmpBytes: number | null;
  /** Room in the home directory. */
  diskBytes: number | null;
  /** Files and directories in the home directory. */
  inodes: number | null;
  /** Bytes of each output stream that are kept of a command. */
  outputBytes: number | null;
  /** Files that a process may have open. */
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
  /** What built the walls, such as `local`. */
  engine: string;
  /** How limits are held: `cgroup`, or `watched`, which is weaker. */
  grade: string;
  /** Where the sandbox's files came from, such as `host`. */
  tree: string;
  /** The walls, one by one. */
  layers: IsolationLayer[];
}

/** A volume for a new sandbox. */
export interface VolumeMount {
  /** The volume, by its name or id. */
  name: string;
  /** Absolute path in the sandbox. */
  path: string;
  /** Access mode; `rw` if not given. */
  mode?: "rw" | "ro";
}

/** A volume that a sandbox mounts. */
export interface MountedVolume {
  /** Id. */
  volumeId: string;
  /** Name. */
  name: string;
  /** Path in the sandbox. */
  path: string;
  /** Access mode. */
  mode: "rw" | "ro";
}

/** Files that outlive sandboxes. */
export interface VolumeInfo {
  /** Id. */
  volumeId: string;
  /** Name, unique in the tenant. */
  name: string;
  /** Size in bytes, of which the file system needs a part. */
  size: number;
  /** Owning tenant. */
  tenant: string;
  /** Creation time. */
  createdAt: Date;
  /** Ids of the sandboxes that mount it now. */
  sandboxes: string[];
}

/** A sandbox, as the server describes it. */
export interface SandboxInfo {
  /** Its id. */
  sandboxId: string;
  /** Its name. */
  name: string | null;
  /** What it does now. */
  state: SandboxState;
  /** What it was made of. */
  template: string;
  /** Words to find it by. */
  labels: Record<string, string>;
  /** When it was asked for. */
  createdAt: Date;
  /** When it began to run. */
  startedAt: Date | null;
  /** When its time is over; null if it has no end, or if the clock stands because it is paused. */
  expiresAt: Date | null;
  /** Milliseconds without any activity after which its time is over; null if that does not matter. */
  idleTimeoutMs: number | null;
  /** What happens when its time is over. */
  onTimeout: OnTimeout;
  /** Whether using it resumes it when it is paused. */
  autoResume: boolean;
  /** Since when it is paused. */
  pausedAt: Date | null;
  /** When it ended. */
  endedAt: Date | null;
  /** Why it ended or was paused. */
  reason: string | null;
  /** What built its walls. */
  engine: string;
  /** What it may use. */
  limits: SandboxLimits;
  /** What it may reach: a mode alone, or a policy in full. */
  network: Network;
  /** Its walls, as they really are. */
  isolation: Isolation | null;
  /** The home directory inside. */
  home: string;
  /** The host name inside. */
  hostname: string;
  /** Published ports. */
  ports: number[];
  /** Mounted volumes. */
  volumes: MountedVolume[];
  /** The host name of published ports with `{port}` in it; null if the server has no domain. */
  host: string | null;
  /** Whether it had been made ahead. */
  pooled: boolean;
  /** Milliseconds that the start took. */
  startMs: number | null;
  /** Whose it is. */
  tenant: string;
  /** The id of the key that made it. */
  key: string | null;
}

/** What a sandbox may reach. */
export interface NetworkPolicy {
  /** `whitelist` is meant where presets or `allow` name something and no mode is given. */
  mode?: "disabled" | "whitelist" | "open";
  /** Lists for package managers, such as `pip` and `npm`. */
  presets?: string[];
  /** Rules such as `api.example.com`, `*.example.com:443` and `192.0.2.0/24:5432`. */
  allow?: string[];
  /** Rules of the same form, which no other overrides. */
  deny?: string[];
  /** Requests that hosts may get, such as `{"api.example.com": ["GET /v1/*"]}`; hosts without an entry may get any. */
  requests?: Record<string, string[]>;
  /** Secrets that the gateway puts into requests, by the variables in which code finds placeholders for them. */
  secrets?: Record<string, NetworkSecret>;
  /** Headers that the gateway sets in requests to their hosts (also `*.example.com`), overwriting those that code has set. */
  headers?: NetworkSecret[];
}

/** A secret for one header of requests to one host, or a header that is set. */
export interface NetworkSecret {
  /** The host, which gets it over HTTPS on port 443. */
  host: string;
  /** The header, such as `authorization`. */
  header: string;
  /** The value, in which `${secrets.NAME}` stands for a secret stored on the server. Answers show the names in it only. */
  value?: string;
}

/** A mode alone (`disabled`, `open`), or a policy in full. */
export type Network = string | NetworkPolicy;

/** What was decided about a connection of a sandbox. */
export interface NetworkRecord {
  /** Counts up from 1. */
  number: number;
  /** When. */
  at: Date;
  /** A name was not resolved, a verdict, or the end of an allowed connection. */
  event: "lookup" | "connection" | "ended";
  /** The name, or the address if the program gave that. */
  host: string;
  /** Its port; not of a lookup. */
  port?: number;
  /** Which connection; not of a lookup. */
  flow?: number;
  /** Whether it may be; only of a connection. */
  allowed?: boolean;
  /** The address that it goes to; null if it is not known. */
  address?: string | null;
  /** What decided. */
  rule?: string;
  /** One sentence for whoever tried it. */
  reason?: string;
  /** Bytes that the sandbox has sent; only of an end. */
  sent?: number;
  /** Bytes that the sandbox has got; only of an end. */
  received?: number;
  /** Why it ended, if it did not just end. */
  error?: string | null;
}

/** What a sandbox uses. Null where the machine does not measure it. */
export interface Metrics {
  /** When it was measured. */
  at: Date;
  /** Processor time in seconds. */
  cpuSeconds: number | null;
  /** Memory in use. */
  memoryBytes: number | null;
  /** The most memory in use at once. */
  memoryPeakBytes: number | null;
  /** Memory that it may use. */
  memoryLimitBytes: number | null;
  /** Processors that it may use. */
  cpus: number | null;
  /** Processes and threads. */
  pids: number | null;
  /** Processes and threads that it may have. */
  pidsLimit: number | null;
  /** Its file systems. */
  disks: DiskUse[];
  /** Processes that were ended because the memory ran out. */
  oomKills: number | null;
  /** Milliseconds since it began to run. */
  uptimeMs: number;
}

/** How full a file system of a sandbox is. */
export interface DiskUse {
  /** Where the file system is. */
  path: string;
  /** Bytes in use. */
  bytesUsed: number;
  /** All bytes. */
  bytesTotal: number;
  /** Files and directories. */
  inodesUsed: number;
  /** Files and directories that there may be. */
  inodesTotal: number;
}

/** Something that happened to a sandbox. */
export interface LogEntry {
  /** When it happened. */
  at: Date;
  /** Rises by one with each entry. */
  seq: number;
  /** Such as `created`, `exec`, `exit`, `paused`. */
  event: string;
  /** The process that it is about, if it is about one. */
  process?: number;
  /** More about it, in a form that depends on the event. */
  detail: unknown;
}

/** Entries of a sandbox's log, and where to go on. */
export interface LogPage {
  /** Oldest first. */
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
  /** Belljar's number of the process, which never comes twice in a sandbox. */
  process: number;
  /** The process id that the sandbox's own programs see. It may come again once the process has ended. */
  pid: number;
  /** The program and its arguments. */
  argv: string[];
  /** Whether it runs. */
  running: boolean;
  /** Its own exit code; null while it runs, or if it did not end by itself. */
  exitCode: number | null;
  /** The name of the signal that ended it. */
  signal: string | null;
  /** How it ended; null while it runs. */
  outcome: Outcome | null;
  /** Bytes that it has written to standard output. */
  stdoutBytes: number;
  /** Bytes that it has written to standard error. */
  stderrBytes: number;
  /** Bytes that it has written to its terminal. */
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
  /** Its path, as other calls take it. */
  path: string;
  /** The path's bytes, only where it is no UTF-8. */
  pathBytes?: Uint8Array;
  /** What it is. */
  kind: FileKind;
  /** Its size in bytes. */
  size: number;
  /** Permission bits, such as `0o644`. */
  mode: number;
  /** When its content changed last. */
  modifiedAt: Date;
  /** Where it leads, if it is a symbolic link. */
  symlinkTarget?: string;
}

/** A place that a search found. */
export interface SearchMatch {
  /** The file. */
  path: string;
  /** From 1, when contents were searched. */
  lineNumber?: number;
  /** The line. */
  line?: string;
  /** Where in the line, from 1. */
  column?: number;
}

/** A template: what new sandboxes begin with. */
export interface TemplateInfo {
  /** Its id. */
  templateId: string;
  /** The id, under the name that E2B has for it. */
  snapshotId: string;
  /** Its name. */
  name: string | null;
  /** Whether it came with the server, was built, or was taken from a sandbox. */
  kind: "builtin" | "built" | "snapshot";
  /** Its size in bytes. */
  size: number | null;
  /** The digest of what is in it. */
  digest: string | null;
  /** When it was made. */
  createdAt: Date | null;
  /** The sandbox that it was taken from, if it is a snapshot. */
  source: string | null;
  /** What whoever made it wrote. */
  note: string | null;
}

/** A port of a sandbox that can be reached from outside. */
export interface PortInfo {
  /** The port inside. */
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
  /** Sum of the memory limits of its sandboxes. */
  memoryBytes?: number | null;
  /** Sum of the disk limits of its sandboxes, and its templates. */
  diskBytes?: number | null;
  /** Processor seconds in any hour. */
  cpuSecondsPerHour?: number | null;
  /** Commands in any minute. */
  executionsPerMinute?: number | null;
  /** The most that networks of its sandboxes may be: a mode, or `presets` and `allow`. */
  network?: Network | null;
}

/** A secret stored on the server, without its value. */
export interface SecretInfo {
  /** Its id. */
  secretId: string;
  /** Its name. */
  name: string;
  /** Version of the value: 1 at first, incremented by each change. */
  version: number;
  /** Notes. */
  metadata: Record<string, string>;
  /** When it was made. */
  createdAt: Date;
  /** When it was last changed. */
  updatedAt: Date;
}

/** An API key, without the key itself. */
export interface KeyInfo {
  /** Its id, which is no secret. */
  keyId: string;
  /** Its beginning, to tell it from others. */
  hint: string;
  /** What it is for. */
  name: string | null;
  /** What it may do. */
  role: Role;
  /** Whose it is. */
  tenant: string;
  /** How much it may use. */
  quotas: Quotas;
  /** When it was made. */
  createdAt: Date;
  /** Until when it is good; null for ever. */
  expiresAt: Date | null;
  /** When it was revoked. */
  revokedAt: Date | null;
  /** When it was used last. */
  lastUsedAt: Date | null;
}

/** A record of the audit log, as the server keeps it. */
export type AuditRecord = Readonly<Record<string, unknown>>;

/** The end of the audit log's chain. */
export interface AuditHead {
  /** The number of the last record. */
  seq: number;
  /** The hash that stands for all of them. */
  hash: string;
}

/** Whether the audit log is as it was written. */
export type AuditVerdict = { ok: true; records: number; head: string } | { ok: false; seq: number; why: string };

export type { Problem };
