//! `belljar engine`: the engines of this program, and what each enforces on this machine.

use std::fmt::Write as _;

use belljar_engine::{Capabilities, CreateRequest, EngineKind, Finding};
use belljar_model::{EngineName, ImageReference, Isolation, LimitsGrade};

use crate::cli::{EngineCommand, SandboxArgs};
use crate::doctor::{Marks, format_layers};
use crate::engines;
use crate::message::{Quit, chain, clean};
use crate::run::{runtime, server_image};
use crate::service::show::{Table, print};
use crate::spec::{CheckedSpec, UncheckedSpec};

/// An engine, as JSON.
#[derive(Debug, serde::Serialize)]
struct EngineReport {
    name: EngineName,
    is_default: bool,
    capabilities: Capabilities,
    /// What keeps sandboxes from being created, as far as that is seen without creating one.
    obstacles: Vec<Finding>,
}

/// An engine with a sandbox of it, as JSON.
#[derive(Debug, serde::Serialize)]
struct EngineDetails {
    #[serde(flatten)]
    engine: EngineReport,
    /// Isolation of a sandbox.
    isolation: Option<Isolation>,
    /// Why none can be created.
    failure: Option<String>,
}

/// Runs `belljar engine`. The status of `info` is 1 if the engine can create no sandbox.
pub(crate) fn engine(command: &EngineCommand) -> Result<u8, Quit> {
    match command {
        EngineCommand::Ls { format } => {
            let checked = checked(None, None)?;
            let all: Vec<_> = engines::all().map(|kind| report(kind, &checked)).collect();
            if format.is_json() {
                print(&(serde_json::to_string_pretty(&all)? + "\n"))?;
            } else {
                list(&all).print()?;
            }
            Ok(0)
        }
        EngineCommand::Info { name, image, format } => {
            let checked = checked(Some(name), image.as_ref())?;
            let engine = report(checked.kind, &checked);
            let (isolation, failure) = match runtime()?.block_on(isolation(&checked)) {
                Ok(isolation) => (Some(isolation), None),
                Err(error) => (None, Some(chain(error.as_ref()))),
            };
            let details = EngineDetails { engine, isolation, failure };
            let text = match format.is_json() {
                true => serde_json::to_string_pretty(&details)? + "\n",
                false => format_details(&details),
            };
            print(&text)?;
            Ok(u8::from(details.failure.is_some()))
        }
    }
}

fn checked(engine: Option<&str>, image: Option<&ImageReference>) -> Result<CheckedSpec, Quit> {
    let args = SandboxArgs { engine: engine.map(str::to_owned), ..SandboxArgs::default() };
    let mut unchecked = UncheckedSpec::from_args(&args)?;
    server_image(&mut unchecked, &args, image)?;
    unchecked.resolve(None, None)
}

fn report(kind: &dyn EngineKind, checked: &CheckedSpec) -> EngineReport {
    EngineReport {
        name: kind.name(),
        is_default: kind.name() == engines::default().name(),
        capabilities: kind.open(checked.setup()).capabilities(),
        obstacles: kind.obstacles(checked.setup(), LimitsGrade::Cgroup),
    }
}

/// Creates a sandbox, and returns its isolation.
async fn isolation(checked: &CheckedSpec) -> anyhow::Result<Isolation> {
    let sandbox = checked.engine().create(CreateRequest::run(&checked.spec)).await?;
    let isolation = sandbox.isolation.clone();
    sandbox.stop().await?;
    Ok(isolation)
}

fn level(capabilities: &Capabilities) -> String {
    format!("{:?}", capabilities.isolation).to_lowercase()
}

fn names(capabilities: &Capabilities, can: bool) -> String {
    let list = capabilities.list();
    let names: Vec<&str> = list.iter().filter(|(_, has)| *has == can).map(|(name, _)| *name).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

fn list(all: &[EngineReport]) -> Table {
    let mut table = Table::new(&["ENGINE", "ISOLATION", "HERE", "CAN"]);
    for engine in all {
        let here = match engine.obstacles.first() {
            Some(obstacle) => clean(&obstacle.detail).to_string(),
            None if engine.is_default => "yes, the default".to_owned(),
            None => "yes".to_owned(),
        };
        let capabilities = &engine.capabilities;
        table.row(vec![engine.name.to_string(), level(capabilities), here, names(capabilities, true)]);
    }
    table
}

fn format_details(details: &EngineDetails) -> String {
    let EngineDetails { engine, isolation, failure } = details;
    let capabilities = &engine.capabilities;
    let network = match capabilities.network.is_empty() {
        true => "the host's".to_owned(),
        false => capabilities.network.join(", "),
    };
    let mut text = format!("Engine {}\n", engine.name);
    for (name, value) in [
        ("isolation", level(capabilities)),
        ("network", network),
        ("can", names(capabilities, true)),
        ("cannot", names(capabilities, false)),
    ] {
        let _ = writeln!(text, "  {name:<11} {value}");
    }
    if let Some(failure) = failure {
        let _ = writeln!(text, "\nA sandbox cannot be created\n  {}", clean(failure));
    }
    if let Some(isolation) = isolation {
        let _ = writeln!(text, "\nIn force in a sandbox");
        format_layers(isolation, Marks::for_stdout(), &mut text);
    }
    text
}
