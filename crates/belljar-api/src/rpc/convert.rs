//! Conversion between values of the model and the keeper, and messages.

use std::time::Duration;

use belljar_engine::v1;
use belljar_keeper as keeper;
use belljar_model::{
    Cpus, DiskSize, Inodes, Isolation, LayerState, Limits, LimitsFile, Memory, ModelError, NetworkEvent,
    NetworkRecord, OpenFiles, Outcome, OutputSize, Pids, SandboxState, SecretFile, StreamOutput, Timeout,
    TmpSize,
};
use belljar_proto::{MessageField, well_known};
use jiff::Timestamp;

use crate::problem::Problem;

/// Converts a time span to a message.
pub(super) fn duration(duration: Duration) -> well_known::Duration {
    duration.into()
}

/// Converts what a call waits for to a message.
pub(super) fn waiting(waiting: keeper::Waiting) -> v1::Waiting {
    let keeper::Waiting { approval, expires_at } = waiting;
    v1::Waiting { approval, expires_at: time(expires_at).into(), ..Default::default() }
}

/// Converts a time to a message.
pub(super) fn time(time: Timestamp) -> well_known::Timestamp {
    well_known::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond(), ..Default::default() }
}

/// Parses an optional time span of a request.
pub(super) fn span(
    field: &str,
    given: &MessageField<well_known::Duration>,
) -> Result<Option<Duration>, Problem> {
    let Some(given) = given.as_option() else { return Ok(None) };
    let refused = || Problem::field(field, "invalid time span; give 0 s or more");
    given.clone().try_into().map(Some).map_err(|_| refused())
}

/// Converts an empty text of a request, which means not given, to `None`.
pub(super) fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Parses a port of a request.
pub(super) fn port(port: u32) -> Result<u16, Problem> {
    let fits = u16::try_from(port).ok().filter(|port| *port != 0);
    fits.ok_or_else(|| Problem::field("port", format!("{port} is not allowed; give 1 to 65535")))
}

/// Parses an enumeration's value of a request. Values unknown to this server are refused.
pub(super) fn parse_enum<E: belljar_proto::Enumeration + Copy>(
    field: &str,
    value: belljar_proto::EnumValue<E>,
) -> Result<E, Problem> {
    value.as_known().ok_or_else(|| Problem::field(field, format!("unknown value {}", value.to_i32())))
}

/// Checks a path of a request.
pub(super) fn path(field: &str, path: &[u8]) -> Result<(), Problem> {
    let why = if path.is_empty() {
        "it is empty; give a path"
    } else if path.len() > 4096 {
        "it is too long; at most 4096 bytes are allowed"
    } else if path.contains(&0) {
        "a NUL byte is not allowed"
    } else {
        return Ok(());
    };
    Err(Problem::field(field, why))
}

/// Parses limits of a request.
pub(super) fn limits_file(limits: v1::SandboxLimits) -> Result<LimitsFile, Problem> {
    fn read<N, L>(given: Option<N>, new: fn(N) -> Result<L, ModelError>) -> Result<Option<L>, Problem> {
        Ok(given.map(new).transpose()?)
    }
    Ok(LimitsFile {
        memory: read(limits.memory_bytes, Memory::new)?,
        cpus: read(limits.cpus, Cpus::from_number)?,
        timeout: read(span("limits.timeout", &limits.timeout)?, Timeout::new)?,
        pids: read(limits.pids, Pids::new)?,
        tmp: read(limits.tmp_bytes, TmpSize::new)?,
        disk: read(limits.disk_bytes, DiskSize::new)?,
        inodes: read(limits.inodes, Inodes::new)?,
        output: read(limits.output_bytes, OutputSize::new)?,
        open_files: read(limits.open_files, OpenFiles::new)?,
        log: None,
    })
}

/// Converts limits to a message, which is not set if no limit is.
pub fn limits_message(limits: &LimitsFile) -> MessageField<v1::SandboxLimits> {
    if *limits == LimitsFile::default() {
        return MessageField::none();
    }
    let timeout = limits.timeout.map(|timeout| duration(timeout.duration()));
    MessageField::some(v1::SandboxLimits {
        memory_bytes: limits.memory.map(Memory::bytes),
        cpus: limits.cpus.map(Cpus::get),
        timeout: timeout.into(),
        pids: limits.pids.map(Pids::get),
        tmp_bytes: limits.tmp.map(TmpSize::bytes),
        disk_bytes: limits.disk.map(DiskSize::bytes),
        inodes: limits.inodes.map(Inodes::get),
        output_bytes: limits.output.map(OutputSize::bytes),
        open_files: limits.open_files.map(OpenFiles::get),
        ..Default::default()
    })
}

/// Converts a sandbox. `domain` is the domain of the host names of its ports.
pub(super) fn sandbox(info: keeper::SandboxInfo, domain: Option<&str>) -> v1::SandboxInfo {
    let host = domain.map(|domain| format!("{{port}}-{}.{domain}", info.id));
    v1::SandboxInfo {
        id: info.id.to_string(),
        name: info.name.unwrap_or_default(),
        state: state(info.state).into(),
        template: info.template,
        labels: info.labels.into_iter().collect(),
        created_at: time(info.created_at).into(),
        started_at: info.started_at.map(time).into(),
        expires_at: info.expires_at.map(time).into(),
        idle_timeout: info.idle_timeout.map(duration).into(),
        on_timeout: match info.on_timeout {
            keeper::TimeoutAction::Kill => v1::TimeoutAction::TIMEOUT_ACTION_KILL,
            keeper::TimeoutAction::Pause => v1::TimeoutAction::TIMEOUT_ACTION_PAUSE,
        }
        .into(),
        auto_resume: info.auto_resume,
        paused_at: info.paused_at.map(time).into(),
        ended_at: info.ended_at.map(time).into(),
        reason: info.reason.unwrap_or_default(),
        held_by: info.held_by.unwrap_or_default(),
        engine: info.spec.engine.as_str().to_owned(),
        limits: limits_message(&LimitsFile::from(&info.spec.limits)),
        network: info.spec.network.as_str().to_owned(),
        isolation: info.isolation.map(isolation).into(),
        home: info.home,
        hostname: info.spec.hostname.as_str().to_owned(),
        ports: info.ports.into_iter().map(u32::from).collect(),
        host: host.unwrap_or_default(),
        pooled: info.pooled,
        start_time: duration(info.start).into(),
        tenant: info.tenant,
        key: info.key,
        network_policy: network_policy(&info.spec.network).into(),
        volumes: info.spec.volumes.iter().map(volume).collect(),
        mounts: info.spec.mounts.iter().map(ToString::to_string).collect(),
        user: info.spec.user.unwrap_or_default(),
        ..Default::default()
    }
}

/// Converts a volume to be mounted.
pub(super) fn volume_file(volume: v1::VolumeMount) -> belljar_model::VolumeFile {
    let mode = Some(volume.mode).filter(|mode| !mode.is_empty());
    belljar_model::VolumeFile { name: volume.name, path: volume.path, mode }
}

fn volume(volume: &belljar_model::VolumeMount) -> v1::VolumeMount {
    v1::VolumeMount {
        name: volume.name.clone(),
        path: volume.path.to_string_lossy().into_owned(),
        mode: volume.mode.as_str().to_owned(),
        id: volume.image.as_ref().map(|image| image.id.to_string()).unwrap_or_default(),
        ..Default::default()
    }
}

fn network_policy(policy: &belljar_model::NetworkPolicy) -> v1::NetworkPolicy {
    let shown = policy.without_values();
    let of_host = |(host, rules)| (host, v1::NetworkRequests { rules, ..Default::default() });
    let secret = |secret: SecretFile| {
        let [host, header, value] = [secret.host, secret.header, secret.value].map(Option::unwrap_or_default);
        v1::NetworkSecret { host, header, value, ..Default::default() }
    };
    v1::NetworkPolicy {
        mode: policy.as_str().to_owned(),
        presets: shown.presets.unwrap_or_default(),
        allow: shown.allow.unwrap_or_default(),
        deny: shown.deny.unwrap_or_default(),
        requests: shown.requests.unwrap_or_default().into_iter().map(of_host).collect(),
        tls: shown.tls.unwrap_or_default().into_iter().collect(),
        secrets: shown.secrets.into_iter().flatten().map(|(name, one)| (name, secret(one))).collect(),
        headers: shown.headers.into_iter().flatten().map(secret).collect(),
        ..Default::default()
    }
}

/// Converts a record of the network log.
pub(super) fn network_record(record: NetworkRecord) -> v1::NetworkRecord {
    let NetworkRecord { number, unix_ms, event } = record;
    let at = Duration::from_millis(unix_ms);
    let at = well_known::Timestamp {
        seconds: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(at.subsec_nanos()).unwrap_or(0),
        ..Default::default()
    };
    let known = v1::NetworkRecord { number, at: at.into(), ..Default::default() };
    match event {
        NetworkEvent::Lookup { host, rule, reason } => {
            v1::NetworkRecord { event: "lookup".to_owned(), host, rule, reason, ..known }
        }
        NetworkEvent::Connection { flow, host, port, allowed, address, rule, reason } => v1::NetworkRecord {
            event: "connection".to_owned(),
            flow: Some(flow),
            host,
            port: port.into(),
            allowed: Some(allowed),
            address: address.map(|address| address.to_string()).unwrap_or_default(),
            rule,
            reason,
            ..known
        },
        NetworkEvent::Ended { flow, host, port, sent, received, error } => v1::NetworkRecord {
            event: "ended".to_owned(),
            flow: Some(flow),
            host,
            port: port.into(),
            reason: error.unwrap_or_default(),
            sent: Some(sent),
            received: Some(received),
            ..known
        },
    }
}

fn state(state: SandboxState) -> v1::SandboxState {
    match state {
        SandboxState::Creating => v1::SandboxState::SANDBOX_STATE_CREATING,
        SandboxState::Running => v1::SandboxState::SANDBOX_STATE_RUNNING,
        SandboxState::Paused => v1::SandboxState::SANDBOX_STATE_PAUSED,
        SandboxState::Stopping => v1::SandboxState::SANDBOX_STATE_STOPPING,
        SandboxState::Gone => v1::SandboxState::SANDBOX_STATE_GONE,
    }
}

/// Parses a state to filter by.
pub(super) fn parse_state(state: v1::SandboxState) -> Result<SandboxState, Problem> {
    Ok(match state {
        v1::SandboxState::SANDBOX_STATE_CREATING => SandboxState::Creating,
        v1::SandboxState::SANDBOX_STATE_RUNNING => SandboxState::Running,
        v1::SandboxState::SANDBOX_STATE_PAUSED => SandboxState::Paused,
        v1::SandboxState::SANDBOX_STATE_STOPPING => SandboxState::Stopping,
        v1::SandboxState::SANDBOX_STATE_GONE => SandboxState::Gone,
        v1::SandboxState::SANDBOX_STATE_UNSPECIFIED => {
            return Err(Problem::field(
                "states",
                "UNSPECIFIED is not allowed; leave states empty to see all but GONE",
            ));
        }
    })
}

/// Parses the optional action on timeout.
pub(super) fn timeout_action(
    value: belljar_proto::EnumValue<v1::TimeoutAction>,
) -> Result<Option<keeper::TimeoutAction>, Problem> {
    Ok(match parse_enum("on_timeout", value)? {
        v1::TimeoutAction::TIMEOUT_ACTION_UNSPECIFIED => None,
        v1::TimeoutAction::TIMEOUT_ACTION_KILL => Some(keeper::TimeoutAction::Kill),
        v1::TimeoutAction::TIMEOUT_ACTION_PAUSE => Some(keeper::TimeoutAction::Pause),
    })
}

fn isolation(isolation: Isolation) -> v1::SandboxIsolation {
    let layers = isolation.layers.into_iter().map(|layer| v1::IsolationLayer {
        name: layer.name.to_string(),
        state: match layer.state {
            LayerState::InForce => "in_force",
            LayerState::Weaker => "weaker",
            LayerState::Absent => "absent",
        }
        .to_owned(),
        detail: layer.detail,
        ..Default::default()
    });
    v1::SandboxIsolation {
        engine: isolation.engine.to_string(),
        grade: isolation.grade.to_string(),
        tree: isolation.tree.to_string(),
        layers: layers.collect(),
        ..Default::default()
    }
}

/// Converts the resource usage of a sandbox, with its limits.
pub(super) fn metrics(metrics: keeper::SandboxMetrics, allowed: &Limits) -> v1::SandboxMetrics {
    let disks = metrics.disks.into_iter().map(|disk| v1::SandboxDisk {
        path: disk.path,
        bytes_used: disk.bytes_used,
        bytes_total: disk.bytes_total,
        inodes_used: disk.inodes_used,
        inodes_total: disk.inodes_total,
        ..Default::default()
    });
    v1::SandboxMetrics {
        at: time(Timestamp::now()).into(),
        cpu_time: metrics.cpu.map(duration).into(),
        memory_bytes: metrics.memory_bytes,
        memory_peak_bytes: metrics.memory_peak_bytes,
        memory_limit_bytes: allowed.memory.bytes(),
        cpus: allowed.cpus.get(),
        pids: metrics.pids,
        pids_limit: allowed.pids.get(),
        disks: disks.collect(),
        oom_kills: metrics.oom_kills,
        uptime: duration(metrics.uptime).into(),
        ..Default::default()
    }
}

/// Converts an entry of a sandbox's log.
pub(super) fn log_entry(entry: keeper::LogEntry) -> v1::SandboxLogEntry {
    v1::SandboxLogEntry {
        seq: entry.seq,
        at: time(entry.at).into(),
        event: entry.event.into_owned(),
        process: entry.process,
        detail: entry.detail,
        ..Default::default()
    }
}

/// Converts an event.
pub(super) fn event(occurrence: keeper::Occurrence) -> v1::Event {
    let event = match occurrence {
        keeper::Occurrence::Missed(missed) => {
            return v1::Event { kind: "missed".to_owned(), missed, ..Default::default() };
        }
        keeper::Occurrence::Event(event) => keeper::Event::clone(&event),
    };
    v1::Event {
        id: event.id,
        at: time(event.at).into(),
        kind: event.kind.into_owned(),
        tenant: event.tenant,
        sandbox: event.sandbox.map(|id| id.to_string()).unwrap_or_default(),
        labels: event.labels.into_iter().collect(),
        process: event.process,
        detail: event.detail,
        ..Default::default()
    }
}

/// Converts a token.
pub(super) fn token(token: keeper::IssuedToken) -> v1::IssuedToken {
    v1::IssuedToken { token: token.token, expires_at: time(token.expires_at).into(), ..Default::default() }
}

fn step(step: keeper::TemplateStep) -> v1::TemplateStep {
    v1::TemplateStep { kind: step.kind, summary: step.summary, ..Default::default() }
}

/// Converts a template.
pub(super) fn template(info: keeper::TemplateInfo) -> v1::TemplateInfo {
    let kind = match info.kind {
        keeper::TemplateKind::Builtin => v1::TemplateKind::TEMPLATE_KIND_BUILTIN,
        keeper::TemplateKind::Snapshot => v1::TemplateKind::TEMPLATE_KIND_SNAPSHOT,
        keeper::TemplateKind::Built => v1::TemplateKind::TEMPLATE_KIND_BUILT,
    };
    v1::TemplateInfo {
        id: info.id,
        name: info.name.unwrap_or_default(),
        kind: kind.into(),
        source: info.source.unwrap_or_default(),
        digest: info.digest,
        bytes: info.bytes,
        created_at: time(info.created_at).into(),
        note: info.note.unwrap_or_default(),
        base: info.base.to_owned(),
        warm: info.warm,
        parent: info.parent.unwrap_or_default(),
        steps: info.steps.into_iter().map(step).collect(),
        limits: info.limits.into_iter().collect(),
        env: info.env.into_iter().collect(),
        machine: info.machine,
        start: info.start.unwrap_or_default(),
        ready: info.ready.unwrap_or_default(),
        workdir: info.workdir.unwrap_or_default(),
        ..Default::default()
    }
}

/// Maximum number of bytes of each stream in a result; the full output was streamed before.
const MAX_KEPT_BYTES: u64 = 256 * 1024;

/// Converts the result of a command.
pub(super) fn exec_result(result: keeper::ExecResult) -> v1::ExecResult {
    let result = result.truncate(MAX_KEPT_BYTES);
    let session_state = match result.session_kept {
        None => v1::SessionState::SESSION_STATE_UNSPECIFIED,
        Some(true) => v1::SessionState::SESSION_STATE_PRESERVED,
        Some(false) => v1::SessionState::SESSION_STATE_LOST,
    };
    v1::ExecResult {
        process: result.process,
        sandbox: result.sandbox.to_string(),
        outcome: outcome(result.outcome).into(),
        exit_code: result.exit_code,
        signal: result.signal,
        stdout: kept_output(&result.stdout).into(),
        stderr: kept_output(&result.stderr).into(),
        wall_time: duration(result.wall).into(),
        cpu_time: result.cpu.map(duration).into(),
        peak_memory_bytes: result.peak_memory_bytes,
        left_behind: result.left_behind,
        hint: result.hint.unwrap_or_default(),
        session_state: session_state.into(),
        ..Default::default()
    }
}

fn kept_output(output: &StreamOutput) -> v1::KeptOutput {
    v1::KeptOutput {
        data: output.decode().unwrap_or_default().into(),
        total_bytes: output.total_bytes,
        truncated: output.truncated,
        head_bytes: output.kept_head_bytes,
        omitted_bytes: output.omitted_bytes(),
        ..Default::default()
    }
}

fn outcome(outcome: Outcome) -> v1::CommandOutcome {
    use v1::__buffa::oneof::command_outcome::Kind;
    use v1::command_outcome::{Denied, Exited, Infrastructure, Limit, OutOfMemory, Signalled, TimedOut};
    let kind: Kind = match outcome {
        Outcome::Exited { code } => Exited { code, ..Default::default() }.into(),
        Outcome::Signalled { signal, name } => Signalled { signal, name, ..Default::default() }.into(),
        Outcome::TimedOut => TimedOut::default().into(),
        Outcome::OutOfMemory => OutOfMemory::default().into(),
        Outcome::Limit { limit } => Limit { limit: limit.as_str().to_owned(), ..Default::default() }.into(),
        Outcome::Denied { rule } => Denied { rule, ..Default::default() }.into(),
        Outcome::Infrastructure { cause } => Infrastructure { cause, ..Default::default() }.into(),
    };
    v1::CommandOutcome { kind: Some(kind), ..Default::default() }
}
