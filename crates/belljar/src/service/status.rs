//! `belljar status` and `belljar top`.

use std::collections::{BTreeMap, HashMap};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use belljar_client::{ClientError, v1};
use belljar_keeper::Me;
use futures::{StreamExt as _, stream};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;

use super::args::Format;
use super::keys::of_quota;
use super::link::{Link, home};
use super::sandbox::find_all;
use super::server_args::{StatusArgs, TopArgs};
use super::show::{Table, print, rough, span, state};
use super::values;
use crate::message::{Quit, one_line};
use crate::serve::holder;
use crate::signals::{self, Signals};
use crate::stdin::Stdin;
use crate::units::bytes;

/// Exit status if no server runs, or none that can create sandboxes.
const NOT_READY: u8 = 1;

/// Number of sandboxes whose usage is requested at the same time.
const CONCURRENT: usize = 16;

/// Clears a terminal, and moves the cursor to its beginning (ECMA-48: ED, CUP).
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct Engines {
    engines: Vec<Engine>,
}

#[derive(Deserialize, Serialize)]
struct Engine {
    name: String,
    is_default: bool,
    /// A server of an earlier version lists none.
    #[serde(default)]
    obstacles: Vec<Obstacle>,
}

/// What keeps an engine from creating sandboxes.
#[derive(Deserialize, Serialize)]
struct Obstacle {
    name: String,
    detail: String,
    fix: Option<String>,
}

/// What `belljar status` shows.
#[derive(Serialize)]
struct Status {
    server: String,
    /// Path of its Unix socket, if the connection uses it.
    socket: Option<String>,
    /// Its process, if it is that of this user's home.
    pid: Option<u32>,
    version: String,
    ready: bool,
    /// Why it is not ready.
    reason: Option<String>,
    engines: Vec<Engine>,
    /// Sandboxes of the tenant by state.
    sandboxes: BTreeMap<&'static str, u64>,
    #[serde(flatten)]
    me: Me,
}

/// Runs `belljar status`.
pub(crate) async fn status(args: &StatusArgs) -> Result<u8, Quit> {
    if !args.start && !Link::is_running(&args.server)? {
        crate::message::say(
            "no server is running in this home; belljar serve starts one, and so does belljar sandbox create",
        );
        return Ok(NOT_READY);
    }
    let link = Link::open(&args.server).await?;
    let Version { version } = link.client.fetch("/version").await?;
    let reason = match link.client.fetch::<serde_json::Value>("/ready").await {
        Ok(_) => None,
        Err(error @ ClientError::Refused { .. }) => Some(error.to_string()),
        Err(error) => return Err(error.into()),
    };
    let Engines { engines } = link.client.fetch("/v1/engines").await?;
    let obstacle =
        engines.iter().filter(|engine| engine.is_default).find_map(|engine| engine.obstacles.first());
    let reason = reason.or_else(|| {
        let Obstacle { name, detail, fix } = obstacle?;
        let fix = fix.as_ref().map_or_else(String::new, |fix| format!("; {fix}"));
        Some(format!("no sandbox can be created here: {name}: {detail}{fix}"))
    });
    let mut sandboxes = BTreeMap::new();
    for info in find_all(&link, &[], &[], false).await? {
        *sandboxes.entry(state(&info)).or_default() += 1;
    }
    let status = Status {
        server: link.place(),
        socket: link.socket().map(|path| path.display().to_string()),
        pid: if link.is_own { holder(&home(&args.server)?).map(|holder| holder.pid) } else { None },
        version,
        ready: reason.is_none(),
        reason,
        engines,
        sandboxes,
        me: link.client.fetch("/v1/me").await?,
    };
    if !link.json(&status)? {
        show(&status)?;
    }
    Ok(if status.ready { 0 } else { NOT_READY })
}

fn show(status: &Status) -> Result<(), Quit> {
    let mut table = Table::new(&["server", &status.server]);
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    if let Some(pid) = status.pid {
        row("process", format!("{pid}; kill {pid} ends it, and its sandboxes keep running"));
    }
    row("version", status.version.clone());
    row("ready", status.reason.as_ref().map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}")));
    let engines = status.engines.iter().map(|engine| match engine.is_default {
        true => format!("{} (default)", engine.name),
        false => engine.name.clone(),
    });
    row("engines", engines.collect::<Vec<_>>().join(", "));
    let Me { key, tenant, role, quotas, usage, .. } = &status.me;
    row("key", format!("{key}, role {role}, tenant {tenant}"));
    let states: Vec<_> = status.sandboxes.iter().map(|(state, count)| format!("{count} {state}")).collect();
    row("sandboxes of the tenant", if states.is_empty() { "none".to_owned() } else { states.join(", ") });
    let number = |count: u64| count.to_string();
    row("sandboxes of the key", of_quota(usage.sandboxes.into(), quotas.sandboxes.map(u64::from), number));
    row("memory limits", of_quota(usage.memory_bytes, quotas.memory_bytes, bytes));
    row("disk limits", of_quota(usage.disk_bytes, quotas.disk_bytes, bytes));
    row(
        "processor time in the last hour",
        of_quota(usage.cpu_seconds, quotas.cpu_seconds_per_hour, |count| format!("{count} s")),
    );
    table.print()
}

/// Usage of a sandbox at one time.
struct Sample {
    at: Instant,
    cpu: Option<Duration>,
}

/// A line of `belljar top`.
#[derive(Serialize)]
struct Line {
    id: String,
    name: String,
    state: &'static str,
    /// Processors in use, since the line before.
    cpus: Option<f64>,
    memory_bytes: Option<u64>,
    memory_limit_bytes: u64,
    pids: Option<u64>,
    /// Seconds since its start.
    uptime: Option<f64>,
}

/// Runs `belljar top`.
pub(crate) async fn top(link: &Link, args: &TopArgs) -> Result<u8, Quit> {
    let delay = values::time("delay", &args.delay)?;
    let clears = link.format == Format::Table && std::io::stdout().is_terminal();
    let mut signals = Signals::catch()?;
    let mut keys = if clears { Keys::read()? } else { None };
    let mut before = HashMap::new();
    let (mut lines, mut shown) = (measure(link, &mut before).await?, 0);
    loop {
        // The use of processors is known from the second time on.
        if !delay.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = Keys::quit(&mut keys) => return Ok(0),
                signal = signals.next() => return Err(Quit::Status(signals::status(signal))),
            }
            lines = measure(link, &mut before).await?;
        }
        draw(link, &lines, clears)?;
        shown += 1;
        if args.count.is_some_and(|count| shown >= count) || delay.is_zero() {
            return Ok(0);
        }
    }
}

/// Keys that are typed on the terminal, one by one and without echo, until this is dropped.
struct Keys {
    input: Stdin,
    before: Termios,
}

impl Keys {
    /// Begins to read keys, if standard input is a terminal.
    fn read() -> Result<Option<Self>, Quit> {
        let stdin = rustix::stdio::stdin();
        let Some(input) = Stdin::open().filter(|_| isatty(stdin)) else { return Ok(None) };
        let before = tcgetattr(stdin)?;
        let mut single = before.clone();
        single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(stdin, OptionalActions::Now, &single)?;
        Ok(Some(Self { input, before }))
    }

    /// Waits for the key that ends a display.
    async fn quit(keys: &mut Option<Self>) {
        if let Some(keys) = keys {
            while let Ok(key) = keys.input.read_u8().await {
                if matches!(key, b'q' | b'Q') {
                    return;
                }
            }
        }
        std::future::pending().await
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Returns the usage of all sandboxes, those with most processor time first.
async fn measure(link: &Link, before: &mut HashMap<String, Sample>) -> Result<Vec<Line>, Quit> {
    let sandboxes = find_all(link, &[], &[], false).await?;
    let measuring = sandboxes.into_iter().map(async |info| {
        let request = v1::SandboxMetricsRequest { sandbox: info.id.clone(), ..Default::default() };
        // One that has ended since has none.
        let metrics = link.client.metrics(request).await.ok();
        (info, metrics, Instant::now())
    });
    let measured: Vec<_> = stream::iter(measuring).buffer_unordered(CONCURRENT).collect().await;
    let mut lines = Vec::with_capacity(measured.len());
    let mut now = HashMap::with_capacity(measured.len());
    for (info, metrics, at) in measured {
        let Some(metrics) = metrics else { continue };
        let cpu = span(&metrics.cpu_time);
        let earlier = before.get(&info.id).and_then(|sample| Some((sample.at, sample.cpu?)));
        let cpus = earlier.zip(cpu).map(|((then, spent), cpu)| {
            let passed = at.saturating_duration_since(then).as_secs_f64();
            cpu.saturating_sub(spent).as_secs_f64() / passed.max(f64::MIN_POSITIVE)
        });
        now.insert(info.id.clone(), Sample { at, cpu });
        lines.push(Line {
            state: state(&info),
            id: info.id,
            name: info.name,
            cpus,
            memory_bytes: metrics.memory_bytes,
            memory_limit_bytes: metrics.memory_limit_bytes,
            pids: metrics.pids,
            uptime: span(&metrics.uptime).map(|uptime| uptime.as_secs_f64()),
        });
    }
    *before = now;
    let order = |line: &Line| (line.cpus.unwrap_or_default(), line.memory_bytes.unwrap_or_default());
    lines.sort_by(|one, other| {
        let ((cpus, memory), (others, other_memory)) = (order(one), order(other));
        others.total_cmp(&cpus).then(other_memory.cmp(&memory)).then_with(|| one.id.cmp(&other.id))
    });
    Ok(lines)
}

fn draw(link: &Link, lines: &[Line], clears: bool) -> Result<(), Quit> {
    if link.format == Format::Json {
        for line in lines {
            link.json(line)?;
        }
        return Ok(());
    }
    let mut table = Table::new(&["ID", "NAME", "STATE", "CPU", "MEMORY", "PROCESSES", "UP"]);
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for line in lines {
        table.row(vec![
            line.id.clone(),
            if line.name.is_empty() { "-".to_owned() } else { one_line(&line.name, 32) },
            line.state.to_owned(),
            known(line.cpus.map(|cpus| format!("{:.0} %", cpus * 100.0))),
            known(line.memory_bytes.map(|used| of_quota(used, Some(line.memory_limit_bytes), bytes))),
            known(line.pids.map(|pids| pids.to_string())),
            known(line.uptime.map(|uptime| rough(Duration::from_secs_f64(uptime.max(0.0))))),
        ]);
    }
    if clears {
        print(CLEAR)?;
    }
    table.print()
}
