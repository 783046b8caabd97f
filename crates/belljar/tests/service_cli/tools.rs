//! Stored tools, and tools over standard streams.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::code::has_ipython;
use crate::fixture::{Home, eventually};

const TOOLS: &str = r#"
[[tool]]
name = "one"
description = "One."
languages = ["bash"]
timeout = "20s"

[[tool]]
name = "two"
description = "Two."
languages = ["python", "bash"]
session = true

[tool.limits]
memory = "300m"

[tool.network]
presets = ["pip"]
"#;

#[test]
fn tools_are_imported_and_exported() {
    let home = Home::new();
    home.write("tools.toml", TOOLS);
    assert_eq!(home.good("tool import tools.toml"), "one@1\ntwo@1\n");
    // What has not changed has no new version.
    let again = home.run("tool import tools.toml");
    assert_eq!((again.status, again.stdout.as_str()), (Some(0), ""), "{again:?}");
    assert!(
        again.stderr.contains("one@1 is unchanged") && again.stderr.contains("two@1 is unchanged"),
        "{again:?}"
    );
    let exported = home.good("tool export");
    home.write("exported.toml", &exported);
    assert_eq!(home.good("tool import exported.toml"), "");
    home.write("tools.toml", &TOOLS.replace("Two.", "2."));
    assert_eq!(home.good("tool import tools.toml"), "two@2\n");
    assert_eq!(home.good("tool export two@1").matches("[[tool]]").count(), 1);
    assert_eq!(home.good("tool ls -q"), "one\ntwo\n");
    assert!(home.good("tool show two").starts_with("# version 2, sha256 "));
    assert!(home.good("tool show two@1").starts_with("# version 1 (not the current one), sha256 "));
    assert_eq!(home.good("tool edit one --timeout 30s --memory 64m"), "one@2\n");
    let edited = home.good("tool show one");
    assert!(
        edited.contains("timeout = \"30 s\"")
            && edited.contains("memory = \"64 MiB\"")
            && edited.contains("One."),
        "{edited}"
    );
    // A version that changes nothing is none.
    home.run("tool edit one").refused(2, &["nothing to change"]);
    let same = home.run("tool edit one --timeout 30s");
    assert_eq!((same.status, same.stdout.as_str()), (Some(0), "one@2\n"), "{same:?}");
    assert!(same.stderr.contains("one@2 is unchanged"), "{same:?}");
    assert_eq!(home.good("tool edit one@1 --description Uno"), "one@3\n");
    // Network flags replace the policy, and what is lost is named.
    home.good("tool edit two --preset pip --allow a.example");
    let replaced = home.run("tool edit two --allow b.example");
    assert_eq!(replaced.status, Some(0), "{replaced:?}");
    assert!(replaced.stderr.contains("two@4 no longer has preset pip, allow a.example"), "{replaced:?}");
    home.good("tool rm one@2");
    home.run("tool show one@2").refused(125, &["tool one: version 2 not found; give one@3 or one@1"]);
    home.good("tool rm one");
    home.run("tool show one").refused(125, &["tool \"one\" not found; belljar tool ls lists tools"]);
    home.run("tool call tow -c true").refused(125, &["tool \"tow\" not found; did you mean two?"]);
    home.run("tool add two --language bash")
        .refused(125, &["tool \"two\" already exists; belljar tool edit two changes it"]);
    home.run("mcp --tool two --tool tow").refused(125, &["tool \"tow\" not found; did you mean two?"]);
    assert!(home.good("tool ls").contains("APPROVAL"));
}

#[test]
fn calls_are_decided_without_running() {
    let home = Home::new();
    home.good("tool add one --language bash --timeout 20s");
    let allowed = home.run("tool test one -c true");
    assert_eq!(allowed.good(), "allowed by tool of one@1: the arguments are within the tool\n");
    let refused = home.run("tool test one -c true --timeout 1m");
    assert_eq!(refused.status, Some(1));
    assert_eq!(
        refused.stdout,
        "refused by timeout of one@1: timeout: 60s is not allowed; the tool allows at most 20s\n"
    );
    let schema: Value = serde_json::from_str(&home.good("tool schema one --for anthropic")).unwrap();
    assert_eq!((&schema["name"], &schema["input_schema"]["required"]), (&json!("one"), &json!(["code"])));
}

#[test]
fn calls_show_errors_and_results() {
    let home = Home::new();
    home.good("tool add one --language bash --language python");
    let done = home.run("tool call one -l bash -c nosuch");
    assert!(done.status != Some(0) && done.stderr.contains("nosuch"), "{done:?}");
    if !has_ipython() {
        return;
    }
    let done = home.run_args(&["tool", "call", "one", "-l", "python", "-c", "1 / 0"]);
    assert_eq!((done.status, done.stdout.as_str()), (Some(1), ""), "{done:?}");
    assert!(done.stderr.contains("ZeroDivisionError: division by zero"), "{done:?}");
    let done = home.run_args(&["tool", "call", "one", "-l", "python", "-c", "open('x', 'w').close()\n6 * 7"]);
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "42\n"), "{done:?}");
    assert!(done.stderr.contains("not shown: pictures and files of the result (1)"), "{done:?}");
}

#[test]
fn calls_get_files_and_leave_some() {
    let home = Home::new();
    home.good("tool add one --language bash");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(at("data"), b"\0\xff").unwrap();
    std::fs::write(at("large"), vec![0; (1 << 20) + 1]).unwrap();
    let (pair, out) = (format!("{}:in/x", at("data")), at("out"));
    let code = "mkdir -p out; cat in/x in/x >out/y; echo done";
    let done = home.run_args(&["tool", "call", "one", "-f", &pair, "-o", &out, "-c", code]);
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "done\n"), "{done:?}");
    assert_eq!(std::fs::read(dir.path().join("out/out/y")).unwrap(), b"\0\xff\0\xff");
    // What is there stays.
    let again = home.run_args(&["tool", "call", "one", "-f", &pair, "-o", &out, "-c", code]);
    assert!(again.status == Some(125) && again.stderr.contains("cannot write \"out/y\""), "{again:?}");
    for (given, reason) in [
        (at("nosuch"), "cannot read"),
        (at(""), "is not a file"),
        (at("large"), "at most 1024 KiB in all"),
        (format!("{}:../x", at("data")), "without .."),
    ] {
        let refused = home.run_args(&["tool", "test", "one", "-f", &given, "-c", "true"]);
        assert!(refused.status != Some(0) && refused.stderr.contains(reason), "{given}: {refused:?}");
    }
}

#[test]
fn calls_wait_for_another_person() {
    let home = Home::new();
    home.good("tool add one --language bash --approval always");
    let agent = home.good("key create --name agent --owner agent").trim().to_owned();
    // Nobody else could approve it.
    let refused = home.run(&format!("tool call one -c true --api-key {agent}"));
    refused.refused(125, &["the call needs approval", "belljar key create"]);
    assert_eq!(home.run(&format!("tool test one -c true --api-key {agent}")).status, Some(1));
    let ann = home.good("key create --name ann --owner ann --role approver").trim().to_owned();
    let verdict = home.good(&format!("tool test one -c true --api-key {agent}"));
    assert_eq!(
        verdict,
        "would wait by approval of one@1: it waits until another person approves it, by the tool's rule always\n"
    );
    let call = |code: &str| {
        let args = ["tool", "call", "one", "-c", code, "--api-key", &agent];
        home.belljar(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let waiting = || {
        eventually(|| {
            let id = home.good(&format!("approval ls -q --api-key {ann}")).trim().to_owned();
            if id.is_empty() { Err("no call waits".to_owned()) } else { Ok(id) }
        })
    };
    let args = ["approval", "watch", "--api-key", &ann];
    let mut watch = home.belljar(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut watched = BufReader::new(watch.stdout.take().unwrap()).lines();
    // Lines until one has both words; the end of the program is none.
    let mut until = |id: &str, what: &str| {
        let found = watched
            .by_ref()
            .find(|line| line.as_ref().is_ok_and(|line| line.contains(id) && line.contains(what)));
        found.unwrap_or_else(|| panic!("{what} {id} was not reported")).unwrap()
    };
    let running = call("echo out; echo err >&2; exit 3");
    let id = waiting();
    assert!(until(&id, "requested").ends_with("agent  one@1  echo out; echo err >&2; exit 3"));
    let shown = home.good(&format!("approval show {id}"));
    for expected in ["one@1", "agent (key key_", "code:\n  echo out; echo err >&2; exit 3\n", "disabled"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    home.run(&format!("approval approve {id} --api-key {agent}"))
        .refused(125, &["needs a key with the role approver"]);
    home.run(&format!("approval approve {id} --within 5m")).refused(2, &["--for"]);
    home.run(&format!("approval approve {id} --for 1"))
        .refused(2, &["uses: 1 is not allowed; give 2 to 1000 calls"]);
    let args = format!("approval approve {id} --for 2 --within 5m --scope tool --note fine --api-key {ann}");
    assert_eq!(home.good(&args), format!("{id}\n"));
    until(&id, "approved");
    let output = running.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "out\n".to_owned()), "{output:?}");
    assert!(text(&output.stderr).contains("err"), "{output:?}");
    assert!(text(&output.stderr).contains(&format!(": belljar approval approve {id}\n")), "{output:?}");
    // The second call of the budget does not wait; the third does, and is denied.
    let within = home.run(&format!("tool call one -c true --api-key {agent}"));
    assert_eq!(within.status, Some(0), "{within:?}");
    let running = call("true");
    let id = waiting();
    assert_eq!(home.good(&format!("approval deny {id} --note enough --api-key {ann}")), format!("{id}\n"));
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stderr).contains("is denied by ann: enough"), "{output:?}");
    until(&id, "denied");
    watch.kill().unwrap();
    watch.wait().unwrap();
    let all = home.good(&format!("approval ls --all --api-key {ann}"));
    assert_eq!((all.matches("approved").count(), all.matches("denied").count()), (2, 1), "{all}");
    home.run("approval show apr_0").refused(125, &["approval \"apr_0\" not found"]);
    home.run(&format!("approval deny {id}")).refused(125, &["is denied already"]);
    home.run("key create --approval sometimes").refused(2, &["approval: "]);
    home.run("tool edit one --approval on_risk").refused(2, &["on_risk", "on-medium-risk or always"]);
}

#[test]
fn errors_in_files_name_the_tool_and_the_key() {
    let home = Home::new();
    for (text, expected) in [
        (TOOLS.replace("memory =", "memroy ="), "tools.toml: tool 2 (two): \"limits.memroy\": unknown key"),
        (
            TOOLS.replace("\"bash\"]", "\"cobol\"]"),
            "tools.toml: tool 1 (one): languages: \"cobol\" is not allowed",
        ),
        (
            TOOLS.replace("\"two\"", "\"one\""),
            "tools.toml: tool 2 (one): name: \"one\" is not allowed; give each name once",
        ),
        (
            TOOLS.replace("session = true", "session = true\napproval = \"on_risk\""),
            "tools.toml: tool 2 (two): approval: \"on_risk\" is not allowed; give never, on-risk, on-medium-risk or always",
        ),
        ("[[tool]".to_owned(), "tools.toml: "),
    ] {
        home.write("tools.toml", &text);
        home.run("tool import tools.toml").refused(2, &[expected]);
    }
    // Nothing of such a file is stored.
    assert_eq!(home.good("tool ls -q"), "");
    home.run("tool import nosuch.toml").refused(2, &["nosuch.toml: "]);
    home.run("tool add run_code --language bash").refused(2, &["name: \"run_code\" is a built-in tool"]);
    home.run("tool add one").refused(2, &["--language: give at least one"]);
    home.run("tool add one --language bash --network nosuch").refused(2, &["nosuch"]);
    home.run("mcp --tool A").refused(2, &["--tool: \"A\" is not allowed; give NAME or NAME@VERSION"]);
    home.run("mcp --sandbox a_b").refused(2, &["--sandbox: \"a_b\" is not allowed"]);
}

/// Exchanges messages over standard streams, until all are answered.
fn exchange(home: &Home, args: &[&str], lines: &str) -> Vec<Value> {
    let mut command = home.belljar(args);
    let mut program =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    program.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut messages: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    messages.sort_by_key(|message| message["id"].as_i64());
    messages
}

/// A line that is too long is refused, and does not end the connection.
#[test]
fn too_long_lines_are_refused() {
    let home = Home::new();
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}});
    let mut command = home.belljar(&["mcp"]);
    let mut program =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = program.stdin.take().unwrap();
    let feeding = std::thread::spawn(move || {
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..65 {
            stdin.write_all(&piece).unwrap();
        }
        stdin.write_all(format!("\n{list}\n").as_bytes()).unwrap();
    });
    let output = program.wait_with_output().unwrap();
    feeding.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut messages: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    messages.sort_by_key(|message| message["id"].as_i64());
    let [refused, listed] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32700)));
    let said = refused["error"]["message"].as_str().unwrap();
    assert!(said.starts_with("the message is larger than 67108864 bytes"), "{said}");
    assert!(listed["result"]["tools"].is_array(), "{listed}");
}

#[test]
fn standard_streams_need_no_server() {
    let home = Home::new();
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    let request = |id: u32, method: &str, mut params: Value| {
        params["_meta"] = meta.clone();
        format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    };
    let lines = [
        request(1, "tools/list", json!({})),
        "\n".to_owned(),
        request(2, "tools/call", json!({"name": "run_command", "arguments": {"command": "echo hi"}})),
        request(3, "tools/call", json!({"name": "größe", "arguments": {}})),
        request(4, "nosuch/method", json!({})),
        "no JSON\n".to_owned(),
        format!("{}\n", json!({"jsonrpc": "2.0", "method": "notifications/nosuch"})),
    ];
    let messages = exchange(&home, &["mcp"], &lines.concat());
    let [parse, list, call, unknown, method] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!((&parse["id"], &parse["error"]["code"]), (&Value::Null, &json!(-32700)));
    assert_eq!(list["result"]["tools"].as_array().map(Vec::len), Some(9), "{list}");
    assert_eq!(call["result"]["structuredContent"]["stdout"], "hi\n", "{call}");
    assert_eq!(
        (&unknown["error"]["code"], &method["error"]["code"]),
        (&json!(-32602), &json!(-32601)),
        "{messages:?}"
    );
    // A port has no URL: the server has no address but a socket.
    let publish = request(1, "tools/call", json!({"name": "publish_port", "arguments": {"port": 8000}}));
    let published = exchange(&home, &["mcp"], &publish).remove(0);
    let sandbox = published["result"]["structuredContent"]["sandbox"].as_str().unwrap();
    assert_eq!(published["result"]["structuredContent"]["url"], Value::Null, "{published}");
    let command =
        format!("http://127.0.0.1:8000 with the command: belljar sandbox port-forward {sandbox} 8000");
    assert!(published["result"]["content"][0]["text"].as_str().unwrap().ends_with(&command), "{published}");
    home.good("tool add one --language bash");
    let listed = exchange(&home, &["mcp", "--tool", "one"], &request(1, "tools/list", json!({}))).remove(0);
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(1), "{listed}");
    let listed =
        exchange(&home, &["mcp", "--tools", "claude"], &request(1, "tools/list", json!({}))).remove(0);
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(7), "{listed}");
}
