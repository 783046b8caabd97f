//! Interpreter contexts: kept state, results, and recovery after failures.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;

use super::case::{Case, Checked, Stop, cases, ensure, equal, eventually, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{check_usable, variable};
use crate::client::{CodeEvent, CodeExecution, GuestClient, GuestError};
use crate::engine::Sandbox;

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
    context_survives_interrupt [VisibleContexts],
    context_survives_timeout_if_possible [],
    context_that_dies_is_restarted [],
    context_that_ends_between_executions_is_restarted[Siblings],
    context_without_memory_is_lost [EnforcedMemory],
    context_is_restarted_and_removed [],
    context_requests_are_checked [],
    context_that_breaks_the_protocol_is_ended [],
    context_that_closes_all_descriptors_is_ended [],
    context_results_are_bounded [],
    context_output_is_complete [],
    context_children_do_not_delay_the_end [VisibleContexts],
    context_disconnect_continues_or_kills_as_requested [],
    context_threads_may_print_later [],
    context_displays_charts_and_tables [],
    context_of_bash [],
    context_of_javascript [],
    context_of_typescript [],
    contexts_are_bounded [],
];

pub(super) const PRESERVED: v1::Survival = v1::Survival::SURVIVAL_PRESERVED;
pub(super) const LOST: v1::Survival = v1::Survival::SURVIVAL_LOST;
pub(super) const OK: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_OK;
pub(super) const ERROR: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_ERROR;
pub(super) const INTERRUPTED: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_INTERRUPTED;
const TIMED_OUT: v1::CodeStatus = v1::CodeStatus::CODE_STATUS_TIMED_OUT;
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

async fn context_survives_interrupt(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "kept = 7\nimport time, subprocess, asyncio").await?;
    equal!(guest.interrupt_context("python").await?, false);
    for text in [
        "while True: pass",
        "time.sleep(1000)",
        "subprocess.run(['sleep', '1000'])",
        "!sleep 1000",
        "await asyncio.sleep(1000)",
        "input()",
    ] {
        let request = v1::ExecuteCodeRequest {
            allow_input: true,
            ..code(&format!("print('here', flush=True)\n{text}"))
        };
        let execution = start_until_here(guest, request).await?;
        equal!(guest.interrupt_context("python").await?, true);
        let (ended, name) = collect_rest(execution).await?;
        equal!(
            (text, ended.status.as_known(), name.as_str()),
            (text, Some(INTERRUPTED), "KeyboardInterrupt")
        );
        equal!(ended.state, PRESERVED);
        equal!(value(guest, "kept").await?, "7");
    }
    // Code may handle an interrupt and continue.
    let text = "try:\n    print('here', flush=True)\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    took = True\ntook";
    let execution = start_until_here(guest, code(text)).await?;
    guest.interrupt_context("python").await?;
    equal!(collect_rest(execution).await?.0.status, OK);
    equal!(value(guest, "took").await?, "True");
    // Interrupted processes have exited, and only wait to be reaped.
    let reap = "import os\ntry:\n    while True: os.waitpid(-1, 0)\nexcept ChildProcessError: pass";
    equal!(execute(guest, with_timeout(reap, 30_000, 0)).await?.end(), (OK, PRESERVED));
    wait_for_processes(&sandbox, 1).await?;
    context.stop(sandbox).await
}

/// Waits until exactly `count` processes of user code run.
async fn wait_for_processes(sandbox: &Sandbox, count: u32) -> Checked {
    let right = async || Ok(super::program::count_processes(sandbox).await? == count);
    match eventually("the started processes have ended", EXECUTION_TIMEOUT, right).await {
        Err(Stop::Failed(why)) => {
            let left = super::program::sh(sandbox, "ps -eo pid,ppid,stat,args").await?.text();
            Err(Stop::Failed(format!("{why}; expected {count}, running:\n{left}")))
        }
        other => other,
    }
}

pub(super) fn with_timeout(text: &str, timeout_ms: u64, grace_ms: u64) -> v1::ExecuteCodeRequest {
    v1::ExecuteCodeRequest { timeout_ms, grace_ms, ..code(text) }
}

async fn context_survives_timeout_if_possible(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "kept = 7\nimport time, signal, threading").await?;
    let done = execute(guest, with_timeout("time.sleep(1000)", 300, 0)).await?;
    equal!((done.end(), done.error()), ((TIMED_OUT, PRESERVED), "KeyboardInterrupt"));
    equal!(value(guest, "kept").await?, "7");
    equal!(execute(guest, with_timeout("1 + 1", 60_000, 0)).await?.end(), (OK, PRESERVED));
    let deaf = "kept = 8\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('here', flush=True)\nwhile True: time.sleep(1000)";
    let done = execute(guest, with_timeout(deaf, 300, 300)).await?;
    equal!(done.end(), (TIMED_OUT, LOST));
    equal!((done.ended.cause.as_known(), done.ended.signal), (Some(v1::Cause::CAUSE_TIMED_OUT), 9));
    ensure!(done.ended.reason.contains("timed out and did not end"), "{:?}", done.ended.reason);
    let state = guest.list_contexts().await?.first().and_then(|context| context.state.as_known());
    equal!(state, Some(v1::ContextState::CONTEXT_STATE_LOST));
    let done = run(guest, "kept").await?;
    equal!((done.error(), done.started.count), ("NameError", 1));
    equal!(done.started.rebuilt, "the code timed out and did not end when it was interrupted");
    equal!(value(guest, "2").await?, "2");
    context.stop(sandbox).await
}

async fn context_that_dies_is_restarted(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for (text, end, exit, why) in [
        ("os._exit(3)", DIED, (3, 0), "exited with code 3"),
        ("os.kill(os.getpid(), 9)", DIED, (0, 9), "was killed (signal 9)"),
        ("import ctypes; ctypes.string_at(0)", DIED, (0, 11), "ended by signal 11"),
        ("exit(4)", ERROR, (4, 0), "the code ended the interpreter: it exited with code 4"),
        ("quit()", ERROR, (0, 0), "the code ended the interpreter: it exited with code 0"),
        ("os.execv('/bin/true', ['true'])", DIED, (0, 0), "exited with code 0"),
    ] {
        value(guest, "kept = 7\nimport os").await?;
        let done = run(guest, &format!("print('said', flush=True)\ndisplay(5)\n{text}")).await?;
        equal!((text, done.end(), (done.ended.exit_code, done.ended.signal)), (text, (end, LOST), exit));
        ensure!(done.ended.reason.contains(why), "{text}: {}", done.ended.reason);
        equal!((done.text().as_str(), done.results.len()), ("said", 1));
        let after = run(guest, "kept").await?;
        equal!((after.error(), after.started.rebuilt.as_str()), ("NameError", done.ended.reason.as_str()));
        equal!(run(guest, "1").await?.started.rebuilt, "");
    }
    value(guest, "kept = 8\nimport sys").await?;
    let done = run(guest, "sys.exit(3)").await?;
    equal!((done.end(), done.error()), ((ERROR, PRESERVED), "SystemExit"));
    equal!(value(guest, "kept").await?, "8");
    wait_for_processes(&sandbox, 1).await?;
    context.stop(sandbox).await
}

async fn context_that_ends_between_executions_is_restarted(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "import os, threading\nkept = 7").await?;
    let pid = guest.list_contexts().await?.first().map_or(0, |context| context.pid);
    super::program::sh(&sandbox, &format!("kill -9 {pid}")).await?.expect_success()?;
    let lost = async || {
        let contexts = guest.list_contexts().await?;
        Ok(contexts.iter().all(|context| context.state == v1::ContextState::CONTEXT_STATE_LOST))
    };
    eventually("the context is lost", EXECUTION_TIMEOUT, lost).await?;
    let done = run(guest, "kept").await?;
    equal!(done.error(), "NameError");
    ensure!(
        done.started.rebuilt.contains("between two executions it was killed"),
        "{}",
        done.started.rebuilt
    );
    equal!(done.started.context.as_option().map(|context| context.generation), Some(2));
    context.stop(sandbox).await
}

async fn context_without_memory_is_lost(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let before = sandbox.usage().await;
    let done = run(guest, "held = []\nwhile True: held.append(bytearray(1 << 24))").await?;
    // Python may raise its own error before the kernel kills it.
    if done.end() != (ERROR, PRESERVED) {
        equal!((done.end(), done.ended.signal), ((DIED, LOST), 9));
        ensure!(sandbox.usage().await.oom_kills > before.oom_kills, "no OOM kill was counted");
    }
    equal!(run(guest, "held = None\n1 + 1").await?.value(), "2");
    context.stop(sandbox).await
}

async fn context_is_restarted_and_removed(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "kept = 7\nimport time, subprocess").await?;
    let execution = start_until_here(
        guest,
        code("_ = subprocess.Popen(['sleep', '1000'])\nprint('here', flush=True)\ntime.sleep(1000)"),
    )
    .await?;
    let waiting = guest.execute_code(code("kept")).await?;
    let info = guest.restart_context("python").await?;
    equal!(info.generation, 2);
    let (ended, _) = collect_rest(execution).await?;
    equal!((ended.status.as_known(), ended.state.as_known()), (Some(INTERRUPTED), Some(LOST)));
    equal!(ended.reason, "the context was restarted");
    // A queued execution runs in the new interpreter; a requested restart is not reported as a loss.
    let done = collect(waiting).await?;
    equal!((done.error(), done.started.rebuilt.as_str()), ("NameError", ""));
    wait_for_processes(&sandbox, 1).await?;
    let execution =
        start_until_here(guest, code("print('here', flush=True)\nimport time; time.sleep(1000)")).await?;
    let mut waiting = guest.execute_code(code("1")).await?;
    guest.remove_context("python").await?;
    equal!(collect_rest(execution).await?.0.reason, "the context was removed");
    expect_refused(waiting.next().await, ErrorCode::NotFound, &["python", "was removed"])?;
    wait_for_processes(&sandbox, 0).await?;
    expect_refused(guest.remove_context("python").await, ErrorCode::NotFound, &["context \"python\""])?;
    expect_refused(guest.restart_context("c9").await, ErrorCode::NotFound, &["c9"])?;
    expect_refused(guest.interrupt_context("c9").await, ErrorCode::NotFound, &["c9"])?;
    equal!(run(guest, "1").await?.started.context.as_option().map(|context| context.generation), Some(1));
    context.stop(sandbox).await
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

async fn context_children_do_not_delay_the_end(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let done = run(guest, "import subprocess, os\nchild = subprocess.Popen(['sleep', '1000'])\n5").await?;
    equal!((done.value().as_str(), done.end()), ("5", (OK, PRESERVED)));
    let forked = "pid = os.fork()\nif pid == 0:\n    print('child')\n    display(1)\nelse:\n    end = os.waitpid(pid, 0)[1]\n    display(end)";
    let done = run(guest, forked).await?;
    equal!((done.text().as_str(), done.results.len(), done.end()), ("child", 1, (OK, PRESERVED)));
    guest.remove_context("python").await?;
    wait_for_processes(&sandbox, 0).await?;
    context.stop(sandbox).await
}

async fn context_disconnect_continues_or_kills_as_requested(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "import time, os\nkept = 7").await?;
    let text = "print('here', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('went', 'w').close()";
    drop(start_until_here(guest, code(text)).await?);
    super::program::sh(&sandbox, "touch go").await?.expect_success()?;
    equal!(value(guest, "os.path.exists('went')").await?, "True");
    let kill = v1::OnDisconnect::ON_DISCONNECT_KILL;
    let request =
        |text: &str| v1::ExecuteCodeRequest { on_disconnect: kill.into(), grace_ms: 500, ..code(text) };
    drop(start_until_here(guest, request("print('here', flush=True)\ntime.sleep(1000)")).await?);
    equal!(value(guest, "kept").await?, "7");
    let deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('here', flush=True)\nwhile True: time.sleep(1000)";
    drop(start_until_here(guest, request(deaf)).await?);
    let done = run(guest, "1").await?;
    equal!(done.value(), "1");
    ensure!(done.started.rebuilt.contains("its caller had gone"), "{}", done.started.rebuilt);
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

async fn context_displays_charts_and_tables(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let text = "import pandas as pd\ndf = pd.DataFrame({'region': ['a', 'b'], 'sales': [1.5, None]})\ndf";
    let done = run(guest, text).await?;
    if done.error() == "ModuleNotFoundError" {
        return Err(Stop::Skipped("Python has no pandas in the sandbox".to_owned()));
    }
    let form = |done: &Done, mime: &str| {
        let forms = done.results.iter().flat_map(|result| &result.data);
        forms.filter(|form| form.mime == mime).map(|form| form.data.clone()).next().unwrap_or_default()
    };
    ensure!(form(&done, "text/html").starts_with(b"<"), "no HTML in {:?}", done.results);
    let table: serde_json::Value =
        serde_json::from_slice(&form(&done, "application/vnd.belljar.table.v1+json"))?;
    equal!(table["rows"], serde_json::json!([["a", 1.5], ["b", null]]));
    let done = run(guest, "ax = df.plot.bar(x='region', y='sales', title='Sales')").await?;
    if done.error() == "ImportError" || done.error() == "ModuleNotFoundError" {
        return Err(Stop::Skipped("Python has no matplotlib in the sandbox".to_owned()));
    }
    equal!(done.end(), (OK, PRESERVED));
    ensure!(form(&done, "image/png").starts_with(b"\x89PNG\r\n"), "no picture in {:?}", done.error);
    let chart: serde_json::Value =
        serde_json::from_slice(&form(&done, "application/vnd.belljar.chart.v1+json"))?;
    equal!((chart["type"].as_str(), chart["title"].as_str()), (Some("bar"), Some("Sales")));
    context.stop(sandbox).await
}

async fn context_of_bash(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let bash = |text: &str| v1::ExecuteCodeRequest { language: "bash".to_owned(), ..code(text) };
    let run = async |text: &str| execute(guest, bash(text)).await;
    equal!(run("x=5; cd /tmp; f() { echo f $1; }").await?.end(), (OK, PRESERVED));
    let done = run("f $x; pwd; echo e >&2").await?;
    equal!((done.text().as_str(), done.stderr.as_slice()), ("f 5\n/tmp", b"e\n".as_slice()));
    equal!(done.started.context.as_option().map(|context| context.id.clone()), Some("bash".to_owned()));
    let done = run("(exit 3)").await?;
    equal!((done.error(), done.end()), ("CommandFailed", (ERROR, PRESERVED)));
    equal!(done.error.map(|error| error.value), Some("exit status 3".to_owned()));
    let mut request = bash("echo $A $B; pwd; x=6");
    request.env = vec![variable("A", "it's"), variable("B", "2")];
    request.cwd = "/".into();
    equal!(execute(guest, request).await?.text(), "it's 2\n/");
    equal!(run("echo $x ${A-none} ${B-none}; pwd").await?.text(), "6 none none\n/tmp");
    // What is left of the code does not run, and what the code had of its own is restored.
    let code = "sleep 1000; touch ran; while :; do touch ran; done";
    for env in [vec![], vec![variable("A", "2")]] {
        let cwd = if env.is_empty() { "" } else { "/" };
        let request = v1::ExecuteCodeRequest { timeout_ms: 300, env, cwd: cwd.into(), ..bash(code) };
        equal!(execute(guest, request).await?.end(), (TIMED_OUT, PRESERVED));
        equal!(run("echo $x ${A-none}; pwd; ls ran ~/ran 2>/dev/null; true").await?.text(), "6 none\n/tmp");
    }
    let execution =
        start_until_here(guest, bash("echo here; sleep 1000; touch ran; false || touch ran")).await?;
    guest.interrupt_context("bash").await?;
    let ended = collect_rest(execution).await?.0;
    equal!((ended.status.as_known(), ended.state.as_known()), (Some(INTERRUPTED), Some(PRESERVED)));
    equal!(run("ls ran 2>/dev/null; echo $x").await?.text(), "6");
    let done = run("exit 7").await?;
    equal!((done.end(), done.ended.exit_code), ((DIED, LOST), 7));
    let done = run("echo ${x-gone}").await?;
    equal!((done.text().as_str(), done.started.rebuilt.as_str()), ("gone", "the shell exited with code 7"));
    context.stop(sandbox).await
}

async fn context_of_javascript(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let js = |text: &str| v1::ExecuteCodeRequest { language: "javascript".to_owned(), ..code(text) };
    let run = async |text: &str| execute(guest, js(text)).await;
    equal!(run("const x = 20; let f = y => x + y").await?.end(), (OK, PRESERVED));
    let done = run("console.log('so'); await new Promise(done => setTimeout(done, 5)); f(22)").await?;
    equal!((done.value().as_str(), done.text().as_str(), done.end()), ("42", "so", (OK, PRESERVED)));
    let done = run("const x = 21; null.y").await?;
    equal!((done.error(), done.end()), ("TypeError", (ERROR, PRESERVED)));
    equal!(run("x").await?.value(), "21");
    let text = "for (let n = 0; n < 100; n++) {
        console.log('a', n); display(n);
        if (n % 10 === 0) require('child_process').spawnSync('echo', ['b', `${n}`], { stdio: 'inherit' });
        else (n % 3 === 0 ? console.error : console.log)('b', n);
        display(-n);
    }
    throw new RangeError()";
    let expected: String = (0..100)
        .map(|n| format!("a {n}\n[{n}]b {n}\n[{}]", if n == 0 { "-0".to_owned() } else { (-n).to_string() }))
        .collect();
    equal!(transcript(guest, js(text)).await?, format!("{expected}[RangeError]"));
    let execution = start_until_here(guest, js("console.log('here'); while (true) {}")).await?;
    guest.interrupt_context("javascript").await?;
    let (ended, _) = collect_rest(execution).await?;
    equal!((ended.status.as_known(), ended.state.as_known()), (Some(INTERRUPTED), Some(PRESERVED)));
    equal!(run("x").await?.value(), "21");
    let done =
        execute(guest, v1::ExecuteCodeRequest { timeout_ms: 500, ..js("await new Promise(() => {})") })
            .await?;
    equal!(done.end(), (TIMED_OUT, PRESERVED));
    let mut request = js("process.env.A + process.cwd()");
    request.env = vec![variable("A", "b")];
    request.cwd = "/".into();
    equal!(execute(guest, request).await?.value(), "'b/'");
    let done = run("process.exit(3)").await?;
    equal!((done.end().1, done.ended.exit_code), (LOST, 3));
    let done = run("typeof x").await?;
    equal!(done.value(), "'undefined'");
    ensure!(done.started.rebuilt.contains("code 3"), "{}", done.started.rebuilt);
    context.stop(sandbox).await
}

async fn context_of_typescript(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let run = async |text: &str| {
        let request = v1::ExecuteCodeRequest { language: "typescript".to_owned(), ..code(text) };
        execute(guest, request).await
    };
    equal!(
        run("interface P { n: number }\nconst p: P = { n: 41 };\nenum E { A = 1 }").await?.end(),
        (OK, PRESERVED)
    );
    equal!(run("p.n + (E.A as number)").await?.value(), "42");
    equal!(run("throw new RangeError('no' as string)").await?.error(), "RangeError");
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
