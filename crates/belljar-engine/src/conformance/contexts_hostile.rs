//! Interpreters that attack their guest, and readers that do not read.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;

use super::case::{Case, Checked, cases, ensure, equal, eventually, within};
use super::context::Context;
use super::contexts::{
    DIED, ERROR, EXECUTION_TIMEOUT, LOST, OK, PRESERVED, code, execute, in_context, run, start_until_here,
    value, with_timeout,
};
use super::processes::expect_refused;
use super::program::{check_usable, sh, variable};
use crate::client::{CodeEvent, CodeExecution, GuestClient};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    context_frames_of_many_values_do_no_harm [],
    context_json_arrives_unchanged [],
    context_endless_beginnings_of_marks_are_bounded [],
    context_is_ended_despite_a_stalled_reader [],
    context_interrupt_reaches_code_with_a_stalled_reader [],
    context_of_bash_refuses_invalid_directories [],
    context_of_bash_restores_everything [],
    context_of_bash_counts_processor_time [],
    context_of_bash_delivers_earlier_background_output [],
    context_with_a_fork_bomb_is_ended [EnforcedPids],
    context_directories_are_checked [],
];

/// Timeout of operations that must not wait for a reader.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends frames on every socket of the interpreter.
const FRAMES: &str = "import os, stat
def frame(data):
    assert len(data) < 32 << 20
    data = len(data).to_bytes(4, 'big') + data
    for fd in [int(name) for name in os.listdir('/proc/self/fd')]:
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode): continue
            rest = memoryview(data)
            while rest: rest = rest[os.write(fd, rest[:65536]):]
        except OSError: pass
";

async fn context_frames_of_many_values_do_no_harm(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let pid = value(guest, &format!("{FRAMES}os.getpid()")).await?;
    for text in [
        "b'{\"op\":\"result\",\"data\":{\"application/json\":[' + b'0,' * 16_000_000 + b'0]}}'",
        "b'{\"op\":\"result\",\"data\":{\"application/json\":[' + b'[0],' * 8_000_000 + b'0]}}'",
        "b'{\"op\":\"result\",\"metadata\":{\"a\":[' + b'0,' * 16_000_000 + b'0]}}'",
        "b'{\"op\":\"result\",\"cut\":[' + b'\"\",' * 11_000_000 + b'\"\"]}'",
        "b'{\"op\":\"result\",\"data\":{' + b','.join(b'\"%d\":0' % n for n in range(1_000_000)) + b'}}'",
        "b'{\"op\":\"later\",\"other\":[' + b'0,' * 16_000_000 + b'0]}'",
    ] {
        let done = run(guest, &format!("frame({text})")).await?;
        equal!((text, done.end(), done.results.len()), (text, (OK, PRESERVED), 0));
    }
    equal!(value(guest, "os.getpid()").await?, pid);
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn context_json_arrives_unchanged(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let json = |text: &str| format!("display({{'application/json': {text}}}, raw=True)");
    let done = run(guest, &json("{'z': 2**70, 'a': [1.5, None, 'ü']}")).await?;
    let shown = done.results.iter().flat_map(|result| &result.data).next().cloned().unwrap_or_default();
    equal!(shown.mime, "application/json");
    let shown = String::from_utf8_lossy(&shown.data).replace(' ', "");
    ensure!(shown.starts_with("{\"z\":1180591620717411303424,\"a\":[1.5,null,"), "{shown}");
    // Large values do not exhaust the memory of the guest or the host.
    for (count, comes) in [(600_000, true), (1_000_000, false)] {
        let done = run(guest, &json(&format!("[[0, 0]] * {count}"))).await?;
        equal!(done.end(), (OK, PRESERVED));
        let bytes = done.results.iter().flat_map(|result| &result.data).map(|form| form.data.len()).max();
        equal!((count, bytes.is_some_and(|bytes| bytes > 3_000_000)), (count, comes));
        ensure!(
            comes || done.results.iter().any(|result| !result.cut.is_empty()),
            "a missing form is not reported"
        );
    }
    context.stop(sandbox).await
}

/// Code that writes without end, and records its progress in a file.
const FLOODS: [(&str, &str); 2] = [
    (
        "python",
        "import os, time\nn = 0\nprint('here', flush=True)\nwhile not os.path.exists('flow'): time.sleep(0.01)\nwhile True:\n    n += 1\n    print('x' * 65536)\n    open('n', 'w').write(str(n))",
    ),
    (
        "bash",
        "echo here; x=$(printf '%065536d' 0); n=0\nwhile [ ! -e flow ]; do sleep 0.01; done\nwhile :; do echo $x; n=$((n+1)); echo $n > n; done",
    ),
];

/// Starts code that writes without end, and reads nothing of its output.
async fn flood(sandbox: &Sandbox, language: &str, text: &str) -> Checked<CodeExecution> {
    sh(sandbox, "rm -f n flow").await?.expect_success()?;
    let execution = start_until_here(sandbox.guest(), in_language(language, text)).await?;
    sh(sandbox, "touch flow").await?.expect_success()?;
    wait_until_blocked(sandbox).await?;
    Ok(execution)
}

/// Waits until code is blocked by its reader.
async fn wait_until_blocked(sandbox: &Sandbox) -> Checked {
    let (mut last, mut same) = (String::new(), 0);
    let stands = async || {
        let now = sh(sandbox, "cat n 2>/dev/null || :").await?.text();
        same = if now == last && !now.is_empty() { same + 1 } else { 0 };
        last = now;
        Ok(same == 25)
    };
    eventually("the code is blocked by its reader", EXECUTION_TIMEOUT, stands).await
}

fn in_language(language: &str, text: &str) -> v1::ExecuteCodeRequest {
    v1::ExecuteCodeRequest { language: language.to_owned(), ..code(text) }
}

/// Processes that write beginnings of marks without end, while their cell ends, take neither the guest's time nor its memory.
async fn context_endless_beginnings_of_marks_are_bounded(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let text = "import fcntl, os, subprocess, sys, time\n\
        try: fcntl.fcntl(1, 1031, 1 << 20)\n\
        except OSError: pass\n\
        if os.path.exists('go'): os.remove('go')\n\
        code = 'import os, time\\nwhile not os.path.exists(\"go\"): time.sleep(0.001)\\n' \\\n\
        \x20   'end = time.monotonic() + 1\\nwhile time.monotonic() < end: os.write(1, b\"\\\\x1e\" * 65536)'\n\
        writers = [subprocess.Popen([sys.executable, '-c', code]) for _ in range(8)]\n\
        time.sleep(1)\n\
        open('go', 'w').close()";
    for _ in 0..3 {
        let done = within("the end of a cell", EXECUTION_TIMEOUT, run(guest, text)).await??;
        equal!(done.end(), (OK, PRESERVED));
        within("an answer of the guest", PROMPT_TIMEOUT, check_usable(&sandbox)).await??;
        run(guest, "[writer.wait() for writer in writers]").await?;
    }
    context.stop(sandbox).await
}

async fn context_is_ended_despite_a_stalled_reader(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for (language, text) in FLOODS {
        let mut readers = Vec::new();
        execute(guest, in_language(language, "true or 1")).await?;
        for _ in 0..2 {
            readers.push(flood(&sandbox, language, text).await?);
            let waiting = guest.execute_code(in_language(language, "print('mine')\n")).await?;
            // The first context is restarted, the second removed; queued executions are notified promptly.
            if readers.len() == 1 {
                within("a restart", PROMPT_TIMEOUT, guest.restart_context(language)).await??;
                let done = within("its turn", PROMPT_TIMEOUT, super::contexts::collect(waiting)).await??;
                equal!(done.end().1, PRESERVED);
            } else {
                within("a removal", PROMPT_TIMEOUT, guest.remove_context(language)).await??;
                let mut waiting = waiting;
                expect_refused(waiting.next().await, ErrorCode::NotFound, &["was removed"])?;
            }
        }
        for mut reader in readers {
            // The reader gets an error if it has missed events, otherwise the end.
            let missed = loop {
                match within("the rest", EXECUTION_TIMEOUT, reader.next()).await? {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        break String::from(
                            "the last events of the code were not read in time: the context was",
                        );
                    }
                    Err(error) => break error.to_string(),
                }
            };
            ensure!(missed.contains("not read in time: the context was"), "{missed}");
        }
        equal!(execute(guest, in_language(language, "true or 1")).await?.end().1, PRESERVED);
    }
    context.stop(sandbox).await
}

async fn context_interrupt_reaches_code_with_a_stalled_reader(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let [(language, text), _] = FLOODS;
    let mut reader = flood(&sandbox, language, text).await?;
    equal!(guest.interrupt_context(language).await?, true);
    let mut ended = None;
    while let Some(event) = within("the rest", EXECUTION_TIMEOUT, reader.next()).await?? {
        if let CodeEvent::Ended(end) = event {
            ended = Some(end);
        }
    }
    let ended = ended.unwrap_or_default();
    equal!(ended.status, v1::CodeStatus::CODE_STATUS_INTERRUPTED);
    equal!(ended.state, PRESERVED);
    context.stop(sandbox).await
}

fn bash(text: &str) -> v1::ExecuteCodeRequest {
    in_language("bash", text)
}

async fn context_of_bash_refuses_invalid_directories(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    execute(guest, bash("cd /tmp; x=5")).await?;
    for cwd in ["nowhere", "/no/where", "-", "$(touch made)"] {
        let done =
            execute(guest, v1::ExecuteCodeRequest { cwd: cwd.into(), ..bash("echo ran; touch ran") }).await?;
        equal!((cwd, done.end(), done.text().as_str()), (cwd, (ERROR, PRESERVED), ""));
        equal!(done.error.map(|error| error.value), Some("exit status 1".to_owned()));
        ensure!(String::from_utf8_lossy(&done.stderr).contains(cwd), "{:?}", done.stderr);
    }
    let look = "pwd; echo $x; ls ~ /tmp | grep -E '^(ran|made)$'";
    equal!(execute(guest, bash(look)).await?.text(), "/tmp\n5");
    context.stop(sandbox).await
}

async fn context_of_bash_restores_everything(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    // Functions with these names do not interfere.
    let traps = "cd() { sleep 1000; }; pwd() { sleep 1000; }; A=old; declare -i N=3";
    execute(guest, bash(traps)).await?;
    let with = |text: &str| v1::ExecuteCodeRequest {
        env: vec![variable("A", "new"), variable("N", "7"), variable("NEW", "it's")],
        cwd: "/".into(),
        ..bash(text)
    };
    for (text, end, out) in [
        ("echo $A $N $NEW $PWD", OK, "new 7 it's /"),
        ("A=other; unset N; false", ERROR, ""),
        ("echo 'unmatched", ERROR, ""),
        ("if true; then", ERROR, ""),
        ("echo a ) b", ERROR, ""),
    ] {
        let done = within(text, PROMPT_TIMEOUT, execute(guest, with(text))).await??;
        equal!((text, done.end(), done.text().as_str()), (text, (end, PRESERVED), out));
        let look =
            "echo $A $N ${NEW-none}; [ $PWD = $HOME ] && echo home; compgen -v __belljar; declare -p A N";
        let seen = execute(guest, bash(look)).await?.text();
        equal!((text, seen.as_str()), (text, "old 3 none\nhome\ndeclare -- A=\"old\"\ndeclare -i N=\"3\""));
    }
    let done = execute(guest, with("exit 3")).await?;
    equal!((done.end(), done.ended.exit_code), ((DIED, LOST), 3));
    context.stop(sandbox).await
}

async fn context_of_bash_counts_processor_time(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let busy = execute(guest, bash("for ((i = 0; i < 300000; i++)); do :; done")).await?;
    ensure!(busy.ended.cpu_us >= 10_000, "{:?}", busy.ended);
    let idle = execute(guest, bash(":")).await?;
    ensure!(idle.ended.cpu_us < busy.ended.cpu_us, "{:?} after {:?}", idle.ended, busy.ended);
    context.stop(sandbox).await
}

async fn context_of_bash_delivers_earlier_background_output(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    execute(guest, bash("(while [ ! -e go ]; do sleep 0.01; done; echo late; touch said) &")).await?;
    sh(&sandbox, "touch go; while [ ! -e said ]; do sleep 0.01; done").await?.expect_success()?;
    let request =
        v1::ExecuteCodeRequest { env: vec![variable("A", "now")], cwd: "/".into(), ..bash("echo $A") };
    equal!(execute(guest, request).await?.text(), "late\nnow");
    context.stop(sandbox).await
}

async fn context_with_a_fork_bomb_is_ended(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    let _ = execute(guest, with_timeout(bomb, 2000, 1000)).await?;
    within("a removal", EXECUTION_TIMEOUT, guest.remove_context("python")).await??;
    within("an execution", EXECUTION_TIMEOUT, check_usable(&sandbox)).await??;
    equal!(value(guest, "6 * 7").await?, "42");
    context.stop(sandbox).await
}

async fn context_directories_are_checked(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest: &GuestClient = sandbox.guest();
    // A server that forwards the call may use its own wording.
    for cwd in [b"/a\0b".as_slice(), b"/\xff"] {
        let cwd = Bytes::copy_from_slice(cwd);
        let create = v1::CreateContextRequest { cwd: cwd.clone(), ..Default::default() };
        expect_refused(guest.create_context(create).await, ErrorCode::InvalidArgument, &["cwd"])?;
        let request = v1::ExecuteCodeRequest { cwd, ..bash("1") };
        let asked = match guest.execute_code(request).await {
            Ok(mut execution) => execution.next().await.map(drop),
            Err(error) => Err(error),
        };
        expect_refused(asked, ErrorCode::InvalidArgument, &["cwd"])?;
    }
    expect_refused(
        match guest.execute_code(in_context("c1", "1")).await {
            Ok(mut execution) => execution.next().await.map(drop),
            Err(error) => Err(error),
        },
        ErrorCode::NotFound,
        &["c1"],
    )?;
    equal!(guest.list_contexts().await?.len(), 0);
    context.stop(sandbox).await
}
