//! The hostile suite: each case with all walls, with everything that must stay true around it, and without the walls whose
//! absence must show. The cases are in `tests/hostile`.

#[cfg(feature = "mutation")]
mod suite {
    use std::io::Write as _;
    use std::path::Path;
    use std::process::ExitCode;
    use std::sync::Arc;

    use belljar_hostile::{Binary, Case, Scope, Suite, Verdict, adopt_orphans, load};
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
        let binary = Binary { program: env!("CARGO_BIN_EXE_belljar").into(), flags: Vec::new() };
        let suite = Arc::new(Suite {
            lib: corpus.lib.clone(),
            intact: binary.clone(),
            mutated: Some(binary),
            // Others use the machine; `make hostile` looks at the whole of it.
            scope: Scope::Own,
            is_watched: false,
        });
        adopt_orphans().map_err(|error| said(&error))?;
        let mut trials = Vec::new();
        for case in corpus.cases {
            for engine in case.engines.clone() {
                let (suite, case) = (Arc::clone(&suite), case.clone());
                trials.push(match engine.other() {
                    None => Trial::ignorable_test(case.test_name(), move || run(&suite, &case)),
                    Some(name) => Trial::ignorable_test(format!("{name}::{}", case.test_name()), move || {
                        on_other_engine(&suite, name, &case)
                    }),
                });
            }
        }
        let suite = Arc::clone(&suite);
        trials.push(Trial::ignorable_test("harness_tells_what_does_not_hold", move || harness(&suite)));
        Ok(trials)
    }

    /// Cases that must not pass: what each does, and what must be said about it.
    const BAD: [(&str, &str, &str); 4] = [
        ("echo 'a: ok'; cat \"$CANARY_PUBLIC\" </dev/null; exit 1", "none = 'x'", "the result's outcome is"),
        ("echo 'a: EPERM'", "none = 'x'", "answered \"EPERM\""),
        ("echo 'a: ok'; echo 'b: ok'", "none = 'x'", "is not named in [expect]"),
        ("echo 'a: ok'", "without = ['seccomp']", "proves nothing"),
    ];

    fn harness(suite: &Suite) -> Result<Completion, Failed> {
        if !rustix::process::geteuid().is_root() {
            writeln!(std::io::stdout(), "SKIPPED harness: needs root, for control groups")?;
            return Ok(Completion::ignored_with("needs root, for control groups"));
        }
        let head = "class = 'Escape'\nengines = ['local']\nwalls = ['x']\nbudget = '20s'\n";
        let tail = "[expect]\na = 'ok'\n[[mutation]]\n";
        let dir = tempfile::tempdir()?;
        let check = |number: usize, script: (&str, &str), body: &str, mutation: &str, expected: &str| {
            let path = dir.path().join(format!("K/K{number:02}-bad"));
            std::fs::create_dir_all(&path)?;
            std::fs::write(path.join(script.0), script.1)?;
            let text = format!("id = 'K{number:02}'\ntries = 'x'\n{head}{body}{tail}{mutation}\n");
            std::fs::write(path.join("case.toml"), text)?;
            let problems = suite.check(&Case::read(&path)?).problems();
            if problems.iter().any(|problem| problem.contains(expected)) {
                return Ok::<_, Failed>(());
            }
            Err(format!("{script:?}: nobody said {expected:?}, but {problems:?}").into())
        };
        for (number, (script, mutation, expected)) in BAD.into_iter().enumerate() {
            let body = "language = 'sh'\nprogram = 'program.sh'\n";
            check(number, ("program.sh", script), body, mutation, expected)?;
        }
        // On the host everything can be reached.
        let touch = "import host, os, socket\n\
            socket.create_connection(('127.0.0.1', int(os.environ['CANARY_PORT'])))\n\
            host.say('a', 'ok')\n";
        check(90, ("expect.py", touch), "", "none = 'x'", "port on 127.0.0.1 was connected to")?;
        check(91, ("expect.py", "raise SystemExit(3)"), "", "none = 'x'", "expect.py failed")?;
        Ok(Completion::Completed)
    }

    fn skipped(case: &Case, reason: &str) -> Result<Completion, Failed> {
        writeln!(std::io::stdout(), "SKIPPED {}: {reason}", case.test_name())?;
        Ok(Completion::ignored_with(reason))
    }

    /// Runs a case on an engine that not every machine has.
    fn on_other_engine(suite: &Suite, engine: &str, case: &Case) -> Result<Completion, Failed> {
        let mut flags = vec!["--engine".to_owned(), engine.to_owned()];
        if engine == "docker" {
            match std::env::var("BELLJAR_TEST_IMAGE") {
                Ok(image) => flags.extend(["--image".to_owned(), image]),
                Err(_) => {
                    let reason = std::env::var("BELLJAR_TEST_DOCKER_LACKS");
                    let reason =
                        reason.unwrap_or_else(|_| "run it by tests/docker/with-daemon.sh".to_owned());
                    return skipped(case, &reason);
                }
            }
        } else {
            let report = std::process::Command::new(&suite.intact.program)
                .args(["engine", "ls", "--json"])
                .output()?;
            let report: serde_json::Value = serde_json::from_slice(&report.stdout)?;
            let engine = report.as_array().and_then(|all| all.iter().find(|one| one["name"] == engine));
            if let Some(obstacle) = engine.ok_or("the engine is not listed")?["obstacles"].get(0) {
                return skipped(case, obstacle["detail"].as_str().unwrap_or_default());
            }
        }
        let binary = Binary { flags, ..suite.intact.clone() };
        let suite = Suite {
            lib: suite.lib.clone(),
            intact: binary.clone(),
            mutated: Some(binary),
            scope: Scope::Own,
            is_watched: false,
        };
        run(&suite, case)
    }

    fn run(suite: &Suite, case: &Case) -> Result<Completion, Failed> {
        let skipped = |reason: &str| skipped(case, reason);
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
