//! Runs the hostile suite and prints its table: `belljar-hostile --belljar BINARY [--mutated BINARY] [--json] [ID|GROUP]…`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use belljar_hostile::{Bell, Corpus, Scope, Suite, Verdict, adopt_orphans, load, summary, table};

const USAGE: &str =
    "usage: belljar-hostile --belljar BINARY [--mutated BINARY] [--cases DIR] [--json] [ID|GROUP]...";

/// What the command line says.
#[derive(Debug, Default)]
struct Asked {
    held: Option<PathBuf>,
    mutated: Option<PathBuf>,
    cases: Option<PathBuf>,
    is_json: bool,
    only: Vec<String>,
}

fn main() -> ExitCode {
    let mut out = std::io::stdout();
    match asked(std::env::args().skip(1)).and_then(|asked| run(asked, &mut out)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "belljar-hostile: {reason}");
            ExitCode::from(2)
        }
    }
}

fn asked(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked::default();
    while let Some(arg) = args.next() {
        let mut path =
            || args.next().map(PathBuf::from).ok_or_else(|| format!("{arg} needs a path; {USAGE}"));
        match arg.as_str() {
            "--belljar" => asked.held = Some(path()?),
            "--mutated" => asked.mutated = Some(path()?),
            "--cases" => asked.cases = Some(path()?),
            "--json" => asked.is_json = true,
            flag if flag.starts_with('-') => return Err(format!("there is no flag {flag}; {USAGE}")),
            only => asked.only.push(only.to_uppercase()),
        }
    }
    Ok(asked)
}

/// Runs the cases, and says whether everything is as it should be.
fn run(asked: Asked, out: &mut impl std::io::Write) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("cannot write to standard output: {error}");
    if !rustix::process::geteuid().is_root() {
        writeln!(out, "SKIPPED: needs root, for control groups and user ids of their own").map_err(failed)?;
        return Ok(true);
    }
    let bell = |program: PathBuf| {
        let program =
            program.canonicalize().map_err(|error| format!("cannot use {}: {error}", program.display()))?;
        Ok::<_, String>(Bell { program, flags: Vec::new() })
    };
    let held = bell(asked.held.ok_or(USAGE)?)?;
    let mutated = asked.mutated.map(bell).transpose()?;
    let dir =
        asked.cases.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hostile"));
    let dir = dir.canonicalize().map_err(|error| format!("cannot use {}: {error}", dir.display()))?;
    let corpus: Corpus = load(&dir).map_err(|error| {
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    })?;
    let is_wanted =
        |id: &str| asked.only.is_empty() || asked.only.iter().any(|only| id.to_uppercase().starts_with(only));
    let cases: Vec<_> = corpus.cases.iter().filter(|case| is_wanted(&case.id)).collect();
    if cases.is_empty() {
        return Err(format!("no case is called {}", asked.only.join(" or ")));
    }
    adopt_orphans().map_err(|error| error.to_string())?;
    let suite = Suite { lib: corpus.lib.clone(), held, mutated, scope: Scope::Machine, is_watched: false };
    let mut reports = Vec::new();
    for case in cases {
        let report = suite.check(case);
        if !asked.is_json {
            // Line by line, as the whole takes minutes; the header comes with the first.
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
    if asked.is_json {
        let text = serde_json::to_string_pretty(&reports).map_err(|error| error.to_string())?;
        writeln!(out, "{text}").map_err(failed)?;
    } else {
        writeln!(out, "\n{}", summary(&reports)).map_err(failed)?;
    }
    let is_good = |report: &belljar_hostile::Report| {
        report.problems().is_empty() && !matches!(report.verdict, Verdict::Failed(_))
    };
    Ok(reports.iter().all(is_good))
}
