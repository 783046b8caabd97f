//! `belljar doctor`: what this machine can enforce, what is missing, and the exact fix.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use belljar_engine::{
    Capabilities, CreateRequest, EngineKind, Finding, FindingState, IsolationLevel, ProcessEvent, Sandbox, v1,
};
use belljar_model::{EngineName, Isolation, LayerState};
use bytes::Bytes;

use crate::cli::{DoctorArgs, SandboxArgs};
use crate::colour;
use crate::engines;
use crate::message::{Quit, chain, clean};
use crate::output::write_failed;
use crate::run::runtime;
use crate::spec::{CheckedSpec, UncheckedSpec};

/// Program that is run in the test sandbox.
const PROBE: &str = "/bin/true";

/// Timeout of the program.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The result, as printed.
#[derive(Debug, serde::Serialize)]
struct Report {
    /// Version of the JSON form.
    schema: u32,
    engines: Vec<EngineState>,
    findings: Vec<Finding>,
    /// Reason why no sandbox of the default engine can be created.
    failure: Option<String>,
    /// Isolation of a sandbox of the default engine.
    isolation: Option<Isolation>,
}

#[derive(Debug, serde::Serialize)]
struct EngineState {
    name: EngineName,
    is_default: bool,
    capabilities: Capabilities,
    /// What keeps its sandboxes from being created.
    obstacles: Vec<Finding>,
}

/// Runs `belljar doctor`: examines this machine, and creates a test sandbox. The status is 0 if the default engine works, else 1.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8, Quit> {
    if args.self_test {
        return crate::self_test::self_test(args.format.is_json());
    }
    let checked = UncheckedSpec::from_args(&SandboxArgs::default())?.resolve(None, None)?;
    let default = checked.spec.engine;
    let findings = engines::all().flat_map(|kind| kind.examine(checked.setup())).collect();
    let (isolation, failure) = match runtime()?.block_on(attempt(&checked)) {
        Ok(isolation) => (Some(isolation), None),
        Err(error) => (None, Some(chain(error.as_ref()))),
    };
    let engine = |kind: &dyn EngineKind| EngineState {
        name: kind.name(),
        is_default: kind.name() == default,
        capabilities: kind.open(checked.setup()).capabilities(),
        obstacles: kind.obstacles(checked.setup(), checked.spec.grade),
    };
    let engines = engines::all().map(engine).collect();
    let report = Report { schema: 2, engines, findings, failure, isolation };
    let text = if args.format.is_json() {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        format_report(&report, Marks::for_stdout())
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(write_failed)?;
    Ok(u8::from(report.failure.is_some()))
}

/// Creates a sandbox, and runs a program in it.
async fn attempt(checked: &CheckedSpec) -> anyhow::Result<Isolation> {
    let sandbox = checked.engine().create(CreateRequest::run(&checked.spec)).await?;
    let probed = tokio::time::timeout(PROBE_TIMEOUT, probe(&sandbox)).await;
    let isolation = sandbox.isolation.clone();
    sandbox.stop().await?;
    probed.map_err(|_| anyhow::anyhow!("{PROBE} did not end in time in a sandbox"))??;
    Ok(isolation)
}

async fn probe(sandbox: &Sandbox) -> anyhow::Result<()> {
    let argv = vec![Bytes::from_static(PROBE.as_bytes())];
    let request = v1::StartRequest { argv, ..Default::default() };
    let mut execution = sandbox.guest().start(request).await?;
    while let Some(event) = execution.next().await? {
        match event {
            ProcessEvent::Exited(exited) if exited.code == 0 && exited.signal == 0 => return Ok(()),
            ProcessEvent::Exited(exited) => {
                anyhow::bail!(
                    "{PROBE} failed in a sandbox: exit code {}, signal {}",
                    exited.code,
                    exited.signal
                );
            }
            _ => {}
        }
    }
    anyhow::bail!("the sandbox ended unexpectedly: {}", sandbox.wait_ended().await)
}

/// Marks at the start of a line: whether something is as it should be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks {
    good: &'static str,
    weaker: &'static str,
    missing: &'static str,
    /// Characters of each on a screen.
    width: usize,
}

impl Marks {
    const SIGNS: Self = Self { good: "✓", weaker: "!", missing: "✗", width: 1 };
    const COLOURED: Self = Self {
        good: "\u{1b}[32m✓\u{1b}[0m",
        weaker: "\u{1b}[33m!\u{1b}[0m",
        missing: "\u{1b}[31m✗\u{1b}[0m",
        width: 1,
    };
    const WORDS: Self = Self { good: "ok     ", weaker: "weaker ", missing: "missing", width: 7 };

    pub(crate) fn for_stdout() -> Self {
        match rustix::termios::isatty(rustix::stdio::stdout()) {
            true if colour::is_allowed() => Self::COLOURED,
            true => Self::SIGNS,
            false => Self::WORDS,
        }
    }

    fn finding(self, state: FindingState) -> &'static str {
        match state {
            FindingState::Good => self.good,
            FindingState::Weaker => self.weaker,
            FindingState::Missing => self.missing,
        }
    }

    fn layer(self, state: LayerState) -> &'static str {
        match state {
            LayerState::InForce => self.good,
            LayerState::Weaker => self.weaker,
            LayerState::Absent => self.missing,
        }
    }
}

fn format_report(report: &Report, marks: Marks) -> String {
    let mut text = String::from("This machine\n");
    let mut line = |mark: &str, name: &str, detail: &str| {
        let _ = writeln!(text, "  {mark} {name:<15} {}", clean(detail));
    };
    for finding in &report.findings {
        line(marks.finding(finding.state), finding.name, &finding.detail);
        if let Some(fix) = &finding.fix {
            line(&" ".repeat(marks.width), "", &format!("to do: {fix}"));
        }
    }
    text.push_str("\nEngines\n");
    for engine in &report.engines {
        let name = engine.name;
        let (mark, walls) = match engine.capabilities.isolation {
            IsolationLevel::Full => (marks.good, "every wall"),
            IsolationLevel::Partial => (marks.weaker, "fewer walls"),
            IsolationLevel::None => (marks.weaker, "no walls at all"),
        };
        let (mark, use_of) = match (engine.is_default, report.failure.is_none()) {
            (true, true) => (marks.good, "the default here; a sandbox was started".to_owned()),
            (true, false) => (marks.missing, "the default here; no sandbox can be started".to_owned()),
            (false, _) => match engine.obstacles.first() {
                Some(obstacle) => (marks.missing, format!("not here: {}", obstacle.detail)),
                None => (mark, format!("with --engine {name}")),
            },
        };
        let _ = writeln!(text, "  {mark} {:<15} {walls}; {use_of}", name.as_str());
        // Whether sandboxes survive a restart is for the server to say, which holds them.
        let capabilities =
            engine.capabilities.list().into_iter().filter(|(name, _)| *name != "survive_restart");
        let (can, cannot): (Vec<_>, Vec<_>) = capabilities.partition(|(_, can)| *can);
        for (what, which) in [("can", can), ("cannot", cannot)] {
            if !which.is_empty() {
                let names: Vec<&str> = which.into_iter().map(|(name, _)| name).collect();
                let _ =
                    writeln!(text, "  {} {:<15} {what}: {}", " ".repeat(marks.width), "", names.join(", "));
            }
        }
    }
    if let Some(failure) = &report.failure {
        let _ = writeln!(text, "\nA sandbox cannot be started\n  {}", clean(failure));
    }
    if let Some(isolation) = &report.isolation {
        let _ = writeln!(text, "\nIn force in a sandbox of the engine {}", isolation.engine);
        format_layers(isolation, marks, &mut text);
    }
    text
}

/// Writes a line for each layer of a sandbox.
pub(crate) fn format_layers(isolation: &Isolation, marks: Marks, text: &mut String) {
    for layer in &isolation.layers {
        let _ = writeln!(text, "  {} {:<15} {}", marks.layer(layer.state), layer.name, clean(&layer.detail));
    }
}
