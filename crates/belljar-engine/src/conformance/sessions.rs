//! Sessions: shells that keep their state from one command to the next.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;

use super::case::{Capability, Case, Checked, cases, ensure, equal, eventually, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{Finished, check_usable, collect, count_processes, read_until, sh, variable};
use crate::client::{GuestClient, GuestError};

pub(super) const CASES: &[Case] = cases![
    session_keeps_state [],
    session_runs_any_shell_command [],
    session_output_is_complete [],
    session_ends_with_its_shell [],
    session_runs_one_command_at_a_time [],
    session_background_jobs_do_not_delay_commands [],
    session_survives_timeout_if_possible [],
    session_commands_are_signalled_and_attached_to [],
    session_ends_cannot_be_forged_by_output [],
    session_requests_are_checked [],
    sessions_are_bounded_and_listed [],
    session_close_kills_everything_it_started [],
];

const LOST: v1::SessionState = v1::SessionState::SESSION_STATE_LOST;
const PRESERVED: v1::SessionState = v1::SessionState::SESSION_STATE_PRESERVED;

pub(super) fn command(id: u64, text: &str) -> v1::SessionRun {
    v1::SessionRun { id, command: Bytes::copy_from_slice(text.as_bytes()), ..Default::default() }
}

pub(super) async fn open(guest: &GuestClient, shell: &str) -> Checked<u64> {
    let request = v1::SessionOpen { shell: Bytes::copy_from_slice(shell.as_bytes()), ..Default::default() };
    Ok(guest.open_session(request).await?.id)
}

pub(super) async fn run_request(guest: &GuestClient, request: v1::SessionRun) -> Checked<Finished> {
    collect(guest.run_in_session(request).await?).await
}

async fn run(guest: &GuestClient, id: u64, text: &str) -> Checked<Finished> {
    run_request(guest, command(id, text)).await
}

fn state(finished: &Finished) -> v1::SessionState {
    finished.exited.session_state.as_known().unwrap_or_default()
}

/// Runs a command that must preserve the session; returns its output and exit code.
async fn run_ok(guest: &GuestClient, id: u64, text: &str) -> Checked<(String, i32)> {
    let finished = run(guest, id, text).await?;
    equal!((state(&finished), finished.exited.signal), (PRESERVED, 0));
    Ok((finished.text(), finished.exited.code))
}

fn ok(text: &str) -> (String, i32) {
    (text.to_owned(), 0)
}

async fn session_keeps_state(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for shell in ["", "/bin/sh"] {
        let id = open(guest, shell).await?;
        equal!(run_ok(guest, id, "pwd").await?, ok(&sandbox.home.display().to_string()));
        run_ok(
            guest,
            id,
            "mkdir -p d/e; cd d/e; own=1; export given='a b'; f() { echo \"f $1 $own\"; return 7; }",
        )
        .await?;
        let here = sandbox.home.join("d/e").display().to_string();
        equal!(
            run_ok(guest, id, "pwd; echo $own; sh -c 'echo $given $own'").await?,
            ok(&format!("{here}\n1\na b"))
        );
        equal!(run_ok(guest, id, "f x").await?, ("f x 1".to_owned(), 7));
        equal!(run_ok(guest, id, "echo $?").await?, ok("7"));
        equal!(run_ok(guest, id, "echo $?").await?, ok("0"));
        equal!(run_ok(guest, id, "(exit 255)").await?.1, 255);
        run_ok(guest, id, "set -u; umask 027; cd ~; rm -r d; alias hi='echo alias'").await?;
        equal!(run_ok(guest, id, "umask; unset own").await?, ok("0027"));
        equal!(run_ok(guest, id, "hi").await?, ok("alias"));
        guest.close_session(id).await?;
    }
    let mut request = v1::SessionOpen { cwd: Bytes::from_static(b"/tmp"), ..Default::default() };
    request.env.push(variable("GIVEN", "x\ny"));
    let id = guest.open_session(request).await?.id;
    equal!(run_ok(guest, id, "pwd; echo \"$GIVEN\"").await?, ok("/tmp\nx\ny"));
    context.stop(sandbox).await
}

async fn session_runs_any_shell_command(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for shell in ["", "/bin/sh"] {
        let id = open(guest, shell).await?;
        let cases = [
            ("", ok("")),
            ("# only a comment", ok("")),
            ("echo 'single' \"double $((6*7))\" \\\\ \\'", ok("single double 42 \\ '")),
            ("for n in 1 2 3\ndo\n echo $n\ndone | tr '\\n' ' '", ok("1 2 3")),
            ("cat <<'END'\n$a '\nEND", ok("$a '")),
            ("cat", ok("")),
            ("read line || echo nothing to read", ok("nothing to read")),
            ("exec 3> kept; echo in the file >&3", ok("")),
            ("echo more >&3; cat kept", ok("in the file\nmore")),
            ("true &\nwait", ok("")),
        ];
        for (text, expected) in cases {
            equal!((text, run_ok(guest, id, text).await?), (text, expected));
        }
        for broken in ["if", "echo 'open", "(", "fi"] {
            let finished = run(guest, id, broken).await?;
            ensure!(
                finished.exited.code != 0 && !finished.errors().is_empty(),
                "{broken}: {:?}",
                finished.exited
            );
            equal!((broken, state(&finished)), (broken, PRESERVED));
        }
        let long = format!("x='{}'; echo ${{#x}}", "y".repeat(200_000));
        equal!(run_ok(guest, id, &long).await?, ok("200000"));
        guest.close_session(id).await?;
    }
    context.stop(sandbox).await
}

async fn session_output_is_complete(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let id = open(guest, "").await?;
    for round in 0..50 {
        let finished = run(guest, id, &format!("printf 'out{round}'; printf 'err{round}' >&2")).await?;
        equal!((finished.text(), finished.errors()), (format!("out{round}"), format!("err{round}")));
        equal!(
            (finished.exited.stdout_bytes, finished.exited.stderr_bytes),
            (finished.stdout.len() as u64, finished.stderr.len() as u64)
        );
    }
    let finished = run(guest, id, "head -c 20000000 /dev/zero; printf end").await?;
    equal!(finished.stdout.len(), 20_000_003);
    ensure!(finished.stdout.ends_with(b"end"), "the last bytes are missing");
    let mut request = command(id, "head -c 30000000 /dev/zero");
    request.keep_bytes = 1 << 20;
    let number = {
        let mut execution = guest.run_in_session(request).await?;
        execution.next().await?;
        execution.id
    };
    // Without a reader, the command still continues.
    eventually("the session is idle", Duration::from_secs(30), async || {
        Ok(guest.list_sessions().await?.iter().all(|session| session.command == 0))
    })
    .await?;
    let (late, gaps) = super::program::collect_with_gaps(guest.attach(number, [0; 3]).await?, [0; 3]).await?;
    equal!(late.stdout.len() as u64 + gaps, 30_000_000);
    context.stop(sandbox).await
}

async fn session_ends_with_its_shell(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let cases = [
        ("echo bye; exit 3", "bye", (3, 0)),
        ("set -e; echo on; false; echo off", "on", (1, 0)),
        ("exec echo instead", "instead", (0, 0)),
        ("echo killed; kill -9 $$", "killed", (0, 9)),
        ("trap 'echo trapped' EXIT; exit 0", "trapped", (0, 0)),
    ];
    for shell in ["", "/bin/sh"] {
        for (text, output, end) in cases {
            let id = open(guest, shell).await?;
            let finished = run(guest, id, text).await?;
            equal!((text, finished.text().as_str(), finished.end()), (text, output, end));
            equal!(state(&finished), LOST);
            let again = guest.run_in_session(command(id, "true")).await.map(|_| ());
            expect_refused(again, ErrorCode::NotFound, &["has ended", "open a new"])?;
            expect_refused(guest.close_session(id).await, ErrorCode::NotFound, &["has ended"])?;
        }
        let id = open(guest, shell).await?;
        // A tolerated failure under `set -e` does not end the session.
        run_ok(guest, id, "set -e; false || true").await?;
        equal!(run_ok(guest, id, "if false; then :; fi; echo on").await?, ok("on"));
        guest.close_session(id).await?;
    }
    equal!(guest.list_sessions().await?.len(), 0);
    context.stop(sandbox).await
}

async fn session_runs_one_command_at_a_time(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let id = open(guest, "").await?;
    let other = open(guest, "").await?;
    // `begun` is printed by the process that is signalled: between two commands the shell has none to signal.
    let mut first = guest.run_in_session(command(id, "sh -c 'echo begun; exec sleep 1000'")).await?;
    read_until(&mut first, "begun").await?;
    let second = guest.run_in_session(command(id, "true")).await.map(|_| ());
    expect_refused(second, ErrorCode::FailedPrecondition, &["running command", &first.id.to_string()])?;
    equal!(run_ok(guest, other, "echo beside").await?, ok("beside"));
    equal!(guest.signal(first.id, 2, false).await?, 1);
    let finished = collect(first).await?;
    equal!((finished.exited.code, state(&finished)), (130, PRESERVED));
    equal!(run_ok(guest, id, "echo after").await?, ok("after"));
    context.stop(sandbox).await
}

async fn session_background_jobs_do_not_delay_commands(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let id = open(guest, "").await?;
    let line = "(while [ ! -e go ]; do sleep 0.02; done; echo later; echo later too >&2; touch done; sleep 1000) & echo now";
    let finished = within("a command with a job", Duration::from_secs(10), run(guest, id, line)).await??;
    equal!((finished.text(), state(&finished)), ("now".to_owned(), PRESERVED));
    sh(&sandbox, "touch go").await?.expect_success()?;
    eventually("the job has written", Duration::from_secs(10), async || {
        Ok(guest.stat("done".as_ref(), false).await.is_ok())
    })
    .await?;
    let finished = run(guest, id, "echo next").await?;
    equal!((finished.text().as_str(), finished.errors().as_str()), ("later\nnext", "later too"));
    // A timeout does not affect a job of an earlier command.
    let mut request = command(id, "sleep 1000");
    request.timeout_ms = 100;
    let finished = run_request(guest, request).await?;
    equal!((finished.cause(), state(&finished)), (v1::Cause::CAUSE_TIMED_OUT, PRESERVED));
    equal!(run_ok(guest, id, "kill -0 $! && echo alive; kill $!").await?, ok("alive"));
    // Endless output of a job without a reader neither fills the guest's memory nor blocks the job.
    run_ok(
        guest,
        id,
        "(while [ ! -e write ]; do sleep 0.02; done; head -c 50000000 /dev/zero; touch wrote) &",
    )
    .await?;
    sh(&sandbox, "touch write").await?.expect_success()?;
    eventually("the job has written all", Duration::from_secs(30), async || {
        Ok(guest.stat("wrote".as_ref(), false).await.is_ok())
    })
    .await?;
    let execution = guest.run_in_session(command(id, "echo next")).await?;
    let (finished, gaps) = super::program::collect_with_gaps(execution, [0; 3]).await?;
    ensure!(finished.text().ends_with("next"), "the command wrote nothing");
    equal!(finished.stdout.len() as u64 + gaps, 50_000_005);
    ensure!(finished.stdout.len() < 2 << 20, "{} bytes were kept", finished.stdout.len());
    context.stop(sandbox).await
}

async fn session_survives_timeout_if_possible(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let with_timeout = |id, text: &str, timeout_ms| {
        let mut request = command(id, text);
        request.timeout_ms = timeout_ms;
        request.grace_ms = 200;
        request
    };
    let kept = [
        ("sleep 1000", Some(130)),
        ("sleep 1000 | cat", None),
        (
            "/usr/bin/python3 -ISc 'import signal,time; signal.signal(2, signal.SIG_IGN); print(\"ready\", flush=True); time.sleep(1000)'",
            Some(143),
        ),
        (
            "/usr/bin/python3 -ISc 'import signal,time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print(\"ready\", flush=True); time.sleep(1000)'",
            Some(137),
        ),
    ];
    // Each runs in a session of its own, so that the timeouts elapse concurrently.
    // Bash skips what is left of the command, and leaves loops.
    let skipped = [
        ("sleep 1000; touch ran; f() { sleep 1000; touch ran; }; f || touch ran", Some(130)),
        (
            "f() { for n in 1 2; do sleep 1000 && touch ran; done; touch ran; }; while ! f; do :; done; touch ran",
            Some(130),
        ),
        ("while :; do :; done; touch ran", Some(130)),
        ("(sleep 1000; touch ran) || x=$(sleep 1000; touch ran); [[ -n x ]] && touch ran", Some(130)),
    ];
    let keeps = ["", "/bin/sh"].into_iter().flat_map(|shell| kept.map(|(text, code)| (shell, text, code)));
    let keeps = keeps.chain(skipped.map(|(text, code)| ("", text, code)));
    let keeps = keeps.map(async |(shell, text, code)| -> Checked {
        let id = open(guest, shell).await?;
        run_ok(guest, id, "kept=here").await?;
        // Again with more time, if a program has not set up in it how it answers signals.
        let mut timeout_ms = 2000;
        let finished = loop {
            let running = run_request(guest, with_timeout(id, text, timeout_ms));
            let finished = within(text, Duration::from_secs(60), running).await??;
            if !text.contains("ready") || finished.text().contains("ready") || timeout_ms > 30_000 {
                break finished;
            }
            timeout_ms *= 2;
        };
        equal!((text, finished.cause(), state(&finished)), (text, v1::Cause::CAUSE_TIMED_OUT, PRESERVED));
        ensure!(code.is_none_or(|code| code == finished.exited.code), "{text}: {:?}", finished.exited);
        equal!(
            run_ok(guest, id, "echo $kept; ls ran 2>/dev/null; for n in 1 2; do echo $n; done").await?,
            ok("here\n1\n2")
        );
        Ok(guest.close_session(id).await?)
    });
    let loses = ["/bin/sh"].map(async |shell| -> Checked {
        let id = open(guest, shell).await?;
        let finished = run_request(guest, with_timeout(id, "echo loop; while :; do :; done", 2000)).await?;
        equal!(
            (finished.text().as_str(), finished.cause(), state(&finished)),
            ("loop", v1::Cause::CAUSE_TIMED_OUT, LOST)
        );
        equal!(finished.end(), (0, 9));
        Ok(())
    });
    futures::try_join!(futures::future::try_join_all(keeps), futures::future::try_join_all(loses))?;
    eventually("nothing runs any more", Duration::from_secs(10), async || {
        Ok(count_processes(&sandbox).await? == 0)
    })
    .await?;
    context.stop(sandbox).await
}

async fn session_commands_are_signalled_and_attached_to(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let id = open(guest, "").await?;
    let mut first = guest
        .run_in_session(command(
            id,
            "echo begun; while [ ! -e go ]; do sleep 0.02; done; echo end; f() { return 4; }; f",
        ))
        .await?;
    let number = first.id;
    read_until(&mut first, "begun\n").await?;
    drop(first);
    let listed = guest.list_processes().await?;
    ensure!(listed.iter().any(|info| info.id == number && info.running), "it is not listed: {listed:?}");
    let attached = guest.attach(number, [6, 0, 0]).await?;
    sh(&sandbox, "touch go").await?.expect_success()?;
    let (finished, _) = super::program::collect_with_gaps(attached, [6, 0, 0]).await?;
    equal!((finished.text().as_str(), finished.exited.code, state(&finished)), ("end", 4, PRESERVED));
    // The output of an ended command can still be read.
    let again = collect(guest.attach(number, [0; 3]).await?).await?;
    equal!((again.text().as_str(), again.exited.code), ("begun\nend", 4));
    equal!(guest.signal(number, 9, true).await?, 0);
    equal!(guest.feed(number, b"x".as_slice(), true).await?, 0);
    equal!(run_ok(guest, id, "echo alive").await?, ok("alive"));
    context.stop(sandbox).await
}

async fn session_ends_cannot_be_forged_by_output(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for shell in ["", "/bin/sh"] {
        let id = open(guest, shell).await?;
        let flood = "n=0; while [ $n -lt 20 ]; do echo \"$n 0\"; n=$((n+1)); done; sleep 0.2; echo end";
        let (text, code) = run_ok(guest, id, flood).await?;
        ensure!(text.ends_with("19 0\nend") && code == 0, "it ended before its end: {text}");
        // Children do not inherit the control descriptor.
        equal!(run_ok(guest, id, "ls /proc/self/fd | tr '\\n' ' '").await?, ok("0 1 2 3"));
        // The shell's descriptor can be reached by its path. Reports about other commands and invalid reports are ignored.
        let forged = "for w in '1 0' '99 0' 'x' '3' '3 0 0' '3 999'; do echo \"$w\" > /proc/$$/fd/9; done; head -c 100000 /dev/zero > /proc/$$/fd/9; echo > /proc/$$/fd/9; sleep 0.2; echo end; (exit 6)";
        equal!(run_ok(guest, id, forged).await?, ("end".to_owned(), 6));
        equal!(run_ok(guest, id, "exec 9>&-; echo on").await?, ok("on"));
        equal!(run_ok(guest, id, "echo on").await?, ok("on"));
        // A command that redefines the shell's builtins harms only itself.
        let mut request = command(id, "command() { :; }; printf() { :; }; unalias -a; echo x");
        request.timeout_ms = 300;
        request.grace_ms = 100;
        let finished = run_request(guest, request).await?;
        ensure!(matches!(state(&finished), LOST | PRESERVED), "{:?}", finished.exited);
    }
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn session_requests_are_checked(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let id = open(guest, "").await?;
    let run = |text: Vec<u8>| {
        guest.run_in_session(v1::SessionRun { id, command: text.into(), ..Default::default() })
    };
    expect_refused(run(b"a\0b".to_vec()).await.map(|_| ()), ErrorCode::InvalidArgument, &["command", "NUL"])?;
    expect_refused(
        run(vec![b' '; 256 * 1024 + 1]).await.map(|_| ()),
        ErrorCode::InvalidArgument,
        &["command", "bytes"],
    )?;
    expect_refused(
        guest.run_in_session(command(77, "true")).await.map(|_| ()),
        ErrorCode::NotFound,
        &["77"],
    )?;
    expect_refused(guest.close_session(77).await, ErrorCode::NotFound, &["77"])?;
    let open = |change: fn(&mut v1::SessionOpen)| {
        let mut request = v1::SessionOpen::default();
        change(&mut request);
        guest.open_session(request)
    };
    let result = open(|request| request.cwd = Bytes::from_static(b"missing")).await;
    expect_refused(result, ErrorCode::FailedPrecondition, &["cwd", "missing"])?;
    let result = open(|request| request.shell = Bytes::from_static(b"no-such-shell")).await;
    expect_refused(result, ErrorCode::NotFound, &["no-such-shell"])?;
    let result = open(|request| request.env.push(variable("A=B", "c"))).await;
    expect_refused(result, ErrorCode::InvalidArgument, &["env"])?;
    equal!(guest.list_sessions().await?.len(), 1);
    // With a program that is not a shell, the session ends at its first command, or before it.
    let id = open(|request| request.shell = Bytes::from_static(b"/bin/true")).await?.id;
    match guest.run_in_session(command(id, "true")).await {
        Ok(execution) => equal!(state(&collect(execution).await?), LOST),
        Err(error) => ensure!(error.is(ErrorCode::NotFound), "it was refused with {error:?}"),
    }
    context.stop(sandbox).await
}

async fn sessions_are_bounded_and_listed(context: &Context) -> Checked {
    const MAX_SESSIONS: usize = 32;
    let mut spec = context.spec();
    spec.limits.pids = "200".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let guest = sandbox.guest();
    let mut ids = Vec::new();
    for _ in 0..MAX_SESSIONS {
        ids.push(open(guest, "").await?);
    }
    let more = guest.open_session(v1::SessionOpen::default()).await;
    expect_refused(more, ErrorCode::ResourceExhausted, &["limit of 32"])?;
    for id in &ids {
        run_ok(guest, *id, &format!("mine={id}")).await?;
    }
    for id in &ids {
        equal!(run_ok(guest, *id, "echo $mine").await?, ok(&id.to_string()));
    }
    let listed = guest.list_sessions().await?;
    equal!(listed.iter().map(|session| session.id).collect::<Vec<_>>(), ids);
    ensure!(listed.iter().all(|session| (session.commands, session.command) == (2, 0)), "{listed:?}");
    guest.close_session(ids[0]).await?;
    let next = open(guest, "").await?;
    ensure!(!ids.contains(&next), "the id {next} was reused");
    context.stop(sandbox).await
}

async fn session_close_kills_everything_it_started(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let id = open(guest, "").await?;
    run_ok(guest, id, "sleep 1000 & (sleep 1000 &)").await?;
    let mut execution = guest.run_in_session(command(id, "echo begun; sleep 1000; echo on")).await?;
    read_until(&mut execution, "begun").await?;
    within("closing", Duration::from_secs(15), guest.close_session(id)).await??;
    let finished = collect(execution).await?;
    equal!((finished.cause(), state(&finished)), (v1::Cause::CAUSE_STOPPED, LOST));
    equal!(guest.list_sessions().await?.len(), 0);
    if context.has(Capability::OwnPids) {
        eventually("nothing runs any more", Duration::from_secs(10), async || {
            Ok(count_processes(&sandbox).await? == 0)
        })
        .await?;
    }
    let gone = guest.run_in_session(command(id, "true")).await;
    ensure!(matches!(gone, Err(GuestError::Refused { code: ErrorCode::NotFound, .. })), "{gone:?}");
    context.stop(sandbox).await
}
