//! Starting programs: arguments, environment, working directory, and exit status.

use std::time::Duration;

use belljar_model::EnvVar;
use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;

use super::case::{Case, Checked, cases, ensure, equal};
use super::context::Context;
use super::program::{argv, check_usable, finish, py, python, sh, shell, variable};
use crate::client::GuestError;
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    argv_is_exact [],
    argv_is_looked_up_in_path [],
    shell_line_runs [],
    shell_line_has_any_length [],
    bad_requests_are_refused [],
    programs_that_cannot_start_are_refused [],
    environment_is_as_requested [],
    working_directory_is_as_requested [],
    other_users_are_refused [],
    exit_codes_are_exact [],
    signals_are_reported [],
    usage_of_a_process_is_reported [],
    concurrent_processes_are_independent [],
    list_names_processes [],
];

/// Fails unless `result` is a refusal with this code whose message contains each of `words`.
pub(super) fn expect_refused<T>(result: Result<T, GuestError>, code: ErrorCode, words: &[&str]) -> Checked {
    let Err(error) = result else {
        return Err(super::Stop::Failed(format!("it was not refused with {code:?}")));
    };
    ensure!(error.is(code), "it was refused with {error:?} instead of {code:?}");
    let text = error.to_string();
    for word in words {
        ensure!(text.contains(word), "the refusal {text:?} does not contain {word:?}");
    }
    Ok(())
}

async fn expect_start_refused(
    sandbox: &Sandbox,
    request: v1::StartRequest,
    code: ErrorCode,
    words: &[&str],
) -> Checked {
    expect_refused(sandbox.guest().start(request).await, code, words)
}

async fn shell_line_has_any_length(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for length in [128 * 1024 - 2, 128 * 1024 - 1, 128 * 1024, 300_000, 3_000_000] {
        let begin = "[ ! -e /proc/$$/fd/9 ] || echo leaked; echo \"$0 $#\" ${#LONG}; LONG='";
        let end = "'; echo ${#LONG}; exit 7";
        let filler = "x".repeat(length - begin.len() - end.len());
        let finished = finish(&sandbox, shell(&format!("{begin}{filler}{end}"))).await?;
        equal!(finished.text(), format!("/bin/sh 0 0\n{}", filler.len()));
        equal!(finished.end(), (7, 0));
    }
    let long = argv(["true", &"x".repeat(200_000)]);
    expect_start_refused(&sandbox, long, ErrorCode::InvalidArgument, &["too long", "128 KiB"]).await?;
    context.stop(sandbox).await
}

async fn argv_is_exact(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let words: [&[u8]; 9] =
        [b"a b", b"", b"$HOME", b"*", "\u{e9}\u{1f980}".as_bytes(), b"\n", b"\xff\xfe", b"-c", b"'\"\\"];
    let code = "import os,sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))";
    let mut request = python(code);
    request.argv.extend(words.iter().map(|word| Bytes::copy_from_slice(word)));
    let finished = finish(&sandbox, request).await?.expect_success()?;
    equal!(finished.stdout, words.join(b"\0".as_slice()));
    context.stop(sandbox).await
}

async fn argv_is_looked_up_in_path(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    finish(&sandbox, argv(["true"])).await?.expect_success()?;
    let script = sandbox.home.join("tools/own-tool");
    sandbox.guest().write(&script, 0o755, Bytes::from_static(b"#!/bin/sh\necho own \"$1\"\n")).await?;
    let mut request = argv(["own-tool", "way"]);
    let path = format!("{}:/usr/bin:/bin", sandbox.home.join("tools").display());
    request.env.push(variable("PATH", &path));
    equal!(finish(&sandbox, request).await?.expect_success()?.text(), "own way");
    expect_start_refused(&sandbox, argv(["own-tool"]), ErrorCode::NotFound, &["own-tool"]).await?;
    context.stop(sandbox).await
}

async fn shell_line_runs(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let finished = sh(&sandbox, "echo $((6 * 7)) | tr 4 x; exit 3").await?;
    equal!(finished.text(), "x2");
    equal!(finished.end(), (3, 0));
    context.stop(sandbox).await
}

async fn bad_requests_are_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let with = |change: fn(&mut v1::StartRequest)| {
        let mut request = argv(["true"]);
        change(&mut request);
        request
    };
    let cases: [(v1::StartRequest, &str); 9] = [
        (v1::StartRequest::default(), "argv"),
        (argv([""]), "argv"),
        (with(|request| request.shell = Bytes::from_static(b"true")), "shell"),
        (argv(["true", "a\0b"]), "NUL"),
        (shell("echo a\0b"), "NUL"),
        (with(|request| request.cwd = Bytes::from_static(b"a\0b")), "cwd"),
        (with(|request| request.env.push(variable("A=B", "c"))), "env"),
        (with(|request| request.env.push(variable("A", "b\0c"))), "env"),
        (with(|request| request.stdin = Bytes::from(vec![0; 64 * 1024 + 1])), "stdin"),
    ];
    for (request, word) in cases {
        expect_start_refused(&sandbox, request, ErrorCode::InvalidArgument, &[word]).await?;
    }
    equal!(sandbox.guest().list_processes().await?.len(), 0);
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn programs_that_cannot_start_are_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    guest.write("not-executable".as_ref(), 0o644, Bytes::from_static(b"#!/bin/sh\n")).await?;
    guest.write("no-program".as_ref(), 0o755, Bytes::from_static(b"\x7fELF nonsense")).await?;
    guest.write("lost".as_ref(), 0o755, Bytes::from_static(b"#!/no/such/interpreter\n")).await?;
    let cases = [
        ("/no/such/program", ErrorCode::NotFound),
        ("no-such-program", ErrorCode::NotFound),
        ("./not-executable", ErrorCode::PermissionDenied),
        ("/usr", ErrorCode::PermissionDenied),
        ("./no-program", ErrorCode::FailedPrecondition),
        ("./lost", ErrorCode::NotFound),
    ];
    for (program, code) in cases {
        expect_start_refused(&sandbox, argv([program]), code, &[program]).await?;
    }
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn environment_is_as_requested(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.env.push(EnvVar::new("GIVEN", "to all")?);
    spec.env.push(EnvVar::new("CHANGED", "before")?);
    let sandbox = context.sandbox_with(&spec).await?;
    let mut request = argv(["/usr/bin/env", "-0"]);
    request.env.push(variable("CHANGED", "a b=\n\u{e9}"));
    request.env.push(variable("EMPTY", ""));
    let finished = finish(&sandbox, request).await?.expect_success()?;
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    let lines: Vec<&str> = text.split_terminator('\0').collect();
    for expected in ["GIVEN=to all", "CHANGED=a b=\n\u{e9}", "EMPTY="] {
        ensure!(lines.contains(&expected), "{expected:?} is not in {lines:?}");
    }
    let home = format!("HOME={}", sandbox.home.display());
    ensure!(lines.contains(&home.as_str()), "{home:?} is not in {lines:?}");
    // What users install is found first.
    let path = format!("PATH={}/.local/bin:", sandbox.home.display());
    ensure!(lines.iter().any(|line| line.starts_with(&path)), "{path:?} begins none of {lines:?}");
    let known = [
        "BELLJAR_SANDBOX",
        "CHANGED",
        "EMPTY",
        "GIVEN",
        "GOMAXPROCS",
        "HOME",
        "JDK_JAVA_OPTIONS",
        "LANG",
        "LOGNAME",
        "NPM_CONFIG_PREFIX",
        "OMP_NUM_THREADS",
        "PATH",
        "PIP_BREAK_SYSTEM_PACKAGES",
        "PIP_DISABLE_PIP_VERSION_CHECK",
        "SHELL",
        "TMPDIR",
        "USER",
    ];
    for line in &lines {
        let name = line.split('=').next().unwrap_or_default();
        ensure!(known.contains(&name), "{name:?} came in from outside");
    }
    context.stop(sandbox).await
}

async fn working_directory_is_as_requested(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    guest.make_dir("below/it".as_ref(), true).await?;
    guest.write("a-file".as_ref(), 0o644, Bytes::new()).await?;
    let home = sandbox.home.display().to_string();
    for (cwd, expected) in
        [("", home.clone()), ("below/it", format!("{home}/below/it")), ("/usr", "/usr".to_owned())]
    {
        let mut request = argv(["/bin/pwd"]);
        request.cwd = Bytes::copy_from_slice(cwd.as_bytes());
        equal!(finish(&sandbox, request).await?.expect_success()?.text(), expected);
    }
    for cwd in ["/no/such/place", "a-file"] {
        let mut request = argv(["/bin/pwd"]);
        request.cwd = Bytes::copy_from_slice(cwd.as_bytes());
        expect_start_refused(&sandbox, request, ErrorCode::FailedPrecondition, &["cwd", cwd]).await?;
    }
    context.stop(sandbox).await
}

async fn other_users_are_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for user in ["root", "0", "nobody", "user2"] {
        let mut request = argv(["true"]);
        request.user = user.to_owned();
        expect_start_refused(&sandbox, request, ErrorCode::InvalidArgument, &["user", user]).await?;
    }
    let mut request = argv(["true"]);
    request.user = "user".to_owned();
    finish(&sandbox, request).await?.expect_success()?;
    context.stop(sandbox).await
}

async fn exit_codes_are_exact(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for code in 0..=255 {
        let finished = sh(&sandbox, &format!("exit {code}")).await?;
        equal!(finished.end(), (code, 0));
    }
    context.stop(sandbox).await
}

async fn signals_are_reported(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for signal in [1, 2, 3, 6, 8, 9, 11, 13, 14, 15, 24, 31, 34, 64] {
        let code = format!(
            "import os,signal\ntry: signal.signal({signal}, signal.SIG_DFL)\nexcept OSError: pass\nos.kill(os.getpid(), {signal})"
        );
        let finished = finish(&sandbox, python(&code)).await?;
        equal!(finished.end(), (0, signal));
        equal!(finished.cause(), v1::Cause::CAUSE_UNSPECIFIED);
    }
    context.stop(sandbox).await
}

async fn usage_of_a_process_is_reported(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import time
block = b'x' * (64 << 20)
while time.process_time() < 0.3: pass
";
    let finished = py(&sandbox, code).await?;
    ensure!(finished.cpu() >= Duration::from_millis(300), "it used {:?} of CPU", finished.cpu());
    ensure!(finished.cpu() < Duration::from_secs(5), "it used {:?} of CPU", finished.cpu());
    ensure!(finished.exited.max_rss >= 64 << 20, "its peak is {} bytes", finished.exited.max_rss);
    let wall = Duration::from_micros(finished.exited.wall_us);
    ensure!(wall >= Duration::from_millis(300) && wall <= finished.took, "its wall time is {wall:?}");
    context.stop(sandbox).await
}

async fn concurrent_processes_are_independent(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let running = (0..24).map(|number| {
        let line = format!("read go; for i in 1 2 3; do echo {number}; done; exit {number}");
        let mut request = shell(&line);
        request.stdin = Bytes::from_static(b"go\n");
        finish(&sandbox, request)
    });
    let mut ids = std::collections::BTreeSet::new();
    for (number, finished) in futures::future::join_all(running).await.into_iter().enumerate() {
        let finished = finished?;
        equal!(finished.text(), format!("{number}\n{number}\n{number}"));
        equal!(finished.end(), (i32::try_from(number)?, 0));
        ensure!(ids.insert(finished.id), "the number {} was given twice", finished.id);
    }
    context.stop(sandbox).await
}

async fn list_names_processes(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let ended = sh(&sandbox, "printf abc; exit 5").await?;
    let running = sandbox.guest().start(argv(["sleep", "1000"])).await?;
    let list = sandbox.guest().list_processes().await?;
    equal!(list.len(), 2);
    let (first, second) = (&list[0], &list[1]);
    equal!((first.id, first.running), (ended.id, false));
    equal!(first.exited.as_option().map(|exited| exited.code), Some(5));
    equal!(first.stdout_bytes, 3);
    equal!((second.id, second.pid, second.running), (running.id, running.pid, true));
    equal!(second.argv, [Bytes::from_static(b"sleep"), Bytes::from_static(b"1000")]);
    ensure!(!second.exited.is_set(), "a running process has an end");
    context.stop(sandbox).await
}
