//! Runs the hostile suite and prints its table: `belljar-hostile --belljar BINARY [--mutated BINARY] [--json] [ID|GROUP]…`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use belljar_hostile::{Binary, Corpus, Scope, Suite, Verdict, adopt_orphans, load, summary, table};

const USAGE: &str =
    "usage: belljar-hostile --belljar BINARY [--mutated BINARY] [--cases DIR] [--json] [ID|GROUP]...";

/// The command line's arguments.
#[derive(Debug, Default)]
struct Arguments {
    intact: Option<PathBuf>,
    mutated: Option<PathBuf>,
    cases: Option<PathBuf>,
    is_json: bool,
    only: Vec<String>,
}

fn main() -> ExitCode {
    let mut out = std::io::stdout();
    match parse_arguments(std::env::args().skip(1)).and_then(|arguments| run(arguments, &mut out)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "belljar-hostile: {reason}");
            ExitCode::from(2)
        }
    }
}

fn parse_arguments(mut args: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(arg) = args.next() {
        let mut path =
            || args.next().map(PathBuf::from).ok_or_else(|| format!("{arg} needs a path; {USAGE}"));
        match arg.as_str() {
            "--belljar" => arguments.intact = Some(path()?),
            "--mutated" => arguments.mutated = Some(path()?),
            "--cases" => arguments.cases = Some(path()?),
            "--json" => arguments.is_json = true,
            flag if flag.starts_with('-') => return Err(format!("unknown flag {flag}; {USAGE}")),
            only => arguments.only.push(only.to_uppercase()),
        }
    }
    Ok(arguments)
}

/// Runs the cases. Reports whether all of them passed or were skipped.
fn run(arguments: Arguments, out: &mut impl std::io::Write) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("cannot write to standard output: {error}");
    if !rustix::process::geteuid().is_root() {
        writeln!(out, "SKIPPED: needs root, for control groups and user ids of their own").map_err(failed)?;
        return Ok(true);
    }
    let binary = |program: PathBuf| {
        let program =
            program.canonicalize().map_err(|error| format!("cannot use {}: {error}", program.display()))?;
        Ok::<_, String>(Binary { program, flags: Vec::new() })
    };
    let intact = binary(arguments.intact.ok_or(USAGE)?)?;
    let mutated = arguments.mutated.map(binary).transpose()?;
    let dir =
        arguments.cases.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hostile"));
    let dir = dir.canonicalize().map_err(|error| format!("cannot use {}: {error}", dir.display()))?;
    let corpus: Corpus = load(&dir).map_err(|error| {
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    })?;
    let is_selected = |id: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|only| id.to_uppercase().starts_with(only))
    };
    let cases: Vec<_> = corpus.cases.iter().filter(|case| is_selected(&case.id)).collect();
    if cases.is_empty() {
        return Err(format!("no case matches {}", arguments.only.join(" or ")));
    }
    adopt_orphans().map_err(|error| error.to_string())?;
    let suite = Suite { lib: corpus.lib.clone(), intact, mutated, scope: Scope::Machine, is_watched: false };
    let mut reports = Vec::new();
    for case in cases {
        let report = suite.check(case);
        if !arguments.is_json {
            // Printed line by line, as the whole suite takes minutes; the first line comes with the header.
            let text = table(std::slice::from_ref(&report));
            let text = if reports.is_empty() {
                text.as_str()
            } else {
                text.split_once('\n').map_or("", |(_, rest)| rest)
            };
            write!(out, "{text}").and_then(|()| out.flush()).map_err(failed)?;
        }
        reports.push(report);
    }
    if arguments.is_json {
        let text = serde_json::to_string_pretty(&reports).map_err(|error| error.to_string())?;
        writeln!(out, "{text}").map_err(failed)?;
    } else {
        writeln!(out, "\n{}", summary(&reports)).map_err(failed)?;
    }
    let passed = |report: &belljar_hostile::Report| {
        report.problems().is_empty() && !matches!(report.verdict, Verdict::Failed(_))
    };
    Ok(reports.iter().all(passed))
}
