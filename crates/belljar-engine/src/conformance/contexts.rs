//! Interpreter contexts: kept state, order, results, and what is refused.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;

use super::case::{Case, Checked, Stop, cases, ensure, equal, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{check_usable, variable};
use crate::client::{CodeEvent, CodeExecution, GuestClient, GuestError};

pub(super) const CASES: &[Case] = cases![
    context_keeps_state_and_displays_results [],
    context_survives_errors [],
    context_output_and_results_keep_their_order [],
    context_threads_keep_their_order [],
    context_forged_marks_delay_output_only [],
    context_executions_wait_their_turn [],
    contexts_run_concurrently [],
    context_environment_is_restored [],
    context_input_requests_are_answered_or_refused [],
    context_requests_are_checked [],
    context_that_breaks_the_protocol_is_ended [],
    context_that_closes_all_descriptors_is_ended [],
    context_results_are_bounded [],
    context_output_is_complete [],
    context_threads_may_print_later [],
    contexts_are_bounded [],
];

pub(super) const PRESERVED: v1::Survival = v1::Survival::SURVIVAL_PRESERVED;
pub(super) const LOST: v1::Survival = v1::Survival::SURVIVAL_LOST;
pub(super) const OK: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_OK;
pub(super) const ERROR: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_ERROR;
pub(super) const INTERRUPTED: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_INTERRUPTED;
pub(super) const TIMED_OUT: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_TIMED_OUT;
pub(super) const DIED: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_DIED;

/// Timeout of one execution in a case.
pub(super) const EXECUTION_TIMEOUT: Duration = Duration::from_secs(60);

/// A complete execution.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) started: v1::CodeStarted,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) results: Vec<v1::CodeResult>,
    pub(super) error: Option<v1::CodeError>,
    pub(super) ended: v1::CodeEnded,
    /// Order of events: `o` output, `r` result, `e` error, `i` input request, `t` call of a tool.
    order: String,
}

impl Done {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }

    pub(super) fn end(&self) -> (v1::CodeStatus, v1::Survival) {
        (self.ended.status.as_known().unwrap_or_default(), self.ended.state.as_known().unwrap_or_default())
    }

    /// Returns the plain text of the last expression.
    pub(super) fn value(&self) -> String {
        let main = self.results.iter().find(|result| result.main);
        let plain = main.and_then(|result| result.data.iter().find(|form| form.mime == "text/plain"));
        plain.map(|form| String::from_utf8_lossy(&form.data).into_owned()).unwrap_or_default()
    }

    pub(super) fn error(&self) -> &str {
        self.error.as_ref().map_or("", |error| error.name.as_str())
    }
}

pub(super) fn code(text: &str) -> v1::ExecuteCodeRequest {
    v1::ExecuteCodeRequest { code: Bytes::copy_from_slice(text.as_bytes()), ..Default::default() }
}

pub(super) fn in_context(context: &str, text: &str) -> v1::ExecuteCodeRequest {
    v1::ExecuteCodeRequest { context: context.to_owned(), ..code(text) }
}

pub(super) async fn collect(execution: CodeExecution) -> Checked<Done> {
    collect_answering(execution, async |_, _| Ok(())).await
}

/// Collects an execution, whose calls of tools are answered: the function gets the execution's number and the call.
pub(super) async fn collect_answering(
    mut execution: CodeExecution,
    answer: impl AsyncFn(u64, v1::ToolCalled) -> Checked,
) -> Checked<Done> {
    let mut done = Done::default();
    loop {
        let what = format!("execution {} after {:?}", done.started.execution, done.order);
        let Some(event) = within(&what, EXECUTION_TIMEOUT, execution.next()).await?? else { break };
        match event {
            CodeEvent::Started(started) => done.started = started,
            CodeEvent::Output { stream, offset, data } => {
                let is_error = stream == v1::Stream::STREAM_STDERR;
                let into = if is_error { &mut done.stderr } else { &mut done.stdout };
                equal!(offset, into.len() as u64);
                into.extend_from_slice(&data);
                if !done.order.ends_with('o') {
                    done.order.push('o');
                }
            }
            CodeEvent::Result(result) => {
                done.results.push(result);
                done.order.push('r');
            }
            CodeEvent::Error(error) => {
                done.error = Some(error);
                done.order.push('e');
            }
            CodeEvent::InputRequested(_) => done.order.push('i'),
            CodeEvent::ToolCalled(called) => {
                done.order.push('t');
                answer(done.started.execution, called).await?;
            }
            CodeEvent::Ended(ended) => done.ended = ended,
        }
    }
    equal!(
        (done.ended.stdout_bytes, done.ended.stderr_bytes),
        (done.stdout.len() as u64, done.stderr.len() as u64)
    );
    Ok(done)
}

pub(super) async fn execute(guest: &GuestClient, request: v1::ExecuteCodeRequest) -> Checked<Done> {
    match collect(guest.execute_code(request).await?).await {
        Ok(done) => Ok(done),
        // Programs missing in the sandbox's tree are not the engine's fault.
        Err(Stop::Failed(why)) if is_missing(&why) => Err(Stop::Skipped(why)),
        Err(stop) => Err(stop),
    }
}

fn is_missing(why: &str) -> bool {
    why.contains("IPython is missing") || why.contains("no such program") || why.contains("esbuild")
}

pub(super) async fn run(guest: &GuestClient, text: &str) -> Checked<Done> {
    execute(guest, code(text)).await
}

/// Runs code that must succeed; returns the value of its last expression.
pub(super) async fn value(guest: &GuestClient, text: &str) -> Checked<String> {
    let done = run(guest, text).await?;
    ensure!(done.end() == (OK, PRESERVED), "{text:?} ended with {:?}: {:?}", done.ended, done.error);
    Ok(done.value())
}

async fn context_keeps_state_and_displays_results(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    equal!(value(guest, "import math\nx = 20\ndef f(y):\n    return x + y").await?, "");
    let done = run(guest, "print('so'); f(22)").await?;
    equal!((done.value().as_str(), done.text().as_str(), done.order.as_str()), ("42", "so", "or"));
    equal!((done.started.count, done.started.rebuilt.as_str(), done.end()), (2, "", (OK, PRESERVED)));
    let info = done.started.context.as_option().cloned().unwrap_or_default();
    equal!((info.id.as_str(), info.language.as_str(), info.generation), ("python", "python", 1));
    ensure!(info.version.starts_with("3.") && info.pid > 0, "{info:?}");
    equal!(value(guest, "").await?, "");
    equal!(value(guest, "import asyncio\nawait asyncio.sleep(0)\nf(math.floor(2.5))").await?, "22");
    // The code is its own main module, with a clean command line, and cannot read Belljar's own program from its input.
    equal!(
        value(guest, "import sys; (sys.argv, __name__, sys.path[0], sys.stdin.read())").await?,
        "([''], '__main__', '', '')"
    );
    let html = run(guest, "class H:\n    def _repr_html_(self): return '<b>x</b>'\nH()").await?;
    let mut mimes: Vec<_> =
        html.results.iter().flat_map(|result| &result.data).map(|form| form.mime.as_str()).collect();
    mimes.sort_unstable();
    equal!(mimes, ["text/html", "text/plain"]);
    context.stop(sandbox).await
}

async fn context_survives_errors(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "kept = 7").await?;
    for (text, name) in [
        ("1 / 0", "ZeroDivisionError"),
        ("def", "SyntaxError"),
        ("raise ValueError('no')", "ValueError"),
        ("open('nowhere')", "FileNotFoundError"),
        ("undefined", "NameError"),
        ("def g(): g()\ng()", "RecursionError"),
        ("class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E", "E"),
    ] {
        let done = run(guest, text).await?;
        equal!((text, done.error(), done.end()), (text, name, (ERROR, PRESERVED)));
        let error = done.error.unwrap_or_default();
        ensure!(!error.traceback.contains('\u{1b}'), "escape sequences in {:?}", error.traceback);
    }
    let done = run(guest, "def h():\n    return 1 / 0\n\nh()").await?;
    let traceback = done.error.unwrap_or_default().traceback;
    ensure!(
        traceback.contains("line 2") || traceback.contains("    2 "),
        "no line of the user's in {traceback}"
    );
    equal!(value(guest, "kept").await?, "7");
    context.stop(sandbox).await
}

/// Runs code; returns its output and, in brackets, the plain text of its results, in their order.
pub(super) async fn transcript(guest: &GuestClient, request: v1::ExecuteCodeRequest) -> Checked<String> {
    let mut execution = guest.execute_code(request).await?;
    let mut seen = String::new();
    while let Some(event) = within("an execution", EXECUTION_TIMEOUT, execution.next()).await?? {
        match event {
            CodeEvent::Output { data, .. } => seen.push_str(&String::from_utf8_lossy(&data)),
            CodeEvent::Result(result) => {
                let plain = result.data.iter().find(|form| form.mime == "text/plain");
                let plain = plain.map(|form| String::from_utf8_lossy(&form.data)).unwrap_or_default();
                seen.push_str(&format!("[{plain}]"));
            }
            CodeEvent::Error(error) => seen.push_str(&format!("[{}]", error.name)),
            _ => {}
        }
    }
    Ok(seen)
}

/// Output comes before the results that were displayed after it, and after those that were displayed before it.
async fn context_output_and_results_keep_their_order(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let python = "import subprocess, sys
for n in range(100):
    print('a', n)
    display(n)
    if n % 10 == 0: _ = subprocess.run(['echo', 'b', str(n)])
    else: print('b', n, file=sys.stderr if n % 3 == 0 else sys.stdout)
    display(-n)
1 / 0";
    let expected: String = (0..100).map(|n| format!("a {n}\n[{n}]b {n}\n[{}]", -n)).collect();
    equal!(transcript(guest, code(python)).await?, format!("{expected}[ZeroDivisionError]"));
    // A value that is not the last code of its cell, and output after it.
    let text = "get_ipython().ast_node_interactivity = 'all'\nfor n in range(20):\n    print(n)\n    n\nprint('end')";
    let expected: String = (0..20).map(|n| format!("{n}\n[{n}]")).collect();
    run(guest, text.split_once('\n').map_or("", |(first, _)| first)).await?;
    equal!(transcript(guest, code(text)).await?, format!("{expected}end\n"));
    run(guest, "get_ipython().ast_node_interactivity = 'last_expr'").await?;
    // Wherever the code's own output goes.
    let text = "import os\nkept = os.dup(1)\nos.dup2(os.open('file', os.O_CREAT | os.O_WRONLY), 1)\nprint('file')\ndisplay(1)\nos.dup2(kept, 1)\nprint('back')\ndisplay(2)\nprint(open('file').read(), end='')";
    equal!(transcript(guest, code(text)).await?, "[1]back\n[2]file\n");
    context.stop(sandbox).await
}

/// Each thread's output and results keep their order, also while the main thread waits for input.
async fn context_threads_keep_their_order(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let text = "import threading
def work(name):
    for n in range(50):
        print(f'{name}a{n}\\n', end='')
        display(f'{name}{n}')
        print(f'{name}b{n}\\n', end='')
threads = [threading.Thread(target=work, args=(name,)) for name in 'xyz']
for thread in threads: thread.start()
for thread in threads: thread.join()";
    let seen = transcript(guest, code(text)).await?.replace(['[', ']', '\''], " ");
    for name in ["x", "y", "z"] {
        let of_thread: Vec<_> = seen.split_whitespace().filter(|word| word.starts_with(name)).collect();
        let expected: Vec<_> = (0..50)
            .flat_map(|n| [format!("{name}a{n}"), format!("{name}{n}"), format!("{name}b{n}")])
            .collect();
        equal!(of_thread, expected);
    }
    context.stop(sandbox).await
}

/// Code that writes marks itself, which announce results that never come, harms nothing.
async fn context_forged_marks_delay_output_only(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let forge = "import os, sys
def forge(n):
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get('self'), 'token'): frame = frame.f_back
    os.write(1, f'\\x1e{frame.f_locals[\"self\"].token}{n:08x}'.encode())";
    run(guest, forge).await?;
    let text = "forge(0xffffffff)\nprint('held')\ndisplay(1)\nprint('end')\nfor n in range(1000): forge(n)";
    let done = run(guest, text).await?;
    equal!((done.text().as_str(), done.results.len(), done.end()), ("held\nend", 1, (OK, PRESERVED)));
    let text = "print('a')\ndisplay(1)\nprint('b')";
    equal!(transcript(guest, code(text)).await?, "a\n[1]b\n");
    // Its output fills the pipe behind the mark, until it is interrupted.
    let text = "forge(0xffffffff)\nwhile True: print('x' * 1000)";
    equal!(execute(guest, with_timeout(text, 500, 60_000)).await?.end(), (TIMED_OUT, PRESERVED));
    equal!(run(guest, "6 * 7").await?.value(), "42");
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn context_executions_wait_their_turn(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "order = []").await?;
    let first = guest.execute_code(code(
        "import time, os\nwhile not os.path.exists('go'): time.sleep(0.01)\norder.append(0)",
    ));
    let first = first.await?;
    let mut others = Vec::new();
    for number in 1..=5 {
        others.push(guest.execute_code(code(&format!("order.append({number}); len(order)"))).await?);
    }
    let contexts = guest.list_contexts().await?;
    equal!(
        contexts.iter().map(|context| context.state.as_known()).collect::<Vec<_>>(),
        [Some(v1::ContextState::CONTEXT_STATE_BUSY)]
    );
    super::program::sh(&sandbox, "touch go").await?.expect_success()?;
    collect(first).await?;
    for (place, other) in (2..).zip(others) {
        equal!(collect(other).await?.value(), place.to_string());
    }
    equal!(value(guest, "order").await?, "[0, 1, 2, 3, 4, 5]");
    // A full queue, and one more.
    let holding = guest.execute_code(code("while not os.path.exists('again'): time.sleep(0.01)")).await?;
    let mut waiting = Vec::new();
    for _ in 0..32 {
        waiting.push(guest.execute_code(code("1")).await?);
    }
    let refusal = match guest.execute_code(code("1")).await {
        Ok(mut execution) => execution.next().await.err(),
        Err(error) => Some(error),
    };
    ensure!(
        refusal.as_ref().is_some_and(|error| error.is(ErrorCode::ResourceExhausted)),
        "33 executions are queued: {refusal:?}"
    );
    super::program::sh(&sandbox, "touch again").await?.expect_success()?;
    collect(holding).await?;
    for execution in waiting {
        equal!(collect(execution).await?.end(), (OK, PRESERVED));
    }
    context.stop(sandbox).await
}

async fn contexts_run_concurrently(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "x = 'default'").await?;
    let other = guest.create_context(v1::CreateContextRequest::default()).await?;
    ensure!(other.id != "python" && other.pid > 0, "{other:?}");
    let waits = guest
        .execute_code(code("import time, os\nwhile not os.path.exists('made'): time.sleep(0.01)\nx"))
        .await?;
    let done = execute(guest, in_context(&other.id, "open('made', 'w').close()\nx")).await?;
    equal!((done.error(), done.end()), ("NameError", (ERROR, PRESERVED)));
    equal!(collect(waits).await?.value(), "'default'");
    let mut ids: Vec<_> = guest.list_contexts().await?.into_iter().map(|context| context.id).collect();
    ids.sort_unstable();
    equal!(ids, [other.id.as_str(), "python"]);
    context.stop(sandbox).await
}

async fn context_environment_is_restored(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    super::program::sh(&sandbox, "mkdir -p a/b c").await?.expect_success()?;
    let request = v1::CreateContextRequest {
        cwd: "a".into(),
        env: vec![variable("OF", "context"), variable("KEPT", "1")],
        ..Default::default()
    };
    let made = match guest.create_context(request).await {
        Err(GuestError::Refused { message, .. }) if is_missing(&message) => {
            return Err(Stop::Skipped(message));
        }
        made => made?,
    };
    let look = "import os\n(os.getcwd()[len(os.environ['HOME']):], os.environ.get('OF'), os.environ.get('NEW'), os.environ.get('KEPT'))";
    equal!(execute(guest, in_context(&made.id, look)).await?.value(), "('/a', 'context', None, '1')");
    let mut request = in_context(&made.id, look);
    request.cwd = sandbox.home.join("c").into_os_string().into_encoded_bytes().into();
    request.env = vec![variable("OF", "this"), variable("NEW", "ü")];
    equal!(execute(guest, request.clone()).await?.value(), "('/c', 'this', 'ü', '1')");
    equal!(execute(guest, in_context(&made.id, look)).await?.value(), "('/a', 'context', None, '1')");
    request.code = "1 / 0".into();
    equal!(execute(guest, request.clone()).await?.error(), "ZeroDivisionError");
    equal!(execute(guest, in_context(&made.id, look)).await?.value(), "('/a', 'context', None, '1')");
    // Changes by the code itself are kept.
    execute(guest, in_context(&made.id, "os.chdir('b'); os.environ['KEPT'] = '2'")).await?;
    equal!(execute(guest, in_context(&made.id, look)).await?.value(), "('/a/b', 'context', None, '2')");
    request.cwd = "nowhere".into();
    let done = execute(guest, request).await?;
    equal!((done.error(), done.end()), ("FileNotFoundError", (ERROR, PRESERVED)));
    context.stop(sandbox).await
}

async fn context_input_requests_are_answered_or_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let done = run(guest, "input('name? ')").await?;
    equal!((done.error(), done.end()), ("EOFError", (ERROR, PRESERVED)));
    let text = "a = input('name? ')\nimport getpass\nb = getpass.getpass('secret? ')\ntry:\n    input()\nexcept EOFError:\n    c = 'end'\n(a, b, c)";
    let mut execution =
        guest.execute_code(v1::ExecuteCodeRequest { allow_input: true, ..code(text) }).await?;
    let mut number = 0;
    let mut asked = Vec::new();
    let mut shown = String::new();
    while let Some(event) = within("questions", EXECUTION_TIMEOUT, execution.next()).await?? {
        match event {
            CodeEvent::Started(started) => number = started.execution,
            CodeEvent::InputRequested(question) => {
                asked.push((question.prompt, question.password));
                let answer = v1::AnswerRequest {
                    context: "python".to_owned(),
                    execution: number,
                    ..Default::default()
                };
                let wrong = v1::AnswerRequest { execution: number + 1, value: "x".into(), ..answer.clone() };
                expect_refused(
                    guest.answer_code(wrong).await,
                    ErrorCode::FailedPrecondition,
                    &["execution", "is not running"],
                )?;
                let answer = match asked.len() {
                    1 => v1::AnswerRequest { value: "Ada ü".into(), ..answer },
                    2 => v1::AnswerRequest { value: "".into(), ..answer },
                    _ => v1::AnswerRequest { end_of_file: true, ..answer },
                };
                guest.answer_code(answer.clone()).await?;
                // Each request is answered once; for the earlier ones, the next request may have arrived already.
                if asked.len() == 3 {
                    expect_refused(
                        guest.answer_code(answer).await,
                        ErrorCode::FailedPrecondition,
                        &["execution"],
                    )?;
                }
            }
            CodeEvent::Result(result) => {
                shown = String::from_utf8_lossy(&result.data.first().cloned().unwrap_or_default().data)
                    .into_owned();
            }
            CodeEvent::Ended(ended) => equal!(ended.status, OK),
            CodeEvent::Output { .. } | CodeEvent::Error(_) | CodeEvent::ToolCalled(_) => {}
        }
    }
    equal!(shown, "('Ada ü', '', 'end')");
    equal!(asked, [("name? ".to_owned(), false), ("secret? ".to_owned(), true), (String::new(), false)]);
    context.stop(sandbox).await
}

/// Starts code and waits until it prints `here`.
pub(super) async fn start_until_here(
    guest: &GuestClient,
    request: v1::ExecuteCodeRequest,
) -> Checked<CodeExecution> {
    let mut execution = guest.execute_code(request).await?;
    let mut seen = Vec::new();
    while !seen.ends_with(b"here\n") {
        match within("the start of code", EXECUTION_TIMEOUT, execution.next()).await?? {
            Some(CodeEvent::Output { data, .. }) => seen.extend_from_slice(&data),
            Some(CodeEvent::Started(_)) => {}
            other => return Err(Stop::Failed(format!("expected output, got {other:?}"))),
        }
    }
    Ok(execution)
}

/// Collects the remaining events of an execution.
pub(super) async fn collect_rest(mut execution: CodeExecution) -> Checked<(v1::CodeEnded, String)> {
    let (mut end, mut name) = (v1::CodeEnded::default(), String::new());
    while let Some(event) = within("the rest of an execution", EXECUTION_TIMEOUT, execution.next()).await?? {
        match event {
            CodeEvent::Error(error) => name = error.name,
            CodeEvent::Ended(ended) => end = ended,
            _ => {}
        }
    }
    Ok((end, name))
}

pub(super) fn with_timeout(text: &str, timeout_ms: u64, grace_ms: u64) -> v1::ExecuteCodeRequest {
    v1::ExecuteCodeRequest { timeout_ms, grace_ms, ..code(text) }
}

async fn context_requests_are_checked(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let asked = async |request: v1::ExecuteCodeRequest| match guest.execute_code(request).await {
        Ok(mut execution) => execution.next().await.map(drop),
        Err(error) => Err(error),
    };
    let with = |code: &[u8]| v1::ExecuteCodeRequest { code: code.to_vec().into(), ..Default::default() };
    let invalid = [
        ("code: a NUL byte", with(b"a\0")),
        ("code: it is not UTF-8", with(b"\xff")),
        (
            "context and language",
            v1::ExecuteCodeRequest { language: "python".to_owned(), ..in_context("python", "1") },
        ),
        ("language", v1::ExecuteCodeRequest { language: "cobol".to_owned(), ..code("1") }),
        ("env: a name", v1::ExecuteCodeRequest { env: vec![variable("", "x")], ..code("1") }),
        ("env: a name", v1::ExecuteCodeRequest { env: vec![variable("A=B", "x")], ..code("1") }),
        ("env: a NUL byte", v1::ExecuteCodeRequest { env: vec![variable("A", "x\0")], ..code("1") }),
        ("on_disconnect", v1::ExecuteCodeRequest { on_disconnect: 77.into(), ..code("1") }),
    ];
    for (words, request) in invalid {
        expect_refused(asked(request).await, ErrorCode::InvalidArgument, &[words])?;
    }
    expect_refused(asked(in_context("c1", "1")).await, ErrorCode::NotFound, &["c1"])?;
    expect_refused(asked(in_context("../c1\n", "1")).await, ErrorCode::NotFound, &["../c1"])?;
    let wrong = v1::CreateContextRequest { language: "x".to_owned(), ..Default::default() };
    expect_refused(guest.create_context(wrong).await, ErrorCode::InvalidArgument, &["language", "python"])?;
    let wrong =
        v1::CreateContextRequest { cwd: "nowhere".into(), language: "bash".to_owned(), ..Default::default() };
    expect_refused(guest.create_context(wrong).await, ErrorCode::FailedPrecondition, &["cwd", "nowhere"])?;
    let wrong = v1::AnswerRequest {
        context: "python".to_owned(),
        value: vec![b'x'; 65537].into(),
        ..Default::default()
    };
    expect_refused(guest.answer_code(wrong).await, ErrorCode::InvalidArgument, &["value", "65536"])?;
    equal!(guest.list_contexts().await?.len(), 0);
    // Code of maximum length, in characters that JSON escapes.
    let long = format!("#{}\n7", "\u{1}ü".repeat(1_300_000));
    equal!(run(guest, &long).await?.value(), "7");
    context.stop(sandbox).await
}

/// Writes to every socket of the interpreter, to attack its control socket.
const ATTACK: &str = "import os, stat\ndef write(data):\n    for fd in [int(f) for f in os.listdir('/proc/self/fd')]:\n        try:\n            if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, data)\n        except OSError: pass\n";

async fn context_that_breaks_the_protocol_is_ended(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for (text, why) in [
        ("write(b'\\xff' * 4096)", "a frame of"),
        ("write(b'\\0\\0\\0\\4rubb')", "an invalid message"),
        ("write(b'\\0\\0\\0\\2[]')", "an invalid message"),
        (
            "write((4 << 20).to_bytes(4, 'big') + b'[' * (1 << 20)); write(b'[' * (3 << 20))",
            "an invalid message",
        ),
    ] {
        let done = run(guest, &format!("{ATTACK}{text}\nimport time; time.sleep(1000)")).await?;
        equal!((text, done.end()), (text, (DIED, LOST)));
        ensure!(
            done.ended.reason.contains("broke the protocol") && done.ended.reason.contains(why),
            "{:?}",
            done.ended
        );
        equal!(value(guest, "1").await?, "1");
    }
    // Code cannot forge the results of a later execution.
    let lie = "import json\ndef say(**m):\n    b = json.dumps(m).encode()\n    write(len(b).to_bytes(4, 'big') + b)\nfor n in range(200): say(op='done', id=n, status='ok')";
    run(guest, &format!("{ATTACK}{lie}")).await?;
    equal!(run(guest, "6 * 7").await?.value(), "42");
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn context_that_closes_all_descriptors_is_ended(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for text in [
        "import os; os.closerange(0, 4096)",
        "import os\nfor fd in range(3, 4096):\n    try: os.dup2(2, fd)\n    except OSError: pass",
    ] {
        let done = run(guest, text).await?;
        ensure!(done.end().1 == LOST, "{text}: {:?}", done.ended);
        equal!(value(guest, "1").await?, "1");
    }
    context.stop(sandbox).await
}

async fn context_results_are_bounded(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let done = run(guest, "'x' * (64 << 20)").await?;
    equal!(done.end(), (OK, PRESERVED));
    let bytes: usize = done.results.iter().flat_map(|result| &result.data).map(|form| form.data.len()).sum();
    ensure!(bytes <= 8 << 20 && done.value().contains("MiB left out"), "{bytes} bytes, nothing cut");
    // A form larger than a message arrives complete.
    let done = run(guest, "display({'image/png': __import__('base64').b64encode(bytes(5 << 20)).decode(), 'text/plain': 'y' * (3 << 20)}, raw=True)").await?;
    let mut sizes: Vec<_> = done
        .results
        .iter()
        .flat_map(|result| &result.data)
        .map(|form| (form.mime.as_str(), form.data.len()))
        .collect();
    sizes.sort_unstable();
    ensure!(sizes.contains(&("image/png", 5 << 20)), "{sizes:?}");
    let done = run(guest, "for n in range(3000): display(n)").await?;
    ensure!(done.results.len() <= 1000 && done.end() == (OK, PRESERVED), "{}", done.results.len());
    let done = run(guest, "raise ValueError('v' * (64 << 20))").await?;
    let error = done.error.unwrap_or_default();
    ensure!(error.value.len() <= 64 << 10 && error.traceback.len() <= 256 << 10, "{}", error.value.len());
    equal!(value(guest, "1").await?, "1");
    context.stop(sandbox).await
}

async fn context_output_is_complete(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let done = run(guest, "import sys\nfor n in range(300): sys.stdout.write(chr(65 + n % 26) * 100_000); sys.stderr.write('e' * 1000)").await?;
    equal!((done.stdout.len(), done.stderr.len(), done.end()), (30_000_000, 300_000, (OK, PRESERVED)));
    ensure!(
        done.stdout
            .chunks(100_000)
            .zip(0_usize..)
            .all(|(chunk, n)| chunk.iter().all(|byte| usize::from(*byte) == 65 + n % 26)),
        "bytes out of order"
    );
    let done = run(guest, "import os; os.write(1, b'\\xff\\xfe'); print('\\ud800 ü')").await?;
    equal!(done.stdout, b"\xff\xfe\\ud800 \xc3\xbc\n");
    context.stop(sandbox).await
}

async fn context_threads_may_print_later(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let text = "import threading, os, time\ndef later():\n    while not os.path.exists('go'): time.sleep(0.01)\n    print('late', flush=True)\n    open('said', 'w').close()\nthreading.Thread(target=later).start()";
    equal!(run(guest, text).await?.end(), (OK, PRESERVED));
    super::program::sh(&sandbox, "touch go; while [ ! -e said ]; do sleep 0.01; done")
        .await?
        .expect_success()?;
    let done = run(guest, "1").await?;
    equal!((done.text().as_str(), done.value().as_str()), ("late", "1"));
    context.stop(sandbox).await
}

async fn contexts_are_bounded(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let request = || v1::CreateContextRequest { language: "bash".to_owned(), ..Default::default() };
    let mut ids = Vec::new();
    for _ in 0..32 {
        ids.push(guest.create_context(request()).await?.id);
    }
    expect_refused(guest.create_context(request()).await, ErrorCode::ResourceExhausted, &["32"])?;
    let first = ids.swap_remove(0);
    guest.remove_context(&first).await?;
    let more = guest.create_context(request()).await?;
    ensure!(!ids.contains(&more.id) && more.id != first, "{} was used twice", more.id);
    context.stop(sandbox).await
}
