//! Contexts of Jupyter kernels, connected by a bridge inside the sandbox.

use belljar_proto::{ErrorCode, v1};

use super::case::{Case, Checked, Stop, cases, ensure, equal};
use super::context::Context;
use super::contexts::{
    Done, ERROR, INTERRUPTED, LOST, OK, PRESERVED, code, collect_rest, execute, start_until_here, transcript,
};
use super::processes::expect_refused;
use super::program::variable;
use crate::client::GuestError;

pub(super) const CASES: &[Case] = cases![
    context_of_a_jupyter_kernel [Loopback],
    context_of_r [Loopback],
    context_of_no_jupyter_kernel [],
];

fn in_language(language: &str, text: &str) -> v1::ExecuteCodeRequest {
    v1::ExecuteCodeRequest { language: language.to_owned(), ..code(text) }
}

/// Skips the case if the tree has no such kernel.
async fn require_kernel(context: &Context, language: &str) -> Checked {
    let sandbox = context.sandbox().await?;
    let made = sandbox
        .guest()
        .create_context(v1::CreateContextRequest { language: language.to_owned(), ..Default::default() })
        .await;
    if let Err(GuestError::Refused { message, .. }) = &made
        && (message.contains("no kernelspec") || message.contains("IRkernel"))
    {
        return Err(Stop::Skipped(message.clone()));
    }
    made?;
    context.stop(sandbox).await
}

async fn context_of_a_jupyter_kernel(context: &Context) -> Checked {
    require_kernel(context, "jupyter:python3").await?;
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let py = |text: &str| in_language("jupyter:python3", text);
    let run = async |text: &str| execute(guest, py(text)).await;
    // The first execution creates the context, with its environment.
    let mut first = py("import os; x = 20; (os.environ['A'], os.getcwd())");
    first.env = vec![variable("A", "b")];
    first.cwd = "/".into();
    let done = execute(guest, first.clone()).await?;
    equal!((done.value().as_str(), done.end()), ("('b', '/')", (OK, PRESERVED)));
    equal!(done.started.context.id, "jupyter:python3");
    // The same environment is accepted again.
    equal!(execute(guest, first).await?.end(), (OK, PRESERVED));
    let mut elsewhere = py("1");
    elsewhere.cwd = "/usr".into();
    equal!(execute(guest, elsewhere).await?.error(), "NotSupported");
    let done = run("print('so'); x * 2 + 2").await?;
    equal!((done.value().as_str(), done.text().as_str(), done.end()), ("42", "so", (OK, PRESERVED)));
    equal!(run("1 / 0").await?.error(), "ZeroDivisionError");
    let text = "for n in range(100):\n    print('a', n)\n    display(n)";
    let expected: String = (0..100).map(|n| format!("a {n}\n[{n}]")).collect();
    equal!(transcript(guest, py(text)).await?, expected);
    let execution =
        start_until_here(guest, py("print('here', flush=True)\nimport time\ntime.sleep(1000)")).await?;
    guest.interrupt_context("jupyter:python3").await?;
    let (ended, _) = collect_rest(execution).await?;
    equal!((ended.status.as_known(), ended.state.as_known()), (Some(INTERRUPTED), Some(PRESERVED)));
    equal!(run("x").await?.value(), "20");
    let done = run("os._exit(3)").await?;
    equal!((done.end().1, done.ended.exit_code), (LOST, 3));
    let done = run("'x' in globals()").await?;
    equal!(done.value(), "False");
    ensure!(done.started.rebuilt.contains("code 3"), "{}", done.started.rebuilt);
    context.stop(sandbox).await
}

async fn context_of_r(context: &Context) -> Checked {
    require_kernel(context, "r").await?;
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let run = async |text: &str| execute(guest, in_language("r", text)).await;
    // IRkernel displays values: it has no main result.
    let shown = |done: &Done| -> String {
        let plain = done.results.iter().flat_map(|one| &one.data).find(|form| form.mime == "text/plain");
        plain.map(|form| String::from_utf8_lossy(&form.data).into_owned()).unwrap_or_default()
    };
    equal!(run("x <- 20").await?.end(), (OK, PRESERVED));
    let done = run("cat('so\\n'); x * 2 + 2").await?;
    equal!((shown(&done).as_str(), done.text().as_str(), done.end()), ("[1] 42", "so", (OK, PRESERVED)));
    // The kernel itself collects the output of an expression.
    let text: String =
        (0..50).map(|n| format!("cat('a', {n}, '\\n')\nIRdisplay::display_text('{n}')\n")).collect();
    let expected: String = (0..50).map(|n| format!("a {n} \n[{n}]")).collect();
    equal!(transcript(guest, in_language("r", &text)).await?, expected);
    let done = run("stop('no')").await?;
    equal!(done.end(), (ERROR, PRESERVED));
    let message = done.error.as_ref().map(|error| error.value.clone()).unwrap_or_default();
    ensure!(message.contains("no"), "{message}");
    let done = run("data.frame(a = 1:2)").await?;
    let forms: Vec<_> =
        done.results.iter().flat_map(|one| &one.data).map(|form| form.mime.as_str()).collect();
    ensure!(forms.contains(&"text/html") && forms.contains(&"text/plain"), "{forms:?}");
    equal!(shown(&run("x").await?), "[1] 20");
    context.stop(sandbox).await
}

async fn context_of_no_jupyter_kernel(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let make = async |language: &str| {
        guest
            .create_context(v1::CreateContextRequest { language: language.to_owned(), ..Default::default() })
            .await
    };
    expect_refused(
        make("jupyter:nosuch").await,
        ErrorCode::FailedPrecondition,
        &["nosuch", "installed are"],
    )?;
    expect_refused(make("jupyter:../x").await, ErrorCode::InvalidArgument, &["language", "jupyter:NAME"])?;
    equal!(guest.list_contexts().await?.len(), 0);
    context.stop(sandbox).await
}
