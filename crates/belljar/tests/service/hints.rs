//! Hints of commands and code about limits that the kernel has counted, whatever the outcome is.

use serde_json::{Value, json};

use crate::client::Client;
use crate::contexts::{Fixture, code};
use crate::run;

/// Hint about memory, in a sandbox with this limit.
const MEMORY: &str = "because the sandbox exceeded its 200 MiB memory limit, against which the files in its home directory and /tmp \
                      count. If it needs more, raise it with limits.memory.";

async fn exec(client: &Client, id: &str, body: &Value) -> Value {
    let done = client.post(&format!("/v1/sandboxes/{id}/exec"), body).await;
    assert_eq!(done.status, 200, "{done:?}");
    done.json()
}

/// Runs a case with a sandbox in which Python contexts work, of 200 MiB and 30 processes.
fn case(name: &str, case: impl AsyncFnOnce(&Client, &str)) {
    if crate::skipped(name) {
        return;
    }
    run(async {
        let fixture = Fixture::new(&["sandboxes.pool=0"]).await;
        if !fixture.lacks(name, "/usr/bin/python3 -c 'import IPython'").await {
            let limits = json!({ "memory": "200m", "pids": 30 });
            let id = fixture.client.sandbox(&json!({ "timeout": 3600, "limits": limits })).await;
            case(&fixture.client, &id).await;
        }
        fixture.shut_down().await;
    });
}

const HOG: &str = "held = []\nwhile True: held.append(bytearray(16 << 20))";

#[test]
fn killed_children_are_hinted_at() {
    case("killed_children_are_hinted_at", async |client, id| {
        let command = format!("python3 -c '{HOG}'; echo $?");
        let done = exec(client, id, &json!({ "command": command })).await;
        assert_eq!(
            (&done["outcome"]["kind"], &done["stdout"]["data"]),
            (&json!("exited"), &json!("137\n")),
            "{done}"
        );
        assert_eq!(done["hint"], json!(format!("1 process was killed, {MEMORY}")), "{done}");
        let done =
            exec(client, id, &json!({ "command": format!("{command}; sleep 1000"), "timeout": "8s" })).await;
        assert_eq!(done["outcome"]["kind"], json!("timed_out"), "{done}");
        let expected = format!("The code timed out after 8 s. 1 process was killed, {MEMORY}");
        assert_eq!(done["hint"], json!(expected), "{done}");
        // Kills of an earlier command do not count.
        let done = exec(client, id, &json!({ "command": "true" })).await;
        assert_eq!(done["hint"], Value::Null, "{done}");

        let child = format!(
            "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {HOG:?}]).returncode)"
        );
        let done = code(client, id, &json!({ "code": child })).await;
        assert_eq!((&done["status"], &done["stdout"]["data"]), (&json!("ok"), &json!("-9\n")), "{done}");
        assert_eq!(done["hint"], json!(format!("1 process was killed, {MEMORY}")), "{done}");
        let done = code(client, id, &json!({ "code": "1" })).await;
        assert_eq!(done["hint"], Value::Null, "{done}");
    });
}

/// The error of a cell, if there is one, does not say why its command has failed.
#[test]
fn commands_of_cells_are_hinted_at() {
    case("commands_of_cells_are_hinted_at", async |client, id| {
        let connect = "python3 -c \"import socket; socket.create_connection(('x.example', 80))\"";
        let checked = format!("import subprocess\nsubprocess.run({connect:?}, shell=True, check=True)");
        let mut cells = vec![
            json!({ "code": format!("!{connect}") }),
            json!({ "code": checked }),
            json!({ "code": "%pip install --retries 0 x-example" }),
            json!({ "code": connect, "language": "bash" }),
        ];
        let node = exec(client, id, &json!({ "command": "node -e 'fetch'" })).await;
        if node["exit_code"] == 0 {
            cells.push(json!({ "code": "await fetch('https://x.example')", "language": "javascript" }));
        }
        for cell in cells {
            let done = code(client, id, &cell).await;
            let hint = done["hint"].as_str().unwrap_or_default();
            assert!(hint.contains("network"), "{cell}: {done}");
        }
        let done = code(client, id, &json!({ "code": "!echo fine" })).await;
        assert_eq!(done["hint"], Value::Null, "{done}");
    });
}

#[test]
fn rebuilt_repeats_that_memory_was_the_reason() {
    case("rebuilt_repeats_that_memory_was_the_reason", async |client, id| {
        // Python may raise its own error before the kernel kills it, so the memory is used up beside the interpreter, too.
        let body = json!({ "code": format!("import mmap\nheld = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096): held[at] = 1") });
        let done = code(client, id, &body).await;
        assert_eq!((&done["status"], &done["cause"]), (&json!("died"), &json!("out_of_memory")), "{done}");
        let reason = "the interpreter was killed because the sandbox ran out of memory";
        assert_eq!(done["reason"], json!(reason), "{done}");
        let next = code(client, id, &json!({ "code": "1" })).await;
        assert_eq!(next["rebuilt"], json!(reason), "{next}");
        let next = code(client, id, &json!({ "code": "1" })).await;
        assert_eq!(next["rebuilt"], Value::Null, "{next}");
        // A loss of another kind has its own reason.
        code(client, id, &json!({ "code": "import os; os._exit(3)" })).await;
        let next = code(client, id, &json!({ "code": "1" })).await;
        assert!(next["rebuilt"].as_str().is_some_and(|reason| reason.contains("code 3")), "{next}");
    });
}

#[test]
fn refused_processes_are_hinted_at() {
    case("refused_processes_are_hinted_at", async |client, id| {
        let hint = json!(
            "The code could start no more processes or threads: the limit pids is 30. If it needs more, raise it with limits.pids."
        );
        let threads = "import concurrent.futures as c, time\nwith c.ThreadPoolExecutor(200) as pool: list(pool.map(time.sleep, [1] * 200))";
        let done = code(client, id, &json!({ "code": threads })).await;
        assert_eq!((&done["status"], &done["hint"]), (&json!("error"), &hint), "{done}");
        // The bomb itself goes on after its shell has ended, so the shell waits until it has gone off.
        let bomb = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.1)";
        let command = format!(
            "python3 -c '{bomb}' & while [ $(ls -d /proc/[0-9]* | wc -l) -lt 28 ]; do :; done 2>/dev/null"
        );
        let done = exec(client, id, &json!({ "command": command, "timeout": "20s" })).await;
        assert_eq!(done["hint"], hint, "{done}");
        // Until the bomb has taken the places of the shell and its programs.
        let refused = loop {
            let answer =
                client.post(&format!("/v1/sandboxes/{id}/exec"), &json!({ "command": "true" })).await;
            if answer.status != 200 {
                break answer;
            }
        };
        assert_eq!(refused.status, 409, "{refused:?}");
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains("the limit pids; end some, or raise it"), "{detail}");
    });
}
