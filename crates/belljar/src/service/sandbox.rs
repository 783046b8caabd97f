//! `belljar sandbox`: commands on whole sandboxes.

use belljar_api::limits_message;
use belljar_client::v1;

use super::args::SandboxCommand;
use super::link::{Link, is_missing};
use super::show::{Table, distance, print, rough, span, state};
use super::{copy, create, exec, network, ports, process, terminal, values};
use crate::message::{Quit, clean, one_line};
use crate::units::bytes;

/// Maximum number of sandboxes per page of the server.
const PAGE: u32 = 100;

/// Maximum length of a command line in a list, in characters.
const MAX_COMMAND_CHARS: usize = 60;

/// Runs `belljar sandbox`.
pub(crate) async fn run(link: &Link, command: &SandboxCommand) -> Result<u8, Quit> {
    match command {
        SandboxCommand::Create(args) => create::create(link, args).await?,
        SandboxCommand::Exec(args) => return exec::exec(link, args).await,
        SandboxCommand::Shell { user, sandbox, command } => {
            return terminal::shell(link, sandbox, user.as_deref(), command).await;
        }
        SandboxCommand::Cp(args) => return copy::copy(link, args, copy::RemoteKind::Sandbox).await,
        SandboxCommand::Ls { state, label, all } => list(link, state, label, *all).await?,
        SandboxCommand::Info { sandbox } => info(link, sandbox).await?,
        SandboxCommand::Logs { sandbox, follow } => logs(link, sandbox, *follow).await?,
        SandboxCommand::Stats { sandbox } => stats(link, sandbox).await?,
        SandboxCommand::Ps { sandbox } => processes(link, sandbox).await?,
        SandboxCommand::Process(command) => return process::process(link, command).await,
        SandboxCommand::Pause { sandboxes } => {
            for sandbox in sandboxes {
                let request = v1::PauseSandboxRequest { sandbox: sandbox.clone(), ..Default::default() };
                print_changed(link, &link.client.pause(request).await?)?;
            }
        }
        SandboxCommand::Resume { sandboxes } => {
            for sandbox in sandboxes {
                let request = v1::ResumeSandboxRequest { sandbox: sandbox.clone(), ..Default::default() };
                print_changed(link, &link.client.resume(request).await?)?;
            }
        }
        SandboxCommand::Set { .. } => set(link, command).await?,
        SandboxCommand::Net { sandbox, command } => network::network(link, sandbox, command).await?,
        SandboxCommand::Snapshot { sandbox, name, note } => {
            let request = v1::SnapshotSandboxRequest {
                sandbox: sandbox.clone(),
                name: name.clone().unwrap_or_default(),
                note: note.clone().unwrap_or_default(),
                ..Default::default()
            };
            let template = link.with_progress("keeping the files", link.client.snapshot(request)).await?;
            if !link.json(&template)? {
                print(&format!("{}\n", template.id))?;
                link.remark(&format!("kept {} as a template", bytes(template.bytes)));
            }
        }
        SandboxCommand::Fork { sandbox, count, timeout, label } => {
            return fork(link, sandbox, *count, timeout.as_deref(), label).await;
        }
        SandboxCommand::Port { .. } => ports::port(link, command).await?,
        SandboxCommand::PortForward { sandbox, ports } => ports::forward(link, sandbox, ports).await?,
        SandboxCommand::Kill { sandboxes, all, label } => return kill(link, sandboxes, *all, label).await,
    }
    Ok(0)
}

/// Prints a changed sandbox: as JSON, or only its id.
pub(crate) fn print_changed(link: &Link, info: &v1::SandboxInfo) -> Result<(), Quit> {
    if !link.json(info)? {
        print(&format!("{}\n", info.id))?;
    }
    Ok(())
}

/// Returns all sandboxes that match.
/// Finds the sandboxes in these states with these labels; `all` includes those that have ended.
pub(super) async fn find_all(
    link: &Link,
    states: &[String],
    labels: &[String],
    all: bool,
) -> Result<Vec<v1::SandboxInfo>, Quit> {
    let mut selected = Vec::new();
    for text in states {
        selected.push(known_state(text)?.into());
    }
    if all && states.is_empty() {
        use v1::SandboxState as State;
        let every = [
            State::SANDBOX_STATE_CREATING,
            State::SANDBOX_STATE_RUNNING,
            State::SANDBOX_STATE_PAUSED,
            State::SANDBOX_STATE_STOPPING,
            State::SANDBOX_STATE_GONE,
        ];
        for state in every {
            selected.push(state.into());
        }
    }
    let mut request = v1::ListSandboxesRequest {
        states: selected,
        labels: values::labels(labels)?.into_iter().collect(),
        limit: PAGE,
        ..Default::default()
    };
    let mut sandboxes = Vec::new();
    loop {
        let page = link.client.list(request.clone()).await?;
        sandboxes.extend(page.sandboxes);
        if page.next_cursor.is_empty() {
            return Ok(sandboxes);
        }
        request.cursor = page.next_cursor;
    }
}

fn known_state(text: &str) -> Result<v1::SandboxState, Quit> {
    use v1::SandboxState as State;
    Ok(match text {
        "creating" => State::SANDBOX_STATE_CREATING,
        "running" => State::SANDBOX_STATE_RUNNING,
        "paused" => State::SANDBOX_STATE_PAUSED,
        "stopping" => State::SANDBOX_STATE_STOPPING,
        "gone" => State::SANDBOX_STATE_GONE,
        _ => {
            let text =
                format!("--state: {text:?} is not allowed; give creating, running, paused, stopping or gone");
            return Err(Quit::Usage(text));
        }
    })
}

async fn list(link: &Link, states: &[String], labels: &[String], all: bool) -> Result<(), Quit> {
    let sandboxes = find_all(link, states, labels, all).await?;
    let mut table = Table::new(&["ID", "NAME", "STATE", "TEMPLATE", "CREATED", "ENDS", "LABELS"]);
    for info in sandboxes {
        if link.json(&info)? {
            continue;
        }
        let labels: std::collections::BTreeMap<_, _> = info.labels.iter().collect();
        let labels: Vec<String> = labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        let ends = if state(&info) == "gone" { info.reason.clone() } else { end(&info) };
        table.row(vec![
            info.id.clone(),
            if info.name.is_empty() { "-".to_owned() } else { info.name.clone() },
            state(&info).to_owned(),
            info.template.clone(),
            distance(&info.created_at),
            ends,
            labels.join(","),
        ]);
    }
    link.list(&table, 0)
}

/// Returns when a sandbox ends, or what it waits for.
fn end(info: &v1::SandboxInfo) -> String {
    let at = distance(&info.expires_at);
    match span(&info.idle_timeout) {
        _ if !info.held_by.is_empty() => format!("waits for {}", info.held_by),
        Some(idle) => format!("{at}, or {} unused", rough(idle)),
        None => at,
    }
}

async fn info(link: &Link, sandbox: &str) -> Result<(), Quit> {
    let request = v1::GetSandboxRequest { sandbox: sandbox.to_owned(), ended: true, ..Default::default() };
    let info = link.client.get(request).await?;
    if link.json(&info)? {
        return Ok(());
    }
    if link.quiet {
        return print(&format!("{}\n", info.id));
    }
    let limits = info.limits.as_option().cloned().unwrap_or_default();
    let ports: Vec<String> = info.ports.iter().map(ToString::to_string).collect();
    let mut table = Table::new(&["id", &info.id]);
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            table.row(vec![name.to_owned(), value]);
        }
    };
    row("name", info.name.clone());
    row("state", state(&info).to_owned());
    row("reason", info.reason.clone());
    row("template", info.template.clone());
    row("created", distance(&info.created_at));
    match info.ended_at.is_set() {
        true => row("ended", distance(&info.ended_at)),
        false => row("ends", end(&info)),
    }
    row("engine", info.engine.clone());
    row("network", info.network.clone());
    row("memory", limits.memory_bytes.map(bytes).unwrap_or_default());
    row("cpus", limits.cpus.map(|cpus| cpus.to_string()).unwrap_or_default());
    row("pids", limits.pids.map(|pids| pids.to_string()).unwrap_or_default());
    row("disk", limits.disk_bytes.map(bytes).unwrap_or_default());
    row("ports", ports.join(", "));
    for volume in &info.volumes {
        row("volume", format!("{}:{}:{}", volume.name, volume.path, volume.mode));
    }
    for mount in &info.mounts {
        row("mount", mount.clone());
    }
    for (key, value) in info.labels.iter().collect::<std::collections::BTreeMap<_, _>>() {
        row("label", format!("{key}={value}"));
    }
    for layer in info.isolation.as_option().iter().flat_map(|isolation| &isolation.layers) {
        row("wall", format!("{} ({}) {}", layer.name, layer.state, layer.detail));
    }
    table.print()
}

async fn logs(link: &Link, sandbox: &str, follow: bool) -> Result<(), Quit> {
    let request = v1::SandboxLogsRequest { sandbox: sandbox.to_owned(), follow, ..Default::default() };
    let mut entries = link.client.logs(request).await?;
    while let Some(entry) = entries.next().await? {
        if link.json(&entry)? {
            continue;
        }
        let process = entry.process.map(|process| format!(" process {process}")).unwrap_or_default();
        if entry.event == "output" {
            // The last output of programs, unchanged.
            print(&format!("{:>12}  {}\n", distance(&entry.at), entry.event))?;
            for line in clean(&entry.detail).lines() {
                print(&format!("              | {line}\n"))?;
            }
            continue;
        }
        let detail = one_line(&entry.detail, 200);
        print(&format!("{:>12}  {}{process}  {detail}\n", distance(&entry.at), entry.event))?;
    }
    Ok(())
}

async fn stats(link: &Link, sandbox: &str) -> Result<(), Quit> {
    let request = v1::SandboxMetricsRequest { sandbox: sandbox.to_owned(), ..Default::default() };
    let metrics = link.client.metrics(request).await?;
    if link.json(&metrics)? {
        return Ok(());
    }
    let known = |value: Option<String>| value.unwrap_or_else(|| "not known".to_owned());
    let mut table = Table::new(&["", "USED", "LIMIT"]);
    table.row(vec![
        "memory".to_owned(),
        known(metrics.memory_bytes.map(bytes)),
        bytes(metrics.memory_limit_bytes),
    ]);
    table.row(vec!["memory, peak".to_owned(), known(metrics.memory_peak_bytes.map(bytes)), String::new()]);
    let cpu = span(&metrics.cpu_time).map(|cpu| format!("{:.2} s", cpu.as_secs_f64()));
    table.row(vec!["processor".to_owned(), known(cpu), format!("{} at once", metrics.cpus)]);
    table.row(vec![
        "processes".to_owned(),
        known(metrics.pids.map(|pids| pids.to_string())),
        metrics.pids_limit.to_string(),
    ]);
    for disk in &metrics.disks {
        table.row(vec![format!("disk {}", disk.path), bytes(disk.bytes_used), bytes(disk.bytes_total)]);
    }
    table.row(vec!["up".to_owned(), known(span(&metrics.uptime).map(rough)), String::new()]);
    table.print()
}

async fn processes(link: &Link, sandbox: &str) -> Result<(), Quit> {
    let mut table = Table::new(&["PROCESS", "PID", "STATE", "COMMAND"]);
    for process in link.client.guest(sandbox)?.list_processes().await? {
        let ended = process.exited.as_option();
        let argv: Vec<_> =
            process.argv.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let shown = serde_json::json!({
            "process": process.id,
            "pid": process.pid,
            "argv": argv,
            "running": process.running,
            "exit_code": ended.filter(|exited| exited.signal == 0).map(|exited| exited.code),
            "signal": ended.filter(|exited| exited.signal > 0).map(|exited| exited.signal),
            "stdout_bytes": process.stdout_bytes,
            "stderr_bytes": process.stderr_bytes,
        });
        if link.json(&shown)? {
            continue;
        }
        let state = match ended {
            _ if process.running => "running".to_owned(),
            Some(exited) if exited.signal > 0 => format!("signal {}", exited.signal),
            Some(exited) => format!("exited {}", exited.code),
            None => "ended".to_owned(),
        };
        table.row(vec![
            process.id.to_string(),
            process.pid.to_string(),
            state,
            one_line(&argv.join(" "), MAX_COMMAND_CHARS),
        ]);
    }
    link.list(&table, 0)
}

async fn set(link: &Link, command: &SandboxCommand) -> Result<(), Quit> {
    let SandboxCommand::Set { sandbox, timeout, idle_timeout, on_timeout, limits, label } = command else {
        return Ok(());
    };
    let (removed, kept): (Vec<String>, Vec<String>) =
        label.iter().cloned().partition(|text| text.ends_with('-') && !text.contains('='));
    let limits = limits_message(&limits.file()?);
    let update = v1::UpdateSandboxRequest {
        sandbox: sandbox.clone(),
        set_labels: values::labels(&kept)?.into_iter().collect(),
        remove_labels: removed.iter().map(|text| text.trim_end_matches('-').to_owned()).collect(),
        limits,
        idle_timeout: values::span("idle-timeout", idle_timeout.as_deref())?,
        on_timeout: values::on_timeout(on_timeout.as_deref())?.into(),
        ..Default::default()
    };
    let changes =
        update.limits.is_set() || !label.is_empty() || idle_timeout.is_some() || on_timeout.is_some();
    if !changes && timeout.is_none() {
        return Err(Quit::Usage("nothing to change; see belljar sandbox set --help".to_owned()));
    }
    let mut info = None;
    if changes {
        info = Some(link.client.update(update).await?);
    }
    if let Some(timeout) = timeout {
        let request = v1::SetTimeoutRequest {
            sandbox: sandbox.clone(),
            timeout: values::span("timeout", Some(timeout))?,
            ..Default::default()
        };
        info = Some(link.client.set_timeout(request).await?);
    }
    info.map_or(Ok(()), |info| print_changed(link, &info))
}

async fn fork(
    link: &Link,
    sandbox: &str,
    count: u32,
    timeout: Option<&str>,
    labels: &[String],
) -> Result<u8, Quit> {
    use v1::__buffa::oneof::fork_sandbox_response::Result as Forked;
    let request = v1::ForkSandboxRequest {
        sandbox: sandbox.to_owned(),
        count,
        timeout: values::span("timeout", timeout)?,
        labels: values::labels(labels)?.into_iter().collect(),
        ..Default::default()
    };
    const COPYING: &str = "copying the files";
    let mut forks = link.with_progress(COPYING, link.client.fork(request)).await?;
    let mut failed = 0;
    while let Some(fork) = link.with_progress(COPYING, forks.next()).await? {
        match fork.result {
            Some(Forked::Sandbox(info)) => print_changed(link, &info)?,
            Some(Forked::Problem(problem)) => {
                failed += 1;
                crate::message::say(&problem.detail);
            }
            None => {}
        }
    }
    Ok(if failed == 0 { 0 } else { crate::message::FAILED })
}

async fn kill(link: &Link, sandboxes: &[String], all: bool, labels: &[String]) -> Result<u8, Quit> {
    let named = if all || !labels.is_empty() {
        find_all(link, &[], labels, false).await?.into_iter().map(|info| info.id).collect()
    } else {
        sandboxes.to_vec()
    };
    let mut status = 0;
    for sandbox in named {
        let request = v1::KillSandboxRequest { sandbox: sandbox.clone(), ..Default::default() };
        match link.client.kill(request).await {
            Ok(_) => print(&format!("{sandbox}\n"))?,
            // A listed sandbox that has ended in the meantime is fine; a named one should have existed.
            Err(error) if is_missing(&error) && (all || !labels.is_empty()) => {}
            Err(error) if is_missing(&error) => {
                status = super::with_hint(error.into()).report();
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(status)
}
