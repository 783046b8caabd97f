//! Contexts of languages other than Python, and what results display.

use belljar_proto::v1;

use super::case::{Case, Checked, Stop, cases, ensure, equal};
use super::context::Context;
use super::contexts::{
    DIED, Done, ERROR, INTERRUPTED, LOST, OK, PRESERVED, TIMED_OUT, code, collect_rest, execute, run,
    start_until_here, transcript,
};
use super::program::variable;

pub(super) const CASES: &[Case] = cases![
    context_displays_charts_and_tables [],
    context_of_bash [],
    context_of_javascript [],
    context_of_typescript [],
];

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
    equal!(done.ended.exit_code, 3);
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
