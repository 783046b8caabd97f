// Conversions from the REST interface's types to the SDK's.

import { decodeData, fromBase64, text } from "./bytes.js";
import { InvalidArgumentError } from "./errors.js";
import { checkMapping, known, names } from "./options.js";
import type { ApprovalInfo, ApprovalRule, ApprovalState, BudgetScope, FileInfo, FileKind, FileMode, ImageInfo, KeyInfo, Limits, Metrics, Network, OnTimeout, Outcome, PortInfo, ProcessInfo, Quotas, Role, SandboxInfo, SandboxState, SecretInfo, TemplateInfo, Usage, VolumeInfo } from "./types.js";
import type { WireApproval, WireFile, WireImage, WireKey, WireMetrics, WireOutcome, WirePort, WireProcess, WireQuotas, WireSandbox, WireSecret, WireTemplate, WireUsage, WireVolume } from "./wire.js";

const QUOTA_NAMES = names<Quotas>({ sandboxes: true, memoryBytes: true, diskBytes: true, cpuSecondsPerHour: true, executionsPerMinute: true, network: true, storedSecrets: true });

/** Returns an argument that must be a network policy. */
export function checkNetwork(network: Network | undefined): Network | undefined {
  return typeof network === "string" ? network : checkMapping("network", network, '{ presets: ["pip"] }');
}

/** Seconds for the wire. */
export function seconds(field: string, milliseconds: number | undefined): number | undefined {
  if (milliseconds === undefined) {
    return undefined;
  }
  if (typeof milliseconds !== "number" || !(milliseconds >= 0 && milliseconds < Infinity)) {
    throw new InvalidArgumentError(`${field} is ${JSON.stringify(milliseconds)}; it has to be a number of milliseconds from 0, such as ${inMilliseconds(milliseconds)}`, { field });
  }
  return milliseconds / 1000;
}

/** Returns a span such as `"10m"` as milliseconds, or an example if it is none. */
function inMilliseconds(span: unknown): string {
  const units: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };
  const [, count, unit] = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*$/.exec(String(span)) ?? [];
  return unit === undefined ? "60_000 for a minute" : `${Number(count) * (units[unit] ?? 1)} for ${JSON.stringify(span)}`;
}

/** Permission bits for the wire: four octal digits. */
export function modeText(mode: FileMode | undefined): string | undefined {
  if (mode === undefined) {
    return undefined;
  }
  const valid = typeof mode === "number" ? Number.isInteger(mode) && mode >= 0 && mode <= 0o7777 : /^[0-7]{3,5}$/.test(mode);
  if (!valid) {
    throw new InvalidArgumentError(`mode is ${String(mode)}; it must be a number such as 0o644, or a string such as "0644"`, { field: "mode" });
  }
  return typeof mode === "number" ? mode.toString(8).padStart(4, "0") : mode;
}

/** Limits for the wire. */
export function limitsToWire(limits: Limits | undefined): Record<string, unknown> | undefined {
  if (limits === undefined) {
    return undefined;
  }
  const { timeoutMs, openFiles, ...same } = checkMapping("limits", limits, '{ memory: "1g" }');
  return { ...same, timeout: seconds("limits.timeoutMs", timeoutMs), open_files: openFiles };
}

/** A time. */
export function date(text: string): Date {
  return new Date(text);
}

/** A time, if it is set. */
export function dateOrNull(text: string | null | undefined): Date | null {
  return text === null || text === undefined ? null : new Date(text);
}

function milliseconds(span: number | null | undefined): number | null {
  return span === null || span === undefined ? null : span * 1000;
}

export function sandboxInfo(wire: WireSandbox): SandboxInfo {
  const { limits } = wire;
  return {
    sandboxId: wire.id,
    name: wire.name ?? null,
    state: wire.state as SandboxState,
    template: wire.template,
    labels: wire.labels,
    createdAt: date(wire.created_at),
    startedAt: dateOrNull(wire.started_at),
    expiresAt: dateOrNull(wire.expires_at),
    idleTimeoutMs: milliseconds(wire.idle_timeout_s),
    onTimeout: wire.on_timeout as OnTimeout,
    autoResume: wire.auto_resume,
    pausedAt: dateOrNull(wire.paused_at),
    heldBy: wire.held_by ?? null,
    endedAt: dateOrNull(wire.ended_at),
    reason: wire.reason ?? null,
    engine: wire.engine,
    limits: {
      memoryBytes: limits.memory_bytes ?? null,
      cpus: limits.cpus ?? null,
      timeoutMs: milliseconds(limits.timeout_s),
      pids: limits.pids ?? null,
      tmpBytes: limits.tmp_bytes ?? null,
      diskBytes: limits.disk_bytes ?? null,
      inodes: limits.inodes ?? null,
      outputBytes: limits.output_bytes ?? null,
      openFiles: limits.open_files ?? null,
    },
    network: wire.network,
    isolation: wire.isolation ?? null,
    home: wire.home,
    hostname: wire.hostname,
    user: wire.user ?? null,
    ports: wire.ports ?? [],
    volumes: (wire.volumes ?? []).map(({ id, name, path, mode }) => ({ volumeId: id, name, path, mode: mode as "rw" | "ro" })),
    mounts: wire.mounts ?? [],
    host: wire.host ?? null,
    pooled: wire.pooled,
    startMs: wire.start_ms ?? null,
    tenant: wire.tenant,
    key: wire.key ?? null,
  };
}

export function outcome(wire: WireOutcome): Outcome {
  return wire as Outcome;
}

export function processInfo(wire: WireProcess): ProcessInfo {
  return {
    process: wire.process,
    pid: wire.pid,
    argv: wire.argv,
    running: wire.running,
    exitCode: wire.exit_code ?? null,
    signal: wire.signal ?? null,
    outcome: wire.outcome ? outcome(wire.outcome) : null,
    stdoutBytes: wire.stdout_bytes,
    stderrBytes: wire.stderr_bytes,
    terminalBytes: wire.terminal_bytes,
  };
}

export function fileInfo(wire: WireFile): FileInfo {
  return {
    name: wire.path.slice(wire.path.lastIndexOf("/") + 1),
    path: wire.path,
    ...(wire.path_base64 === undefined || wire.path_base64 === null ? {} : { pathBytes: fromBase64(wire.path_base64) }),
    kind: wire.kind as FileKind,
    size: wire.bytes,
    mode: parseInt(wire.mode, 8),
    modifiedAt: date(wire.modified_at),
    ...(wire.symlink_target === undefined || wire.symlink_target === null ? {} : { symlinkTarget: wire.symlink_target }),
  };
}

export function templateInfo(wire: WireTemplate): TemplateInfo {
  return {
    templateId: wire.id,
    snapshotId: wire.id,
    name: wire.name ?? null,
    kind: wire.kind as TemplateInfo["kind"],
    size: wire.bytes ?? null,
    digest: wire.digest ?? null,
    createdAt: dateOrNull(wire.created_at),
    source: wire.source ?? null,
    note: wire.note ?? null,
    base: wire.base ?? null,
    warm: wire.warm ?? [],
    parent: wire.parent ?? null,
    steps: (wire.steps ?? []).map(({ kind, summary }) => ({ kind, summary })),
    limits: wire.limits ?? {},
    envs: wire.env ?? {},
    image: wire.image ? imageInfo(wire.image) : null,
    machine: wire.machine ?? false,
    start: wire.start ?? null,
    ready: wire.ready ?? null,
    workdir: wire.workdir ?? null,
  };
}

function imageInfo(wire: WireImage): ImageInfo {
  return {
    digest: wire.digest,
    imported: wire.imported ?? false,
    layers: (wire.layers ?? []).map(({ digest, bytes }) => ({ digest, size: bytes ?? null })),
    envs: wire.env ?? [],
    workdir: wire.workdir ?? null,
    user: wire.user ?? null,
    entrypoint: wire.entrypoint ?? [],
    cmd: wire.cmd ?? [],
    volumes: wire.volumes ?? [],
    ports: wire.ports ?? [],
    stopSignal: wire.stop_signal ?? null,
    ignored: wire.ignored ?? [],
  };
}

export function volumeInfo(wire: WireVolume): VolumeInfo {
  return { volumeId: wire.id, name: wire.name, size: wire.bytes, tenant: wire.tenant, createdAt: date(wire.created_at), sandboxes: wire.sandboxes };
}

export function portInfo(wire: WirePort): PortInfo {
  return { port: wire.port, public: wire.public, url: wire.url ?? null, pathUrl: wire.path_url };
}

export function metrics(wire: WireMetrics): Metrics {
  return {
    at: date(wire.at),
    cpuSeconds: wire.cpu_s ?? null,
    memoryBytes: wire.memory_bytes ?? null,
    memoryPeakBytes: wire.memory_peak_bytes ?? null,
    memoryLimitBytes: wire.memory_limit_bytes ?? null,
    cpus: wire.cpus ?? null,
    pids: wire.pids ?? null,
    pidsLimit: wire.pids_limit ?? null,
    disks: wire.disks.map((disk) => ({
      path: disk.path,
      bytesUsed: disk.bytes_used,
      bytesTotal: disk.bytes_total,
      inodesUsed: disk.inodes_used,
      inodesTotal: disk.inodes_total,
    })),
    oomKills: wire.oom_kills ?? null,
    uptimeMs: wire.uptime_s * 1000,
  };
}

export function quotas(wire: WireQuotas | null | undefined): Quotas {
  return {
    sandboxes: wire?.sandboxes ?? null,
    memoryBytes: wire?.memory_bytes ?? null,
    diskBytes: wire?.disk_bytes ?? null,
    cpuSecondsPerHour: wire?.cpu_seconds_per_hour ?? null,
    executionsPerMinute: wire?.executions_per_minute ?? null,
    network: wire?.network ?? null,
    storedSecrets: wire?.stored_secrets ?? null,
  };
}

export function quotasToWire(given: Quotas | undefined): WireQuotas | undefined {
  if (given === undefined) {
    return undefined;
  }
  // A name that is left out would be a quota that is unlimited.
  known("quotas", checkMapping("quotas", given, "{ sandboxes: 10 }"), QUOTA_NAMES);
  return {
    sandboxes: given.sandboxes,
    memory_bytes: given.memoryBytes,
    disk_bytes: given.diskBytes,
    cpu_seconds_per_hour: given.cpuSecondsPerHour,
    executions_per_minute: given.executionsPerMinute,
    network: given.network,
    stored_secrets: given.storedSecrets,
  };
}

export function secretInfo(wire: WireSecret): SecretInfo {
  const { id, name, version, metadata, hosts, header } = wire;
  return { secretId: id, name, version, hosts: hosts ?? [], header: header ?? null, metadata, createdAt: date(wire.created_at), updatedAt: date(wire.updated_at) };
}

/** Converts the usage of a key; that of a server which does not say it is none. */
export function usage(wire: WireUsage | undefined): Usage {
  return {
    sandboxes: wire?.sandboxes ?? 0,
    memoryBytes: wire?.memory_bytes ?? 0,
    diskBytes: wire?.disk_bytes ?? 0,
    cpuSeconds: wire?.cpu_seconds ?? 0,
  };
}

export function keyInfo(wire: WireKey): KeyInfo {
  return {
    keyId: wire.id,
    hint: wire.hint,
    name: wire.name ?? null,
    role: wire.role as Role,
    tenant: wire.tenant,
    quotas: quotas(wire.quotas),
    owner: wire.owner ?? null,
    approval: (wire.approval ?? "never") as ApprovalRule,
    usage: usage(wire.usage),
    createdAt: date(wire.created_at),
    expiresAt: dateOrNull(wire.expires_at),
    revokedAt: dateOrNull(wire.revoked_at),
    lastUsedAt: dateOrNull(wire.last_used_at),
  };
}

export function approvalInfo(wire: WireApproval): ApprovalInfo {
  const { decision } = wire;
  const budget = decision?.budget;
  const code = wire.request.calling_code;
  return {
    approvalId: wire.id,
    state: wire.state as ApprovalState,
    tenant: wire.tenant,
    keyId: wire.key,
    requester: wire.requester,
    digest: wire.digest,
    request: structuredClone(wire.request),
    createdAt: date(wire.created_at),
    expiresAt: date(wire.expires_at),
    decision: !decision
      ? null
      : {
          at: date(decision.at),
          keyId: decision.key,
          person: decision.person,
          note: decision.note,
          budget: !budget ? null : { scope: budget.scope as BudgetScope, uses: budget.uses, used: budget.used, until: date(budget.until) },
        },
    grantedBy: wire.granted_by ?? null,
    startedAt: dateOrNull(wire.started_at ?? null),
    endedAt: dateOrNull(wire.ended_at ?? null),
    outcome: wire.outcome ?? null,
    callingCode: !code
      ? null
      : {
          sandboxId: code.sandbox,
          context: code.context,
          language: code.language,
          execution: code.execution,
          code: text(decodeData(code.code.encoding, code.code.data)),
          codeBytes: code.code_bytes,
          codeSha256: code.code_sha256,
        },
  };
}
