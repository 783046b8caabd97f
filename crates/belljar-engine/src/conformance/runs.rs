//! Complete runs of code: outcome, streams, files, phases.

use std::path::PathBuf;
use std::time::Duration;

use belljar_model::{Language, Outcome, Phase, RunResult, SandboxSpec};

use super::case::{Case, Checked, Stop, cases, ensure, equal, within};
use super::context::Context;
use super::program::check_usable;
use crate::engine::Sandbox;
use crate::run::{InputFile, OutputStream, RunRequest, Silent, Sink};

pub(super) const CASES: &[Case] = cases![
    run_python_prints [],
    run_reports_exit_codes [],
    run_reports_signals [],
    run_times_out [],
    run_passes_stdin [],
    run_passes_arguments [],
    run_uploads_files [],
    run_accepts_unusual_sources [],
    run_compiles_first [],
    run_stops_at_a_failed_compile [],
    run_compile_has_its_own_timeout [],
    run_without_interpreter_is_127 [],
    run_reports_phases_and_output_live [],
    run_fails_if_the_guest_is_gone [ProtectedGuest],
];

/// Returns Python as used by the suite, independent of the built-in languages.
pub(super) fn python_language() -> Checked<Language> {
    language(
        "python",
        r#"run = ["/usr/bin/python3", "-I", "-S", "{file}", "{args}"]
env = { PYTHONDONTWRITEBYTECODE = "1" }"#,
    )
}

/// Returns the shell as a language.
pub(super) fn sh_language() -> Checked<Language> {
    language("sh", r#"run = ["/bin/sh", "{file}", "{args}"]"#)
}

fn language(name: &str, commands: &str) -> Checked<Language> {
    let text = format!(
        "name = \"{name}\"\nfile = \"main.src\"\nversion = [\"true\"]\nprogram = \"sh\"\npackage = \"dash\"\n{commands}\n"
    );
    Ok(Language::from_toml(&text)?)
}

/// Creates a request with only a source.
pub(super) fn request<'a>(language: &'a Language, source: &str) -> RunRequest<'a> {
    RunRequest::new(language, source.to_owned())
}

/// Runs a source.
pub(super) async fn execute(
    sandbox: &Sandbox,
    spec: &SandboxSpec,
    language: &Language,
    source: &str,
) -> Checked<RunResult> {
    Ok(crate::run::run(sandbox, spec, request(language, source), &mut Silent).await?)
}

pub(super) fn text(output: &belljar_model::StreamOutput) -> String {
    String::from_utf8_lossy(&output.decode().unwrap_or_default()).into_owned()
}

async fn run_python_prints(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let source = "import os, sys\nprint(2**64)\nprint('oh', file=sys.stderr)\nprint(os.getcwd() == os.environ['HOME'])";
    let result = execute(&sandbox, &spec, &python_language()?, source).await?;
    equal!(result.outcome, Outcome::Exited { code: 0 });
    equal!(
        (text(&result.stdout).as_str(), text(&result.stderr).as_str()),
        ("18446744073709551616\nTrue\n", "oh\n")
    );
    equal!((result.exit_code, result.signal.clone(), result.exit_status), (Some(0), None, 0));
    equal!((result.language.as_str(), &result.id), ("python", &sandbox.id));
    equal!((result.stdout.truncated, result.hint.clone(), result.compile.is_some()), (false, None, false));
    ensure!(result.wall_ms > 0.0 && result.wall_ms < 60_000.0, "it took {} ms", result.wall_ms);
    ensure!(
        result.cpu_ms.is_some_and(|cpu| cpu > 0.0 && cpu < 60_000.0),
        "it used {:?} ms of CPU",
        result.cpu_ms
    );
    ensure!(
        result.peak_memory_bytes.is_some_and(|peak| peak > 1 << 20),
        "peak {:?}",
        result.peak_memory_bytes
    );
    equal!(result.isolation, sandbox.isolation);
    let timings = result.timings.unwrap_or_default();
    for name in ["upload", "run", "total"] {
        ensure!(timings.contains_key(name), "{name} is not in {timings:?}");
    }
    context.stop(sandbox).await
}

async fn run_reports_exit_codes(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    for code in [1, 2, 77, 124, 125, 126, 127, 137, 255] {
        let result = execute(&sandbox, &spec, &sh_language()?, &format!("exit {code}")).await?;
        equal!(result.outcome, Outcome::Exited { code });
        equal!((result.exit_code, i32::from(result.exit_status)), (Some(code), code));
    }
    context.stop(sandbox).await
}

async fn run_reports_signals(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    for (signal, name) in [(6, "SIGABRT"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM")] {
        let result = execute(&sandbox, &spec, &sh_language()?, &format!("kill -{signal} $$")).await?;
        equal!(result.outcome, Outcome::signalled(signal));
        equal!((result.exit_code, result.signal.as_deref()), (None, Some(name)));
        equal!(i32::from(result.exit_status), 128 + signal);
    }
    context.stop(sandbox).await
}

async fn run_times_out(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.timeout = "1s".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let source = "echo begun; trap 'echo asked' TERM; while :; do sleep 0.05; done";
    let language = sh_language()?;
    let running = execute(&sandbox, &spec, &language, source);
    let limit = Duration::from_secs(1) + crate::STOP_GRACE + Duration::from_secs(1);
    let result = within("a run of 1 s and its grace", limit, running).await??;
    equal!(result.outcome, Outcome::TimedOut);
    equal!(result.exit_status, 124);
    // A child that the shell has just forked still has its trap, and may also print.
    let stdout = text(&result.stdout);
    let mut lines = stdout.lines();
    equal!(lines.next(), Some("begun"));
    equal!(lines.next(), Some("asked"));
    ensure!(lines.all(|line| line == "asked"), "stdout is {stdout:?}");
    let hint = result.hint.clone().unwrap_or_default();
    ensure!(hint.contains("timeout"), "the hint is {hint:?}");
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn run_passes_stdin(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = python_language()?;
    let source = "import hashlib, sys\ndata = sys.stdin.buffer.read()\nprint(len(data), data[:3], data[-3:])";
    let input = std::io::Cursor::new(super::streams::pattern(3_000_000));
    let with_input = request(&language, source).stdin(input);
    let result = crate::run::run(&sandbox, &spec, with_input, &mut Silent).await?;
    // 3,000,000 is 48 more than a multiple of 251.
    equal!(text(&result.stdout), "3000000 b'\\x00\\x01\\x02' b'-./'\n");
    let without = execute(&sandbox, &spec, &language, source).await?;
    equal!(text(&without.stdout), "0 b'' b''\n");
    context.stop(sandbox).await
}

async fn run_passes_arguments(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = python_language()?;
    let with_args =
        request(&language, "import sys; print(sys.argv[1:])").args(["a b", "", "{file}", "--flag=\u{e9}"]);
    let result = crate::run::run(&sandbox, &spec, with_args, &mut Silent).await?;
    equal!(text(&result.stdout), "['a b', '', '{file}', '--flag=\u{e9}']\n");
    context.stop(sandbox).await
}

async fn run_uploads_files(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = sh_language()?;
    let file = |target: &str, mode, content: &'static str| InputFile {
        target: PathBuf::from(target),
        mode,
        content: Box::new(content.as_bytes()),
    };
    let with_files = request(&language, "cat data/in/a.csv; ./tool; stat -c %a tool")
        .files([file("data/in/a.csv", 0o644, "1,2\n"), file("tool", 0o755, "#!/bin/sh\necho tool\n")]);
    let result = crate::run::run(&sandbox, &spec, with_files, &mut Silent).await?;
    equal!((text(&result.stdout).as_str(), result.exit_code), ("1,2\ntool\n755\n", Some(0)));
    context.stop(sandbox).await
}

async fn run_accepts_unusual_sources(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = sh_language()?;
    equal!(execute(&sandbox, &spec, &language, "").await?.outcome, Outcome::Exited { code: 0 });
    // Not UTF-8, and larger than one message.
    let odd = RunRequest::new(&language, &b"printf '\xff\xfe'"[..]);
    let result = crate::run::run(&sandbox, &spec, odd, &mut Silent).await?;
    equal!(result.stdout.decode().unwrap_or_default(), b"\xff\xfe");
    let large = format!(": {}\necho end", "x".repeat(6_000_000));
    equal!(text(&execute(&sandbox, &spec, &language, &large).await?.stdout), "end\n");
    context.stop(sandbox).await
}

/// A compiler that copies the source to the program, or reports an error in it.
const COMPILER: &str = r#"compile = ["/bin/sh", "-c", "if grep -q wrong $0; then echo 'line 1: wrong' >&2; exit 3; fi; grep -q slow $0 && sleep 1000; echo compiled; cp $0 $1/$2.out; chmod 755 $1/$2.out", "{file}", "{dir}", "{stem}"]
run = ["{dir}/{stem}.out", "{args}"]
limits = { compile_timeout = "1s" }"#;

async fn run_compiles_first(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = language("fake", COMPILER)?;
    let right = request(&language, "#!/bin/sh\necho ran $1; exit 4").args(["with"]).track_files(true);
    let result = crate::run::run(&sandbox, &spec, right, &mut Silent).await?;
    let compile =
        result.compile.ok_or_else(|| Stop::Failed("no phase compile is in the result".to_owned()))?;
    equal!(text(&compile.stderr), "");
    equal!((compile.phase, &compile.outcome), (Phase::Compile, &Outcome::Exited { code: 0 }));
    equal!((text(&compile.stdout).as_str(), text(&result.stdout).as_str()), ("compiled\n", "ran with\n"));
    equal!(result.outcome, Outcome::Exited { code: 4 });
    context.stop(sandbox).await
}

async fn run_stops_at_a_failed_compile(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = language("fake", COMPILER)?;
    let result = execute(&sandbox, &spec, &language, "#!/bin/sh\n# wrong\necho ran").await?;
    let compile =
        result.compile.ok_or_else(|| Stop::Failed("no phase compile is in the result".to_owned()))?;
    equal!(compile.outcome, Outcome::Exited { code: 3 });
    equal!(text(&compile.stderr), "line 1: wrong\n");
    equal!((&result.outcome, result.exit_code), (&Outcome::Exited { code: 3 }, Some(3)));
    equal!((result.stdout.total_bytes, result.stderr.total_bytes), (0, 0));
    context.stop(sandbox).await
}

async fn run_compile_has_its_own_timeout(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = language("fake", COMPILER)?;
    let running = execute(&sandbox, &spec, &language, "#!/bin/sh\n# slow\necho ran");
    let result = within("a compiler with 1 s", Duration::from_secs(5), running).await??;
    equal!(result.compile.map(|phase| phase.outcome), Some(Outcome::TimedOut));
    equal!((result.outcome, result.exit_status), (Outcome::TimedOut, 124));
    context.stop(sandbox).await
}

async fn run_without_interpreter_is_127(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = language("lost", r#"run = ["no-such-interpreter", "{file}"]"#)?;
    let result = execute(&sandbox, &spec, &language, "x").await?;
    equal!((&result.outcome, result.exit_status), (&Outcome::Exited { code: 127 }, 127));
    let stderr = text(&result.stderr);
    ensure!(stderr.contains("no-such-interpreter") && stderr.ends_with('\n'), "stderr is {stderr:?}");
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

/// Records all events.
#[derive(Default)]
struct Recorder {
    phases: Vec<&'static str>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Sink for Recorder {
    async fn phase(&mut self, phase: &'static str, _: u64) {
        self.phases.push(phase);
    }

    async fn output(&mut self, stream: OutputStream, _: u64, data: &[u8]) {
        match stream {
            OutputStream::Stdout => self.stdout.extend_from_slice(data),
            OutputStream::Stderr => self.stderr.extend_from_slice(data),
        }
    }
}

async fn run_reports_phases_and_output_live(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = language("fake", COMPILER)?;
    let mut recorder = Recorder::default();
    let request = request(&language, "#!/bin/sh\necho out; echo err >&2");
    crate::run::run(&sandbox, &spec, request, &mut recorder).await?;
    equal!(recorder.phases, ["compile", "run"]);
    equal!(
        (recorder.stdout.as_slice(), recorder.stderr.as_slice()),
        (b"compiled\nout\n".as_slice(), b"err\n".as_slice())
    );
    context.stop(sandbox).await
}

async fn run_fails_if_the_guest_is_gone(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    sandbox.guest().set_deadline(Some(Duration::from_millis(1))).await?;
    within("the sandbox's end", Duration::from_secs(5), sandbox.wait_ended()).await?;
    let language = sh_language()?;
    let running = execute(&sandbox, &spec, &language, "echo alive");
    match within("a run in a sandbox that is gone", Duration::from_secs(10), running).await? {
        Err(_) => {}
        Ok(result) => {
            let is_infrastructure = matches!(result.outcome, Outcome::Infrastructure { .. });
            ensure!(is_infrastructure, "a run in a sandbox that is gone ended with {:?}", result.outcome);
        }
    }
    context.stop(sandbox).await
}
