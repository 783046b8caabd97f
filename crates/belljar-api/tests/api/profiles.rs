//! Profiles of tools whose names models know.

use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture::{Fixture, cases};
use crate::mcp::{call_at, texts, tools};

cases![claude_tools_work, codex_commands_go_on, patches_are_applied, pictures_are_shown];

/// The text of an answer without its last line, which names the sandbox.
fn said(result: &Value) -> String {
    let text = texts(result);
    text.rsplit_once("\n[sandbox ").map_or(text.as_str(), |(text, _)| text).to_owned()
}

/// Calls a tool that succeeds.
async fn good(client: &Client, profile: &str, name: &str, arguments: Value) -> Value {
    let result = call_at(client, &format!("/mcp?tools={profile}"), name, arguments).await;
    assert_eq!(result["isError"], false, "{name}: {result}");
    result
}

/// Calls a tool that fails, and returns the text.
async fn bad(client: &Client, profile: &str, name: &str, arguments: Value) -> String {
    let result = call_at(client, &format!("/mcp?tools={profile}"), name, arguments).await;
    assert_eq!(result["isError"], true, "{name}: {result}");
    said(&result)
}

/// A command that fails as curl does without a network.
const UNREACHABLE: &str = "echo 'curl: (6) Could not resolve host: a.example' >&2; (exit 6)";

/// Returns what a model without tools for networks is told of it, with this before the hint.
fn unreachable(ended: &str) -> String {
    format!(
        "curl: (6) Could not resolve host: a.example\n{ended}The sandbox has no network access (network = disabled). Give the code what it \
         needs as files, or do without the network: no tool here can change that."
    )
}

async fn claude_tools_work(fixture: Fixture) {
    let user = fixture.user().await;
    let names: Vec<_> =
        tools(&user, "/mcp?tools=claude").await.iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["bash", "read", "write", "edit", "glob", "grep"]);
    let good = async |name: &str, arguments: Value| said(&good(&user, "claude", name, arguments).await);
    let bad = async |name: &str, arguments: Value| bad(&user, "claude", name, arguments).await;
    // The shell keeps its directory and variables.
    assert_eq!(good("bash", json!({"command": "mkdir -p d && cd d && x=5; echo err >&2"})).await, "err");
    assert_eq!(good("bash", json!({"command": "echo $x; basename $PWD"})).await, "5\nd");
    assert_eq!(bad("bash", json!({"command": "echo out; (exit 3)"})).await, "out\n[exit status 3]");
    assert_eq!(good("bash", json!({"command": "true"})).await, "[no output]");
    assert_eq!(bad("bash", json!({"command": UNREACHABLE})).await, unreachable("[exit status 6]\n"));
    let late = bad("bash", json!({"command": "sleep 60", "timeout_ms": 200})).await;
    assert!(late.starts_with("[timed_out]\n"), "{late}");
    assert_eq!(good("bash", json!({"restart": true})).await, "the shell was restarted");
    assert_eq!(good("bash", json!({"command": "echo ${x-none}"})).await, "none");
    assert_eq!(
        bad("bash", json!({"command": "exit 4"})).await,
        "[exit status 4]\nthe shell exited with code 4"
    );
    assert_eq!(
        good("bash", json!({"command": "echo a; exit"})).await,
        "a\n[exit status 0]\nthe shell exited with code 0"
    );
    assert!(bad("bash", json!({})).await.starts_with("invalid_field: command: "));
    assert!(
        bad("bash", json!({"command": "true", "restart": true}))
            .await
            .starts_with("invalid_field: restart: ")
    );
    assert_eq!(
        good("write", json!({"file_path": "src/a.py", "content": "one = 1\ntwo = 2\nthree = 3\n"})).await,
        "wrote src/a.py, 26 bytes"
    );
    assert_eq!(good("read", json!({"file_path": "src/a.py"})).await, "one = 1\ntwo = 2\nthree = 3\n");
    assert_eq!(good("read", json!({"file_path": "src/a.py", "view_range": [2, 2]})).await, "two = 2\n");
    assert_eq!(
        good("edit", json!({"file_path": "src/a.py", "old_string": "two = 2", "new_string": "two = 22"}))
            .await,
        "edited src/a.py, 1 replaced"
    );
    assert!(
        bad("edit", json!({"file_path": "src/a.py", "old_string": " = ", "new_string": "="}))
            .await
            .contains("3 times")
    );
    assert_eq!(
        good(
            "edit",
            json!({"file_path": "src/a.py", "old_string": " = ", "new_string": "=", "replace_all": true})
        )
        .await,
        "edited src/a.py, 3 replaced"
    );
    good("bash", json!({"command": "cd ~; sleep 0.02; echo x > src/b.py; echo y > src/c.txt; head -c 300000 /dev/zero | tr '\\0' a > long; printf '\\377' > binary"})).await;
    assert_eq!(good("glob", json!({"pattern": "*.py"})).await, "src/b.py\nsrc/a.py");
    assert_eq!(good("glob", json!({"pattern": "**/*.txt"})).await, "src/c.txt");
    assert_eq!(good("glob", json!({"pattern": "*.nosuch", "path": "src"})).await, "no files found");
    assert_eq!(good("grep", json!({"pattern": "^tw.=2+$"})).await, "src/a.py:2:two=22\n");
    assert_eq!(good("grep", json!({"pattern": "x", "path": "src/b.py"})).await, "src/b.py:1:x\n");
    assert_eq!(good("grep", json!({"pattern": "nosuch"})).await, "no lines found");
    // Names are one line each, whatever they are.
    good("bash", json!({"command": "mkdir odd; cd odd; touch $'a\\nfake.py\\e[2J' $'b\\u202ec'; echo w > $'d\\nfake'; cd"})).await;
    let found = good("glob", json!({"pattern": "*fake*", "path": "odd"})).await;
    assert_eq!(found.lines().count(), 2, "{found:?}");
    assert!(found.contains("a\u{fffd}fake.py\u{fffd}[2J"), "{found:?}");
    assert_eq!(good("grep", json!({"pattern": "w", "path": "odd"})).await, "d\u{fffd}fake:1:w\n");
    // Results are bounded before they are made.
    good("bash", json!({"command": "head -c 1000000 /dev/zero | tr '\\0' a > as"})).await;
    let refused = bad(
        "edit",
        json!({"file_path": "as", "old_string": "a", "new_string": "b".repeat(20), "replace_all": true}),
    )
    .await;
    assert!(
        refused.starts_with("too_large: new_string: with 1000000 replaced, as has 20000000 bytes"),
        "{refused}"
    );
    // What is left of a command that was stopped does not run.
    let late = bad("bash", json!({"command": "sleep 60; touch ran; echo on", "timeout_ms": 200})).await;
    assert!(late.starts_with("[timed_out]\n"), "{late}");
    assert_eq!(good("bash", json!({"command": "ls ran 2>&1 | grep -c 'No such'"})).await, "1");
    assert!(bad("grep", json!({"pattern": "("})).await.starts_with("invalid_argument: "));
    assert!(
        bad("read", json!({"file_path": "long"}))
            .await
            .starts_with("too_large: file_path: long has 300000 bytes")
    );
    assert!(bad("read", json!({"file_path": "binary"})).await.contains("no text in UTF-8"));
    assert!(bad("read", json!({"file_path": "nosuch"})).await.starts_with("path_not_found: "));
}

async fn codex_commands_go_on(fixture: Fixture) {
    let user = fixture.user().await;
    let names: Vec<_> =
        tools(&user, "/mcp?tools=codex").await.iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["exec_command", "write_stdin", "apply_patch", "view_image"]);
    let good = async |name: &str, arguments: Value| good(&user, "codex", name, arguments).await;
    let done = good("exec_command", json!({"cmd": "pwd; echo err >&2", "workdir": "/tmp"})).await;
    let structured = &done["structuredContent"];
    assert_eq!((&structured["exit_code"], &structured["session_id"]), (&json!(0), &Value::Null));
    let output = structured["output"].as_str().unwrap();
    assert!(output.contains("/tmp\n") && output.contains("err\n"), "{output}");
    assert!(texts(&done).contains("Process exited with code 0\nOutput:\n"), "{done}");
    let failed = call_at(&user, "/mcp?tools=codex", "exec_command", json!({"cmd": "exit 3"})).await;
    assert_eq!((&failed["isError"], &failed["structuredContent"]["exit_code"]), (&json!(true), &json!(3)));
    let failed = call_at(&user, "/mcp?tools=codex", "exec_command", json!({"cmd": UNREACHABLE})).await;
    assert!(texts(&failed).contains(&format!("Output:\n{}", unreachable(""))), "{failed}");
    // A command that asks goes on in the background.
    let cmd = "echo first; while read line; do echo got $line; done; echo over";
    let running = good("exec_command", json!({"cmd": cmd, "yield_time_ms": 300})).await;
    assert_eq!(running["structuredContent"]["output"], "first\n");
    let session = running["structuredContent"]["session_id"].clone();
    assert!(texts(&running).contains(&format!("Process running with session ID {session}\n")), "{running}");
    // Each call has the output since the one before.
    let answer =
        good("write_stdin", json!({"session_id": session, "chars": "one\n", "yield_time_ms": 500})).await;
    assert_eq!(answer["structuredContent"]["output"], "got one\n");
    let answer =
        good("write_stdin", json!({"session_id": session, "chars": "two\n", "yield_time_ms": 500})).await;
    assert_eq!(
        (&answer["structuredContent"]["output"], &answer["structuredContent"]["session_id"]),
        (&json!("got two\n"), &session)
    );
    let ended = good("exec_command", json!({"cmd": "pkill -f 'while rea[d] line'; true"})).await;
    assert_eq!(ended["structuredContent"]["exit_code"], 0);
    let over = call_at(&user, "/mcp?tools=codex", "write_stdin", json!({"session_id": session})).await;
    assert_eq!(
        (&over["isError"], &over["structuredContent"]["signal"]),
        (&json!(true), &json!(15)),
        "{over}"
    );
    let terminal = good("exec_command", json!({"cmd": "tty >/dev/null && echo yes", "tty": true})).await;
    assert_eq!(terminal["structuredContent"]["output"], "yes\r\n");
    let cut = good("exec_command", json!({"cmd": "seq 1000", "max_output_tokens": 10})).await;
    assert_eq!(
        cut["structuredContent"]["output"],
        "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n[3853 bytes left out]\n96\n997\n998\n999\n1000\n"
    );
    for (name, arguments, expected) in [
        ("exec_command", json!({"cmd": ""}), "invalid_field: cmd: "),
        ("write_stdin", json!({"session_id": 9999, "chars": "x"}), "process_not_found: "),
        ("write_stdin", json!({"session_id": -1}), "invalid_field: session_id: "),
    ] {
        let text = bad(&user, "codex", name, arguments).await;
        assert!(text.starts_with(expected), "{text}");
    }
}

async fn patches_are_applied(fixture: Fixture) {
    let user = fixture.user().await;
    let patch = async |body: &str| {
        let input = format!("*** Begin Patch\n{body}\n*** End Patch");
        said(&call_at(&user, "/mcp?tools=codex", "apply_patch", json!({ "input": input })).await)
    };
    let shown = async |line: &str| {
        let done = good(&user, "codex", "exec_command", json!({ "cmd": line })).await;
        done["structuredContent"]["output"].as_str().unwrap().to_owned()
    };
    let added = patch("*** Add File: d/a.txt\n+one\n+two\n+three\n*** Add File: b.txt\n+b").await;
    assert_eq!(added, "Success. Updated the following files:\nA d/a.txt\nA b.txt\n");
    let changed =
        patch("*** Update File: d/a.txt\n*** Move to: c.txt\n one\n-two\n+2\n*** Delete File: b.txt").await;
    assert_eq!(changed, "Success. Updated the following files:\nM c.txt\nD b.txt\n");
    assert_eq!(shown("cat c.txt; find . -name '*.txt'").await, "one\n2\nthree\n./c.txt\n");
    // Nothing is written unless all of it fits.
    let refused = patch("*** Add File: new.txt\n+x\n*** Update File: c.txt\n-two\n+zwei").await;
    assert_eq!(refused, "invalid_field: input: c.txt: these lines are not in the file:\ntwo");
    let refused = patch("*** Add File: new.txt\n+x\n*** Delete File: nosuch").await;
    assert!(refused.starts_with("path_not_found: "), "{refused}");
    assert_eq!(shown("ls").await, "c.txt\nd\n");
    assert!(patch("nonsense").await.starts_with("invalid_field: input: line 2: "));
}

async fn pictures_are_shown(fixture: Fixture) {
    let user = fixture.user().await;
    let line = "printf '\\211PNG\\r\\n\\032\\n0000' > p; echo text > t; head -c 5242881 /dev/zero > long";
    good(&user, "codex", "exec_command", json!({ "cmd": line })).await;
    let shown = good(&user, "codex", "view_image", json!({"path": "p"})).await;
    assert_eq!(
        shown["content"][0],
        json!({"type": "image", "data": "iVBORw0KGgowMDAw", "mimeType": "image/png"})
    );
    assert!(
        bad(&user, "codex", "view_image", json!({"path": "t"}))
            .await
            .starts_with("invalid_field: path: it is no picture")
    );
    assert!(
        bad(&user, "codex", "view_image", json!({"path": "long"})).await.starts_with("too_large: path: ")
    );
}
