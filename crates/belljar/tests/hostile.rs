//! The hostile suite: each case with all walls, with everything that must stay true around it, and without the walls whose
//! absence must show. The cases are in `tests/hostile`.

#[cfg(feature = "mutation")]
mod suite {
    use std::io::Write as _;
    use std::path::Path;
    use std::process::ExitCode;
    use std::sync::Arc;

    use belljar_hostile::{Bell, Case, Scope, Suite, Verdict, adopt_orphans, load};
    use libtest_mimic::{Arguments, Completion, Failed, Trial};

    pub(crate) fn main() -> ExitCode {
        let mut arguments = Arguments::from_args();
        // Each case looks at what this process leaves behind, so no two at once.
        arguments.test_threads = Some(1);
        match trials() {
            Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
            Err(reason) => {
                let _ = writeln!(std::io::stderr(), "{reason}");
                ExitCode::FAILURE
            }
        }
    }

    fn trials() -> Result<Vec<Trial>, String> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hostile");
        let said = |error: &dyn std::error::Error| {
            error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        };
        let dir = dir.canonicalize().map_err(|error| said(&error))?;
        let corpus = load(&dir).map_err(|error| said(&error))?;
        let bell = Bell { program: env!("CARGO_BIN_EXE_belljar").into(), flags: Vec::new() };
        let suite = Arc::new(Suite {
            lib: corpus.lib.clone(),
            held: bell.clone(),
            mutated: Some(bell),
            scope: Scope::Machine,
            is_watched: false,
        });
        adopt_orphans().map_err(|error| said(&error))?;
        let trial = |case: Case| {
            let suite = Arc::clone(&suite);
            Trial::ignorable_test(case.test_name(), move || run(&suite, &case))
        };
        Ok(corpus.cases.into_iter().map(trial).collect())
    }

    fn run(suite: &Suite, case: &Case) -> Result<Completion, Failed> {
        let skipped = |reason: &str| {
            writeln!(std::io::stdout(), "SKIPPED {}: {reason}", case.test_name())?;
            Ok(Completion::ignored_with(reason))
        };
        if !rustix::process::geteuid().is_root() {
            return skipped("needs root, for control groups and user ids of their own");
        }
        let report = suite.check(case);
        let problems = report.problems();
        match &report.verdict {
            Verdict::Skipped(reason) => skipped(reason),
            _ if problems.is_empty() => Ok(Completion::Completed),
            _ => Err(problems.join("\n").into()),
        }
    }
}

#[cfg(feature = "mutation")]
fn main() -> std::process::ExitCode {
    suite::main()
}

/// Walls can be taken away with the feature `mutation` only.
#[cfg(not(feature = "mutation"))]
fn main() {}
