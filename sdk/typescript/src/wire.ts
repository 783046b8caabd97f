// Types of the REST interface, with its own names. Nothing here is public.

import type { Network } from "./types.js";

/** A sandbox. */
export interface WireSandbox {
  id: string;
  name: string | null;
  state: string;
  template: string;
  labels: Record<string, string>;
  created_at: string;
  started_at: string | null;
  expires_at: string | null;
  idle_timeout_s: number | null;
  on_timeout: string;
  auto_resume: boolean;
  paused_at: string | null;
  held_by?: string | null;
  ended_at: string | null;
  reason: string | null;
  engine: string;
  limits: {
    memory_bytes: number | null;
    cpus: number | null;
    timeout_s: number | null;
    pids: number | null;
    tmp_bytes: number | null;
    disk_bytes: number | null;
    inodes: number | null;
    output_bytes: number | null;
    open_files: number | null;
  };
  network: Network;
  isolation: { engine: string; grade: string; tree: string; layers: { name: string; state: string; detail: string }[] } | null;
  home: string;
  hostname: string;
  user?: string | null;
  ports: number[];
  volumes?: { id: string; name: string; path: string; mode: string }[];
  mounts?: string[];
  host: string | null;
  pooled: boolean;
  start_ms: number | null;
  tenant: string;
  key: string | null;
}

/** The kept part of an output stream. */
export interface WireOutput {
  encoding: string;
  data: string;
  bytes: number;
  truncated: boolean;
  omitted_bytes: number;
  head_bytes: number;
  log: string | null;
}

/** How something ended. */
export interface WireOutcome {
  kind: string;
  code?: number;
  signal?: number;
  name?: string;
  limit?: string;
  rule?: string;
  cause?: string;
}

/** Result of a foreground command. */
export interface WireExecResult {
  process: number;
  outcome: WireOutcome;
  exit_code: number | null;
  signal: string | null;
  stdout: WireOutput;
  stderr: WireOutput;
  wall_ms: number;
  cpu_ms: number | null;
  peak_memory_bytes: number | null;
  left_behind: number;
  hint: string | null;
  session_state?: "preserved" | "lost";
}

/** A process that was started through the interface. */
export interface WireProcess {
  process: number;
  pid: number;
  argv: string[];
  running: boolean;
  exit_code: number | null;
  signal: string | null;
  outcome: WireOutcome | null;
  stdout_bytes: number;
  stderr_bytes: number;
  terminal_bytes: number;
}

/** A piece of output in a stream of events. */
export interface WirePiece {
  offset: number;
  encoding: string;
  data: string;
}

/** The end of a process. */
export interface WireExited {
  exit_code: number | null;
  signal: string | null;
  outcome: WireOutcome | null;
}

/** A file, directory or other object at a path. */
export interface WireFile {
  path: string;
  path_base64?: string;
  kind: string;
  bytes: number;
  mode: string;
  modified_at: string;
  symlink_target?: string | null;
}

/** A template. */
export interface WireTemplate {
  id: string;
  name: string | null;
  kind: string;
  bytes: number | null;
  digest: string | null;
  created_at: string | null;
  source: string | null;
  note: string | null;
  base?: string;
  warm?: string[];
  parent?: string | null;
  steps?: { kind: string; summary: string }[];
  limits?: Record<string, string>;
  env?: Record<string, string>;
  image?: WireImage | null;
  machine?: boolean;
  start?: string | null;
  ready?: string | null;
  workdir?: string | null;
}

/** An image that a template was made of. */
export interface WireImage {
  digest: string;
  imported?: boolean;
  layers?: { digest: string; bytes?: number | null }[];
  env?: string[];
  workdir?: string | null;
  user?: string | null;
  entrypoint?: string[];
  cmd?: string[];
  volumes?: string[];
  ports?: string[];
  stop_signal?: string | null;
  ignored?: string[];
}

/** A published port. */
export interface WirePort {
  port: number;
  public: boolean;
  url: string | null;
  path_url: string;
}

/** Resource usage of a sandbox. */
export interface WireMetrics {
  at: string;
  cpu_s: number | null;
  memory_bytes: number | null;
  memory_peak_bytes: number | null;
  memory_limit_bytes: number | null;
  cpus: number | null;
  pids: number | null;
  pids_limit: number | null;
  disks: { path: string; bytes_used: number; bytes_total: number; inodes_used: number; inodes_total: number }[];
  oom_kills: number | null;
  uptime_s: number;
}

/** Quotas of a key. */
export interface WireQuotas {
  sandboxes?: number | null;
  memory_bytes?: number | null;
  disk_bytes?: number | null;
  cpu_seconds_per_hour?: number | null;
  executions_per_minute?: number | null;
  network?: Network | null;
  stored_secrets?: boolean | null;
}

/** What network policies can be made of. */
export interface WireNetworkOffer {
  presets: { name: string; purpose: string; tls: "terminate" | "pass"; hosts: { name: string; ports: number[]; purpose: string; risk?: string | null }[] }[];
  presets_version: number;
  most: { server?: Network | null; key?: Network | null };
}

/** What a network policy would reach. */
export interface WireNetworkForecast {
  network?: Network | null;
  problems: { detail: string; field?: string | null; value?: string | null }[];
  beyond?: string | null;
  hosts: { host: string; allowed: boolean; rule: string; reason: string; missing?: string | null }[];
}

/** The report of a screening. */
export interface WireScreenReport {
  language: string;
  risk: string;
  complete: boolean;
  findings: {
    rule: string;
    severity: string;
    line: number;
    column: number;
    end_line: number;
    end_column: number;
    name: string;
    inside?: string | null;
    meaning: string;
    walls: string;
  }[];
  left_out: number;
  advice: string;
}

/** A stored secret, without its value. */
export interface WireSecret {
  id: string;
  name: string;
  version: number;
  hosts?: string[];
  header?: string | null;
  metadata: Record<string, string>;
  created_at: string;
  updated_at: string;
}

/** Usage of a key. */
export interface WireUsage {
  sandboxes: number;
  memory_bytes: number;
  disk_bytes: number;
  cpu_seconds: number;
}

/** An API key. */
export interface WireKey {
  id: string;
  hint: string;
  name: string | null;
  role: string;
  tenant: string;
  quotas: WireQuotas;
  owner?: string | null;
  approval?: string;
  usage?: WireUsage;
  created_at: string;
  expires_at: string | null;
  revoked_at: string | null;
  last_used_at: string | null;
}

/** Running code that makes a call. */
export interface WireCallingCode {
  sandbox: string;
  context: string;
  language: string;
  execution: number;
  code: { encoding: string; data: string };
  code_bytes: number;
  code_sha256: string;
}

/** An approval. */
export interface WireApproval {
  id: string;
  state: string;
  tenant: string;
  key: string;
  requester: string;
  digest: string;
  request: Record<string, unknown> & { calling_code?: WireCallingCode | null };
  created_at: string;
  expires_at: string;
  decision?: { at: string; key: string; person: string; note: string; budget?: { scope: string; uses: number; used: number; until: string } | null } | null;
  granted_by?: string | null;
  started_at?: string | null;
  ended_at?: string | null;
  outcome?: string | null;
}

/** A volume. */
export interface WireVolume {
  id: string;
  name: string;
  bytes: number;
  tenant: string;
  created_at: string;
  sandboxes: string[];
}
