// Types of the SDK. Times are Dates, durations are milliseconds, sizes are bytes.

import type { Problem } from "./errors.js";

/** A state of a sandbox. */
export type SandboxState = "creating" | "running" | "paused" | "stopping" | "gone";

/** Action when a timeout of a sandbox expires. */
export type OnTimeout = "kill" | "pause";

/** A size: bytes, or a string such as `"256m"`. */
export type Size = number | string;

/** A duration: seconds, or a string such as `"30s"`, `"10m"` or `"2h"`. */
export type Span = number | string;

/** Limits of a new sandbox; missing ones default to the server's settings. */
export interface Limits {
  /** Memory, including files in memory. */
  memory?: Size;
  /** Processors, such as 0.5. */
  cpus?: number;
  /** Default time limit of a command in milliseconds. */
  timeoutMs?: number;
  /** Number of processes and threads. */
  pids?: number;
  /** Size of `/tmp`. */
  tmp?: Size;
  /** Size of the home directory. */
  disk?: Size;
  /** Files and directories in the home directory. */
  inodes?: number;
  /** Number of bytes kept of each output stream of a command. */
  output?: Size;
  /** Number of open files of a process. */
  openFiles?: number;
}

/** A file written before anything runs; all of them together have at most 1 MiB. */
export interface InitialFile {
  /** Absolute, or relative to the home directory. */
  path: string;
  /** Its content. */
  data: string | Uint8Array;
  /** Permission bits, such as `0o755` or `"0755"`. */
  mode?: FileMode;
}

/** Current limits of a sandbox; null means none. */
export interface SandboxLimits {
  /** Memory, including files in memory. */
  memoryBytes: number | null;
  /** Processors. */
  cpus: number | null;
  /** Default time limit of a command in milliseconds. */
  timeoutMs: number | null;
  /** Number of processes and threads. */
  pids: number | null;
  /** Size of `/tmp`. */
  tmpBytes: number | null;
  /** Size of the home directory. */
  diskBytes: number | null;
  /** Files and directories in the home directory. */
  inodes: number | null;
  /** Number of bytes kept of each output stream of a command. */
  outputBytes: number | null;
  /** Number of open files of a process. */
  openFiles: number | null;
}

/** One wall around a sandbox. */
export interface IsolationLayer {
  /** Such as `seccomp`. */
  name: string;
  /** `in_force`, `weaker` or `absent`. */
  state: string;
  /** Details, or why it is not in force. */
  detail: string;
}

/** The walls that are actually in force. */
export interface Isolation {
  /** The engine that built the walls, such as `local`. */
  engine: string;
  /** How limits are enforced: `cgroup`, or `watched`, which is weaker. */
  grade: string;
  /** Origin of the sandbox's files, such as `host`. */
  tree: string;
  /** The individual walls. */
  layers: IsolationLayer[];
}

/** A volume for a new sandbox. */
export interface VolumeMount {
  /** The volume, by its name or id. */
  name: string;
  /** Absolute path in the sandbox. */
  path: string;
  /** Access mode; default: `rw`. */
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
  /** Size in bytes, including the file system's own data. */
  size: number;
  /** Owning tenant. */
  tenant: string;
  /** Creation time. */
  createdAt: Date;
  /** Ids of the sandboxes that currently mount it. */
  sandboxes: string[];
}

/** A sandbox, as the server describes it. */
export interface SandboxInfo {
  /** Its id. */
  sandboxId: string;
  /** Its name. */
  name: string | null;
  /** Its state. */
  state: SandboxState;
  /** Its template. */
  template: string;
  /** Its labels. */
  labels: Record<string, string>;
  /** Time of the request. */
  createdAt: Date;
  /** Time at which it started. */
  startedAt: Date | null;
  /** Time at which it expires; null if it has no timeout, or while it is paused. */
  expiresAt: Date | null;
  /** Idle timeout in milliseconds; null if it has none. */
  idleTimeoutMs: number | null;
  /** Action when a timeout expires. */
  onTimeout: OnTimeout;
  /** Whether using it while paused resumes it. */
  autoResume: boolean;
  /** Time at which it was paused. */
  pausedAt: Date | null;
  /** Id of the approval for which a call waits in it, or of a call of its code: it stays paused until somebody has decided or answered. */
  heldBy: string | null;
  /** Time at which it ended. */
  endedAt: Date | null;
  /** Why it ended or was paused. */
  reason: string | null;
  /** The engine that built its walls. */
  engine: string;
  /** Its resource limits. */
  limits: SandboxLimits;
  /** Its network policy: a mode alone, or a full policy. */
  network: Network;
  /** Its walls, as actually in force. */
  isolation: Isolation | null;
  /** The home directory inside. */
  home: string;
  /** The host name inside. */
  hostname: string;
  /** The user as whom programs run that name none; null if that is its own, `user`. */
  user: string | null;
  /** Published ports. */
  ports: number[];
  /** Mounted volumes. */
  volumes: MountedVolume[];
  /** Host directories and files that it sees, such as `/srv/data:/data:ro`. */
  mounts: string[];
  /** The host name of published ports with `{port}` in it; null if the server has no domain. */
  host: string | null;
  /** Whether it was pre-warmed. */
  pooled: boolean;
  /** Duration of the start in milliseconds. */
  startMs: number | null;
  /** The tenant. */
  tenant: string;
  /** The id of the key that created it. */
  key: string | null;
}

/** Network policy of a sandbox. */
export interface NetworkPolicy {
  /** Defaults to `whitelist` if presets or `allow` are given. */
  mode?: "disabled" | "whitelist" | "open";
  /** Lists for package managers, such as `pip` and `npm`. */
  presets?: string[];
  /** Rules such as `api.example.com`, `*.example.com:443` and `192.0.2.0/24:5432`. */
  allow?: string[];
  /** Rules of the same format, which take precedence. */
  deny?: string[];
  /** Allowed requests by host, such as `{"api.example.com": ["GET /v1/*"]}`; hosts without an entry are not restricted. */
  requests?: Record<string, string[]>;
  /** Secrets that the gateway inserts into requests, by the name of the variable that contains the placeholder. */
  secrets?: Record<string, NetworkSecret>;
  /** Headers that the gateway sets in requests to their hosts (also `*.example.com`), overwriting those set by code. */
  headers?: NetworkSecret[];
  /** Treatment of TLS on port 443 by host (also `*.example.com`): `terminate` has the gateway read requests. */
  tls?: Record<string, "terminate" | "pass">;
}

/** A secret for one header of requests to one host, or a configured header. */
export interface NetworkSecret {
  /** The host, which receives it over HTTPS on port 443. */
  host: string;
  /** The header, such as `authorization`. */
  header: string;
  /** The value, in which `${secrets.NAME}` refers to a secret stored on the server. Responses only show the names in it. */
  value?: string;
}

/** A mode alone (`disabled`, `open`), or a full policy. */
export type Network = string | NetworkPolicy;

/** A decision about a connection of a sandbox. */
export interface NetworkRecord {
  /** Counts up from 1. */
  number: number;
  /** Time of the decision. */
  at: Date;
  /** Kind: a name that was not resolved, a verdict, or the end of an allowed connection. */
  event: "lookup" | "connection" | "ended";
  /** The name, or the address if the program used one. */
  host: string;
  /** The port; absent for a lookup. */
  port?: number;
  /** The connection; absent for a lookup. */
  flow?: number;
  /** Whether it is allowed; only for a connection. */
  allowed?: boolean;
  /** The destination address; null if unknown. */
  address?: string | null;
  /** The rule that applied. */
  rule?: string;
  /** Explanation in one sentence. */
  reason?: string;
  /** Bytes sent by the sandbox; only for an end. */
  sent?: number;
  /** Bytes received by the sandbox; only for an end. */
  received?: number;
  /** Why it ended, if not normally. */
  error?: string | null;
}

/** Resource usage of a sandbox. Null if the machine does not measure it. */
export interface Metrics {
  /** Time of the measurement. */
  at: Date;
  /** Processor time in seconds. */
  cpuSeconds: number | null;
  /** Memory in use. */
  memoryBytes: number | null;
  /** Peak memory use. */
  memoryPeakBytes: number | null;
  /** Memory limit. */
  memoryLimitBytes: number | null;
  /** Processor limit. */
  cpus: number | null;
  /** Processes and threads. */
  pids: number | null;
  /** Limit of processes and threads. */
  pidsLimit: number | null;
  /** Its file systems. */
  disks: DiskUse[];
  /** Number of processes killed because memory ran out. */
  oomKills: number | null;
  /** Milliseconds since it started. */
  uptimeMs: number;
}

/** Usage of a file system of a sandbox. */
export interface DiskUse {
  /** Mount point of the file system. */
  path: string;
  /** Bytes in use. */
  bytesUsed: number;
  /** Total bytes. */
  bytesTotal: number;
  /** Files and directories. */
  inodesUsed: number;
  /** Limit of files and directories. */
  inodesTotal: number;
}

/** An entry of a sandbox's log. */
export interface LogEntry {
  /** Time of the event. */
  at: Date;
  /** Rises by one with each entry. */
  seq: number;
  /** Such as `created`, `exec`, `exit`, `paused`. */
  event: string;
  /** The process concerned, if any. */
  process?: number;
  /** Details, in a format that depends on the event. */
  detail: unknown;
}

/** Entries of a sandbox's log, and the position to continue from. */
export interface LogPage {
  /** Oldest first. */
  entries: LogEntry[];
  /** Pass it as `after` for later entries. */
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
  /** Belljar's own id of the process, never reused in a sandbox. */
  process: number;
  /** The process id inside the sandbox. It can be reused once the process has ended. */
  pid: number;
  /** The program and its arguments. */
  argv: string[];
  /** Whether it runs. */
  running: boolean;
  /** Its exit code; null while it runs, or if it did not end by itself. */
  exitCode: number | null;
  /** The name of the signal that ended it. */
  signal: string | null;
  /** How it ended; null while it runs. */
  outcome: Outcome | null;
  /** Bytes written to standard output. */
  stdoutBytes: number;
  /** Bytes written to standard error. */
  stderrBytes: number;
  /** Bytes written to its terminal. */
  terminalBytes: number;
}

/** Kind of the object at a path. */
export type FileKind = "file" | "directory" | "symlink" | "fifo" | "socket" | "device";

/** Permission bits: a number such as `0o644`, or a string such as `"0644"`. */
export type FileMode = number | string;

/** A path inside: absolute, or relative to the home directory. Bytes if it is not UTF-8. */
export type SandboxPath = string | Uint8Array;

/** A file, directory or other object at a path. */
export interface FileInfo {
  /** The last component of the path. */
  name: string;
  /** Its path, which can be passed to other calls. */
  path: string;
  /** The path's bytes, only if it is not UTF-8. */
  pathBytes?: Uint8Array;
  /** Its kind. */
  kind: FileKind;
  /** Its size in bytes. */
  size: number;
  /** Permission bits, such as `0o644`. */
  mode: number;
  /** Time of the last change of its content. */
  modifiedAt: Date;
  /** Its target, if it is a symbolic link. */
  symlinkTarget?: string;
}

/** A match of a search. */
export interface SearchMatch {
  /** The file. */
  path: string;
  /** Line number from 1, if contents were searched. */
  lineNumber?: number;
  /** The line. */
  line?: string;
  /** Column in the line, from 1. */
  column?: number;
}

/** A template of sandboxes. */
export interface TemplateInfo {
  /** Its id. */
  templateId: string;
  /** The id, under the name that E2B has for it. */
  snapshotId: string;
  /** Its name. */
  name: string | null;
  /** Kind: built in, built, or a snapshot of a sandbox. */
  kind: "builtin" | "built" | "snapshot";
  /** Its size in bytes. */
  size: number | null;
  /** The digest of its content. */
  digest: string | null;
  /** Time of creation. */
  createdAt: Date | null;
  /** The sandbox that it was created from, if it is a snapshot. */
  source: string | null;
  /** The creator's note. */
  note: string | null;
  /** Base of its files: `host`, the machine's own file system, or `own`, none. */
  base: string | null;
  /** Modules that a pre-warmed interpreter of it has imported. */
  warm: string[];
  /** The template that its file is based on. */
  parent: string | null;
  /** The steps of its file, in order, each with its packages or a summary. */
  steps: { kind: string; summary: string }[];
  /** Limits of its sandboxes, where the request sets none, such as `{ memory: "1 GiB" }`. */
  limits: Record<string, string>;
  /** Environment variables of its sandboxes. */
  envs: Record<string, string>;
  /** The image that it was made of, if its file is based on one. */
  image: ImageInfo | null;
  /** Whether its sandboxes are machines. */
  machine: boolean;
  /** Command that is started in each sandbox, and keeps running. */
  start: string | null;
  /** Command that succeeds once a sandbox is ready for use. */
  ready: string | null;
  /** Directory of `start` and `ready`. */
  workdir: string | null;
}

/** An image that a template was made of, and its settings. */
export interface ImageInfo {
  /** Digest of its manifest. */
  digest: string;
  /** Whether it was imported from a file. */
  imported: boolean;
  /** Its layers, the lowest first, each with its size in bytes if the image has it. */
  layers: { digest: string; size: number | null }[];
  /** `ENV`, each as `NAME=value`. */
  envs: string[];
  /** `WORKDIR`. */
  workdir: string | null;
  /** `USER`. */
  user: string | null;
  /** `ENTRYPOINT`. */
  entrypoint: string[];
  /** `CMD`. */
  cmd: string[];
  /** `VOLUME`. */
  volumes: string[];
  /** `EXPOSE`. */
  ports: string[];
  /** `STOPSIGNAL`. */
  stopSignal: string | null;
  /** Settings that have no effect on sandboxes, such as `ENTRYPOINT`. */
  ignored: string[];
}

/** A published port of a sandbox. */
export interface PortInfo {
  /** The port inside. */
  port: number;
  /** Whether it can be reached without credentials. */
  public: boolean;
  /** Its URL by host name; null if the server has no domain. */
  url: string | null;
  /** Its URL by path on the server's own host. */
  pathUrl: string;
}

/** Role of a key. */
export type Role = "admin" | "user" | "approver" | "read";

/** Which calls wait until another person approves them: with `on-risk` and `on-medium-risk` those in which screening finds a high, or at least a medium risk. */
export type ApprovalRule = "never" | "on-risk" | "on-medium-risk" | "always";

/** Quotas of a key; missing ones are unlimited. */
export interface Quotas {
  /** Number of sandboxes. */
  sandboxes?: number | null;
  /** Sum of the memory limits of its sandboxes. */
  memoryBytes?: number | null;
  /** Sum of the disk limits of its sandboxes, and its templates. */
  diskBytes?: number | null;
  /** Processor seconds per hour. */
  cpuSecondsPerHour?: number | null;
  /** Commands per minute. */
  executionsPerMinute?: number | null;
  /** Ceiling of its sandboxes' network policies: a mode, or `presets` and `allow`. */
  network?: Network | null;
  /** Whether these policies may use secrets stored on the server; they may by default. */
  storedSecrets?: boolean | null;
}

/** A secret stored on the server, without its value. */
export interface SecretInfo {
  /** Its id. */
  secretId: string;
  /** Its name. */
  name: string;
  /** Version of the value: 1 at first, incremented by each change. */
  version: number;
  /** The only hosts that it is sent to; if there are none, only the key that stored it and administrators may use it, for any host. */
  hosts: string[];
  /** The only header that it is put into; null: any. */
  header: string | null;
  /** Notes. */
  metadata: Record<string, string>;
  /** Time of creation. */
  createdAt: Date;
  /** Time of the last change. */
  updatedAt: Date;
}

/** Usage of a key. */
export interface Usage {
  /** Number of sandboxes. */
  sandboxes: number;
  /** Sum of their memory limits. */
  memoryBytes: number;
  /** Sum of their disk limits. */
  diskBytes: number;
  /** Processor seconds within the last hour. */
  cpuSeconds: number;
}

/** An API key, without the key itself. */
export interface KeyInfo {
  /** Its id, which is not secret. */
  keyId: string;
  /** Its first characters, for identification. */
  hint: string;
  /** A description. */
  name: string | null;
  /** The role. */
  role: Role;
  /** The tenant. */
  tenant: string;
  /** The quotas. */
  quotas: Quotas;
  /** The person to whom it belongs; null: it is a person of its own. */
  owner: string | null;
  /** Whether calls with it wait. */
  approval: ApprovalRule;
  /** What its sandboxes use of them now. */
  usage: Usage;
  /** Time of creation. */
  createdAt: Date;
  /** Time of expiry; null if it does not expire. */
  expiresAt: Date | null;
  /** Time of revocation. */
  revokedAt: Date | null;
  /** Time of the last use. */
  lastUsedAt: Date | null;
}

/** State of an approval. */
export type ApprovalState = "pending" | "approved" | "denied" | "expired" | "cancelled" | "outcome_unknown";

/** The further calls that an approval covers: the same call again, or any call of the same version of the tool. */
export type BudgetScope = "call" | "tool";

/** The decision of a person. */
export interface ApprovalDecision {
  /** When. */
  at: Date;
  /** Id of the key with which it was made. */
  keyId: string;
  /** The owner of the key, or its id without one. */
  person: string;
  /** The person's note. */
  note: string;
  /** The further calls that it covers, if any. */
  budget: { scope: BudgetScope; uses: number; used: number; until: Date } | null;
}

/** Running code that makes a call, as `belljar.tools.NAME(…)`. Its sandbox is frozen while the call waits. */
export interface CallingCode {
  /** Its sandbox. */
  sandboxId: string;
  /** Its context. */
  context: string;
  /** The context's language. */
  language: string;
  /** Number of the execution. */
  execution: number;
  /** The code, or its first 32 KiB. */
  code: string;
  /** Length of the whole code in bytes. */
  codeBytes: number;
  /** SHA-256 of the whole code. */
  codeSha256: string;
}

/** An approval: a call that waits for a person's decision, or has waited. */
export interface ApprovalInfo {
  /** Its id. */
  approvalId: string;
  /** The state. */
  state: ApprovalState;
  /** The tenant of the call. */
  tenant: string;
  /** Id of the key that made the call. */
  keyId: string;
  /** The person who made the call: the owner of the key, or its id without one. */
  requester: string;
  /** SHA-256 of the call. */
  digest: string;
  /** The call, in the server's format: code or command, files, environment, tool, template and network. */
  request: Readonly<Record<string, unknown>>;
  /** Time of the call. */
  createdAt: Date;
  /** When the call is refused if nobody has decided. */
  expiresAt: Date;
  /** The decision. */
  decision: ApprovalDecision | null;
  /** The approval whose budget has allowed the call, which did not wait then. */
  grantedBy: string | null;
  /** When the call began to run. */
  startedAt: Date | null;
  /** When it had ended, or could not run any more. */
  endedAt: Date | null;
  /** How it has ended, or why it did not run. */
  outcome: string | null;
  /** The running code that makes the call, if code does. */
  callingCode: CallingCode | null;
}

/** A record of the audit log, in the server's format. */
export type AuditRecord = Readonly<Record<string, unknown>>;

/** The head of the audit log's chain. */
export interface AuditHead {
  /** The number of the last record. */
  seq: number;
  /** The hash of the last record, which covers all of them. */
  hash: string;
}

/** Result of a verification of the audit log. */
export type AuditVerdict =
  | {
      ok: true;
      /** Number of records that were checked. */
      records: number;
      /** The first of them; earlier ones are archived. */
      first: number;
      head: AuditHead;
    }
  | { ok: false; seq: number; why: string };

export type { Problem };
