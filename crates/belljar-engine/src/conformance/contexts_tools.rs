//! Calls of tools by code in contexts.

use std::sync::LazyLock;

use belljar_proto::{ErrorCode, v1};
use parking_lot::Mutex;

use super::case::{Case, Checked, Stop, cases, ensure, equal};
use super::context::Context;
use super::contexts::{Done, ERROR, OK, PRESERVED, code, collect_answering, execute, run};
use super::processes::expect_refused;
use crate::client::GuestClient;

pub(super) const CASES: &[Case] = cases![
    context_calls_tools [],
    context_tool_calls_are_bounded [],
    context_of_javascript_calls_tools [],
];

/// The answer to a call, as JSON or as the message of an error.
type Answer = Result<&'static str, &'static str>;

/// An answer that a socket does not hold.
static LONG: LazyLock<String> = LazyLock::new(|| format!("\"{}\"", "z".repeat(600_000)));

/// Runs code that may call tools. Returns its end, and the calls as `NAME ARGUMENTS`.
async fn run_with(
    guest: &GuestClient,
    request: v1::ExecuteCodeRequest,
    answer: impl Fn(&v1::ToolCalled) -> Answer,
) -> Checked<(Done, Vec<String>)> {
    let calls = Mutex::new(Vec::new());
    let context = if request.language.is_empty() { "python" } else { &request.language }.to_owned();
    let tools = request.tools.clone();
    let execution = guest.execute_code(request).await?;
    let answered = collect_answering(execution, async |execution, called| {
        let arguments = String::from_utf8_lossy(&called.arguments).into_owned();
        calls.lock().push(format!("{} {arguments}", called.name));
        let own = v1::AnswerRequest {
            context: context.clone(),
            execution,
            call: called.call,
            of_tool: tools.contains(&called.name),
            ..Default::default()
        };
        let own = match answer(&called) {
            Ok(value) => v1::AnswerRequest { value: value.into(), ..own },
            Err(error) => v1::AnswerRequest { error: error.to_owned(), ..own },
        };
        // Only this call of this execution is answered, with one of the two, and once.
        for wrong in [
            v1::AnswerRequest { call: called.call + 1000, ..own.clone() },
            v1::AnswerRequest { execution: execution + 1, ..own.clone() },
        ] {
            expect_refused(
                guest.answer_code(wrong).await,
                ErrorCode::FailedPrecondition,
                &["call", "does not wait"],
            )?;
        }
        for wrong in [
            v1::AnswerRequest { value: "{".into(), error: String::new(), ..own.clone() },
            v1::AnswerRequest { value: "1".into(), error: "both".to_owned(), ..own.clone() },
            v1::AnswerRequest { value: "".into(), error: String::new(), ..own.clone() },
            v1::AnswerRequest {
                value: vec![b' '; (1 << 20) + 1].into(),
                error: String::new(),
                ..own.clone()
            },
        ] {
            expect_refused(guest.answer_code(wrong).await, ErrorCode::InvalidArgument, &["value"])?;
        }
        if own.of_tool {
            let forged = v1::AnswerRequest { of_tool: false, ..own.clone() };
            expect_refused(
                guest.answer_code(forged).await,
                ErrorCode::FailedPrecondition,
                &["call", "one of a stored tool"],
            )?;
        }
        guest.answer_code(own.clone()).await?;
        expect_refused(
            guest.answer_code(own).await,
            ErrorCode::FailedPrecondition,
            &["call", "does not wait"],
        )
    });
    match answered.await {
        Ok(done) => Ok((done, calls.into_inner())),
        Err(Stop::Failed(why)) if why.contains("IPython is missing") || why.contains("no such program") => {
            Err(Stop::Skipped(why))
        }
        Err(stop) => Err(stop),
    }
}

fn with_tools(text: &str, tools: &[&str], functions: &[&str]) -> v1::ExecuteCodeRequest {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    v1::ExecuteCodeRequest { tools: names(tools), functions: names(functions), ..code(text) }
}

async fn context_calls_tools(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let text = "import belljar\n\
        print('before')\n\
        found = belljar.tools.lookup(city='Köln', size=[1, 2.5, None])\n\
        try:\n    belljar.tools['an-alyse'](code='1')\n\
        except belljar.ToolError as error:\n    why = str(error)\n\
        (found, why, sorted(belljar.tools))";
    let answer = |called: &v1::ToolCalled| match called.name.as_str() {
        "lookup" => Ok(r#"{"b": [1, null], "a": "ü"}"#),
        _ => Err("not today"),
    };
    let (done, calls) = run_with(guest, with_tools(text, &["an-alyse"], &["lookup"]), answer).await?;
    equal!(done.end(), (OK, PRESERVED));
    equal!(done.value(), "({'b': [1, None], 'a': 'ü'}, 'not today', ['an-alyse', 'lookup'])");
    equal!(calls, [r#"lookup {"city":"Köln","size":[1,2.5,null]}"#, r#"an-alyse {"code":"1"}"#]);
    equal!(done.text(), "before");
    // Those of one execution are not those of the next.
    let done = run(guest, "belljar.tools.lookup()").await?;
    equal!((done.error(), done.end()), ("AttributeError", (ERROR, PRESERVED)));
    let bash = v1::ExecuteCodeRequest { language: "bash".to_owned(), ..with_tools("true", &[], &["f"]) };
    let refused = match guest.execute_code(bash).await {
        Ok(mut execution) => execution.next().await.map(drop),
        Err(error) => Err(error),
    };
    expect_refused(refused, ErrorCode::InvalidArgument, &["tools", "bash"])?;
    context.stop(sandbox).await
}

async fn context_tool_calls_are_bounded(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    // What the kernel refuses, and what the guest does when the code goes round the kernel.
    let text = "import belljar, math, threading\n\
        kernel = belljar.tools._call.__self__\n\
        said = []\n\
        def attempt(call):\n    try: said.append(call())\n    except Exception as error: said.append(f'{type(error).__name__}: {error}')\n\
        def forge(**frame):\n    kernel.wire.send({'op': 'tool', 'id': kernel.current, 'call': 77, **frame})\n    return kernel.wire.receive()['error']\n\
        attempt(lambda: belljar.tools.f(1))\n\
        attempt(lambda: belljar.tools.f(x=math.nan))\n\
        attempt(lambda: belljar.tools.f(x='y' * 300_000))\n\
        attempt(lambda: belljar.tools.f(x='caf\\udce9'))\n\
        attempt(lambda: belljar.tools.f(x=10 ** 400))\n\
        deep = []\n\
        for _ in range(400): deep = [deep]\n\
        attempt(lambda: belljar.tools.f(x=deep))\n\
        attempt(lambda: belljar.tools.other())\n\
        thread = threading.Thread(target=attempt, args=[lambda: belljar.tools.f()]); thread.start(); thread.join()\n\
        attempt(lambda: kernel.call_tool('other', {}))\n\
        attempt(lambda: forge(name='f', arguments='y' * 300_000))\n\
        attempt(lambda: forge(name='f', arguments=[1]))\n\
        attempt(lambda: belljar.tools.f(**{'self': 3}))\n\
        attempt(lambda: belljar.tools.f())\n\
        attempt(lambda: belljar.tools.f())\n\
        print(*said, sep='\\n')";
    let request = v1::ExecuteCodeRequest { max_tool_calls: 2, ..with_tools(text, &[], &["f"]) };
    let (done, calls) = run_with(guest, request, |_| Ok("7")).await?;
    equal!(done.end(), (OK, PRESERVED));
    equal!(calls, [r#"f {"self":3}"#, "f {}"]);
    let printed = done.text();
    let expected = [
        "TypeError: f() takes its arguments by name",
        "ValueError: Out of range float values",
        "ValueError: the arguments of f() have 300,008 bytes as JSON; at most 262,144 are allowed",
        "ToolError: the arguments are no JSON that every caller can read: ",
        "ToolError: the arguments are no JSON that every caller can read: number out of range",
        "ToolError: the arguments are no JSON that every caller can read: recursion limit exceeded",
        "AttributeError: this execution may not call 'other', but f",
        "ToolError: tools can be called in the main thread only",
        "ToolError: this execution may not call \"other\"",
        "the arguments have 300002 bytes as JSON; at most 262144 are allowed",
        "the arguments are no object",
        "7",
        "7",
        "ToolError: this execution may call tools 2 times, and has done so",
    ];
    let lines: Vec<&str> = printed.lines().collect();
    equal!(lines.len(), expected.len());
    for (line, expected) in lines.iter().zip(expected) {
        ensure!(line.starts_with(expected), "{line:?} does not begin with {expected:?}");
    }
    // A flood of calls whose answers are not read ends the interpreter, or with the code.
    let flood = "import belljar\nkernel = belljar.tools._call.__self__\n\
        for call in range(20000): kernel.wire.send({'op': 'tool', 'id': kernel.current, 'call': call, 'name': 'f', 'arguments': {}})";
    let done = execute(guest, with_tools(flood, &[], &["f"])).await?;
    let reason = &done.ended.reason;
    ensure!(done.end() == (OK, PRESERVED) || reason.contains("did not read its input"), "{reason}");
    equal!(run(guest, "6 * 7").await?.value(), "42");
    context.stop(sandbox).await
}

async fn context_of_javascript_calls_tools(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let js = |text: &str, functions: &[&str]| v1::ExecuteCodeRequest {
        language: "javascript".to_owned(),
        ..with_tools(text, &[], functions)
    };
    execute(guest, js("1", &[])).await?;
    let text = "const [a, b] = await Promise.all([belljar.tools.f({ x: 1 }), belljar.tools.g().catch((error) => `${error.name}: ${error.message}`)]);\n\
        [a.y, b, Object.keys(belljar.tools).join()].join(';')";
    let answer = |called: &v1::ToolCalled| if called.name == "f" { Ok(r#"{"y": 5}"#) } else { Err("no") };
    let (done, mut calls) = run_with(guest, js(text, &["f", "g"]), answer).await?;
    equal!((done.value().as_str(), done.end()), ("'5;ToolError: no;f,g'", (OK, PRESERVED)));
    calls.sort();
    equal!(calls, [r#"f {"x":1}"#, "g {}"]);
    let done = execute(guest, js("belljar.tools.f()", &[])).await?;
    equal!((done.error(), done.end()), ("TypeError", (ERROR, PRESERVED)));
    // Both sides write more than a socket holds, and more calls are made than may wait at a time.
    let text = "const all = await Promise.all([...Array(20).keys()].map(() => belljar.tools.f({ x: 'y'.repeat(250_000) })));\n\
        all.every((one) => one.length === 600_000)";
    let (done, calls) = run_with(guest, js(text, &["f"]), |_| Ok(LONG.as_str())).await?;
    equal!((done.value().as_str(), done.end(), calls.len()), ("true", (OK, PRESERVED), 20));
    context.stop(sandbox).await
}
