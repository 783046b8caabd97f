//! Behaviour of `belljar run`.

use crate::host::{Done, Host};

#[test]
fn python_is_the_default() {
    Host::new().run(&["run", "-c", "print(2**64)"]).check(0, "18446744073709551616\n", "");
}

#[test]
fn language_is_named_or_detected() {
    let host = Host::new();
    host.write("script.js", "console.log('js', ...process.argv.slice(2))");
    host.write("plain", "#!/usr/bin/env -S bash -e\necho bash $1");
    host.write("odd.txt", "puts 'ruby'");
    for (args, expected) in [
        (&["run", "script.js", "a", "--json", "b c"][..], "js a --json b c\n"),
        (&["run", "plain", "x"], "bash x\n"),
        (&["run", "-l", "ruby", "odd.txt"], "ruby\n"),
        (&["run", "-l", "bash", "-c", "echo $1 $2", "one", "--two"], "one --two\n"),
        (&["run", "-c", "#!/bin/sh\necho sh"], "sh\n"),
    ] {
        host.run(args).check(0, expected, "");
    }
}

#[test]
fn script_is_read_from_standard_input() {
    let host = Host::new();
    for args in [&["run"][..], &["run", "-"], &["run", "-", "x"]] {
        let done = host.run_with_stdin(args, b"import sys\nprint(sys.argv[1:], repr(sys.stdin.read()))");
        let arguments = if args.len() == 3 { "['x']" } else { "[]" };
        done.check(0, &format!("{arguments} ''\n"), "");
    }
    host.run_with_stdin(&["run", "-l", "sh", "-"], b"echo hi").check(0, "hi\n", "");
}

#[test]
fn exit_status_is_that_of_the_code() {
    let host = Host::new();
    let crash = "belljar: hint: The code was ended by signal 11 (SIGSEGV).\n";
    for (code, status, stderr) in
        [("exit 3", 3, ""), ("exit 255", 255, ""), ("kill -TERM $$", 143, ""), ("kill -SEGV $$", 139, crash)]
    {
        host.run(&["run", "-l", "sh", "-c", code]).check(status, "", stderr);
    }
}

#[test]
fn timeout_exits_with_124_and_names_the_limit() {
    let done = Host::new().run(&["run", "--timeout", "500ms", "-l", "sh", "-c", "echo before; sleep 100"]);
    done.check(
        124,
        "before\n",
        "belljar: hint: The code timed out after 500 ms. If it needs longer, raise it with --timeout. If it waited for the network, \
         which is disabled, allow a host with --allow HOST, or a package index with --preset NAME, such as pip or npm.\n",
    );
}

#[test]
fn out_of_memory_exits_with_137_and_names_the_limit() {
    let code = "x = b'x' * (256 << 20); print(len(x))";
    let done = Host::new().run(&["run", "--memory", "64m", "-c", code]);
    done.check(
        137,
        "",
        "belljar: hint: The code exceeded its 64 MiB memory limit, against which the files in its home directory and \
         /tmp count. If it needs more, raise it with --memory.\n",
    );
}

#[test]
fn process_limit_is_enforced() {
    let code = "for i in $(seq 60); do sleep 5 & done; wait";
    let done = Host::new().run(&["run", "--pids", "16", "-l", "bash", "-c", code]);
    assert_ne!(done.status, 0, "{done:?}");
    assert!(done.stderr.contains("the limit pids is 16"), "{done:?}");
}

#[test]
fn network_is_denied_and_the_rule_is_named() {
    let host = Host::new();
    let python = "import urllib.request; urllib.request.urlopen('https://example.org')";
    let bash = "curl -sS https://example.org";
    for (language, code) in [("python", python), ("bash", bash)] {
        let done = host.run(&["run", "-l", language, "-c", code]);
        assert_ne!(done.status, 0, "{done:?}");
        assert!(
            done.stderr.contains("belljar: hint: The sandbox has no network access (network = disabled).")
                && done.stderr.contains("--allow HOST"),
            "{done:?}"
        );
    }
}

#[test]
fn common_mistakes_get_hints() {
    let host = Host::new();
    host.write("sales.csv", "1\n");
    host.write("sum.py", "import sys\nprint(open(sys.argv[1]).read())");
    let shows = "class plt: show = print\nplt.show()";
    for (args, hint) in [
        (
            &["sum.py", "sales.csv"][..],
            "sales.csv is a file here, and not in the sandbox; put it in with -f sales.csv.",
        ),
        (&["-c", "import os; os.kill(os.getpid(), 11)"], "The code was ended by signal 11 (SIGSEGV)."),
        (&["-c", "import nosuch"], "a package is installed with --with PACKAGE"),
        (&["-c", shows], "plt.show() shows no picture here; --rich shows pictures"),
        (
            &["--timeout", "100ms", "-l", "sh", "-c", "sleep 9"],
            "If it waited for the network, which is disabled, allow a host with --allow",
        ),
    ] {
        let done = host.run(&[&["run"], args].concat());
        assert!(done.stderr.contains("belljar: hint: ") && done.stderr.contains(hint), "{done:?}");
    }
    let done = host.run(&["run", "-f", "sales.csv", "sum.py", "sales.csv"]);
    done.check(0, "1\n\n", "");
}

#[test]
fn quiet_omits_hints() {
    let code = "import sys; print('Network is unreachable', file=sys.stderr); sys.exit(4)";
    let done = Host::new().run(&["run", "--quiet", "-c", code]);
    done.check(4, "", "Network is unreachable\n");
}

#[test]
fn variables_and_host_name_are_set() {
    let host = Host::new();
    let code = "echo $K $TAKEN $(hostname)";
    let args = ["run", "--env", "K=V=1", "--env", "TAKEN", "--hostname", "jar", "-l", "sh", "-c", code];
    Done::of(host.belljar(&args).env("TAKEN", "from here").env("OTHER", "no")).check(
        0,
        "V=1 from here jar\n",
        "",
    );
}

#[test]
fn mount_is_read_only_by_default() {
    let host = Host::new();
    std::fs::create_dir(host.path().join("data")).unwrap();
    host.write("data/in", "content\n");
    let data = host.path().join("data").canonicalize().unwrap();
    let mount = |mode: &str| format!("{}:/data{mode}", data.display());
    let code = "cat /data/in; echo new > /data/out && echo written || echo refused";
    for (mode, word) in [("", "refused"), (":ro", "refused"), (":rw", "written")] {
        let done = host.run(&["run", "--mount", &mount(mode), "-l", "sh", "-c", code]);
        assert_eq!((done.status, done.text()), (0, format!("content\n{word}\n").as_str()), "{done:?}");
    }
    assert_eq!(host.read("data/out"), b"new\n");
}

#[test]
fn mounts_are_below_the_working_directory() {
    let host = Host::new();
    std::fs::create_dir_all(host.path().join("data/deep")).unwrap();
    host.write("data/in", "content\n");
    for (dir, source) in [("", "./data"), ("data", "."), ("data/deep", ".."), ("data/deep", "../../data/.")] {
        let mut command =
            host.belljar(&["run", "--mount", &format!("{source}:/data"), "-l", "sh", "-c", "cat /data/in"]);
        Done::of(command.current_dir(host.path().join(dir))).check(0, "content\n", "");
    }
}

#[test]
fn policy_file_is_enforced() {
    let host = Host::new();
    for name in ["open", "shut", "open/secret"] {
        std::fs::create_dir(host.path().join(name)).unwrap();
    }
    let dir = host.path().canonicalize().unwrap();
    let dir = dir.display();
    host.write("policy.toml", format!("read = ['{dir}/open']\nforbidden = ['{dir}/open/secret']\n"));
    host.write("inner", "");
    host.write("open/file", "seen\n");
    for (mount, expected) in [
        (format!("{dir}/open/file:/x"), Ok("seen\n".to_owned())),
        (
            format!("{dir}/open/file:/x:rw"),
            Err(format!(
                "cannot mount \"{dir}/open/file\" for writing: \"{dir}/open\" is allowed for reading only; mount it with :ro"
            )),
        ),
        (
            format!("{dir}/open:/x"),
            Err(format!(
                "cannot mount \"{dir}/open\": it contains \"{dir}/open/secret\", which is forbidden; name a directory that does not"
            )),
        ),
        (
            format!("{dir}/shut:/x"),
            Err(format!(
                "cannot mount \"{dir}/shut\": it is not in an allowed path; allowed: \"{dir}/open\""
            )),
        ),
    ] {
        let args = ["run", "--policy", "policy.toml", "--mount", &mount, "-l", "sh", "-c", "cat /x"];
        let by_variable = ["run", "--mount", &mount, "-l", "sh", "-c", "cat /x"];
        let mut with_variable = host.belljar(&by_variable);
        with_variable.env("BELLJAR_POLICY", "policy.toml");
        for done in [host.run(&args), Done::of(&mut with_variable)] {
            match &expected {
                Ok(stdout) => done.check(0, stdout, ""),
                Err(refusal) => done.check(125, "", &format!("belljar: {refusal}\n")),
            }
        }
    }
}

#[test]
fn mounts_in_a_specification_need_a_policy() {
    let host = Host::new();
    let dir = host.path().canonicalize().unwrap();
    let dir = dir.display();
    host.write("spec.json", format!("{{\"mounts\": [\"{dir}:/x\"]}}"));
    let done = host.run(&["run", "--spec", "spec.json", "-c", ""]);
    done.check(
        125,
        "",
        &format!("belljar: cannot mount \"{dir}\": it is not in an allowed path; allowed: none; the operator allows some in [sandboxes.mounts] of a server's configuration, and for belljar run in /etc/belljar/policy.toml, or the policy that is named\n"),
    );
    host.write("policy.toml", format!("read = ['{dir}']"));
    let done = host.run(&[
        "run",
        "--spec",
        "spec.json",
        "--policy",
        "policy.toml",
        "-l",
        "sh",
        "-c",
        "cat /x/spec.json",
    ]);
    assert_eq!(done.status, 0, "{done:?}");
}

#[test]
fn flags_override_the_specification() {
    let host = Host::new();
    host.write(
        "spec.toml",
        "language = 'sh'\nhostname = 'one'\n[env]\nA = '1'\nB = '1'\n[limits]\npids = 33\ntimeout = '5s'\n",
    );
    host.write(
        "spec.json",
        r#"{"language":"sh","hostname":"one","env":{"A":"1","B":"1"},"limits":{"pids":33,"timeout":5}}"#,
    );
    for spec in ["spec.toml", "spec.json"] {
        let code = "hostname; echo $A$B";
        let args = ["run", "--spec", spec, "--env", "B=2", "--hostname", "two", "-c", code];
        host.run(&args).check(0, "two\n12\n", "");
        let done = host.run(&["run", "--json", "--spec", spec, "--pids", "44", "-c", code]);
        let layers = done.json()["isolation"]["layers"].to_string();
        assert!(layers.contains("44 by "), "{layers}");
    }
}

#[test]
fn engine_is_chosen_by_flag_then_environment_then_file() {
    let host = Host::new();
    host.write("spec.toml", "engine = 'local'\n");
    let engine = |args: &[&str], variables: &[(&str, &str)]| {
        let args = [&["run", "--json", "-c", "print(1)"], args].concat();
        let done = Done::of(host.belljar(&args).envs(variables.iter().copied()));
        (done.json()["isolation"]["engine"].as_str().unwrap().to_owned(), done.stderr)
    };
    let warning = "belljar: warning: the engine none has no walls: the code runs with your own rights\n";
    for (args, variables, name, stderr) in [
        (&[][..], &[][..], "local", ""),
        (&["--engine", "process"], &[("BELLJAR_ENGINE", "none")], "process", ""),
        (&[], &[("BELLJAR_ENGINE", "process"), ("CODE_EXEC_SANDBOX", "none")], "process", ""),
        (&[], &[("CODE_EXEC_SANDBOX", "none")], "none", warning),
        (&["--spec", "spec.toml"], &[("BELLJAR_ENGINE", "process")], "process", ""),
        (&["--spec", "spec.toml"], &[], "local", ""),
        (&["--engine", "none", "--quiet"], &[], "none", warning),
    ] {
        assert_eq!(engine(args, variables), (name.to_owned(), stderr.to_owned()), "{args:?} {variables:?}");
    }
}

/// Programs that read no files find the limits in variables, whatever starts them.
#[test]
fn limits_are_in_variables() {
    let host = Host::new();
    let shown = "echo $OMP_NUM_THREADS $GOMAXPROCS $JDK_JAVA_OPTIONS";
    let options = "-XX:MaxRAM=268435456 -XX:MaxRAMPercentage=50 -XX:ActiveProcessorCount=1";
    host.run(&["run", "--memory", "256m", "-l", "sh", "-c", shown]).check(0, &format!("1 1 {options}\n"), "");
    if !std::path::Path::new("/usr/bin/javac").exists() {
        println!("SKIPPED limits_are_in_variables: Java is not installed");
        return;
    }
    // The command for Java states its own heap, so java has nothing to mention. What the user sets stays.
    let code = "public class Main { public static void main(String[] a) { System.out.println(System.getProperty(\"a\")); } }";
    host.run(&["run", "-l", "java", "-c", code]).check(0, "null\n", "");
    let done = host.run(&["run", "-l", "java", "-e", "JDK_JAVA_OPTIONS=-Da=1", "-c", code]);
    assert_eq!((done.status, done.text()), (0, "1\n"), "{done:?}");
}

#[test]
fn weaker_grade_is_reported() {
    let host = Host::new();
    let warning = "belljar: warning: limits are watched, not enforced by control groups: \
                   a burst can pass a limit before it is seen\n";
    let by_flag = host.run(&["run", "--json", "--limits", "watched", "-c", "print(1)"]);
    let by_variable =
        Done::of(host.belljar(&["run", "--json", "-c", "print(1)"]).env("BELLJAR_LIMITS", "watched"));
    for done in [by_flag, by_variable] {
        assert_eq!(done.json()["isolation"]["grade"], "watched");
        assert_eq!(done.stderr, warning);
    }
    host.run(&["run", "--quiet", "--limits", "watched", "-c", "print(1)"]).check(0, "1\n", "");
}

#[test]
fn compiled_languages_have_two_phases() {
    let host = Host::new();
    host.write(
        "ok.c",
        "#include <stdio.h>\nint main(int n, char **v) { printf(\"%d %s\\n\", n, v[1]); return 7; }",
    );
    host.write("bad.c", "int main( { return 0; }");
    host.run(&["run", "ok.c", "a b"]).check(7, "2 a b\n", "");
    let done = host.run(&["run", "bad.c"]);
    assert_eq!((done.status, done.text()), (1, ""));
    assert!(done.stderr.contains("bad.c:1:11: error"), "{done:?}");
    let result = host.run(&["run", "--json", "bad.c"]).json();
    assert_eq!(result["compile"]["outcome"]["code"], 1);
    assert_eq!(result["exit_status"], 1);
}

#[test]
fn json_prints_one_result() {
    let host = Host::new();
    let code = "import os, sys; os.write(1, b'\\xff'); sys.stderr.write('err'); open('made', 'w').write('abc'); sys.exit(3)";
    let done = host.run(&["run", "--json", "-c", code]);
    assert_eq!((done.status, done.stderr.as_str()), (3, ""));
    assert_eq!(done.text().lines().count(), 1);
    let result = done.json();
    assert_eq!(result["outcome"], serde_json::json!({"kind": "exited", "code": 3}));
    assert_eq!(result["language"], "python");
    assert_eq!(
        (&result["stdout"]["encoding"], &result["stdout"]["data"]),
        (&"base64".into(), &"/w==".into())
    );
    assert_eq!((&result["stderr"]["encoding"], &result["stderr"]["data"]), (&"utf-8".into(), &"err".into()));
    assert_eq!(result["files"][0]["path"], "made");
    assert_eq!(result["files"].as_array().unwrap().len(), 1);
    assert_eq!(result["timings"], serde_json::Value::Null);
    assert!(result["isolation"]["layers"].as_array().unwrap().len() > 5);
}

#[test]
fn events_are_lines_and_end_with_the_result() {
    let code = "import sys; print('a', flush=True); print('b', file=sys.stderr, flush=True)";
    let done = Host::new().run(&["run", "--events", "-c", code]);
    let events: Vec<serde_json::Value> =
        done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names.first(), Some(&"started"));
    assert_eq!(names.last(), Some(&"result"));
    let joined = |name: &str| -> String {
        let own = events.iter().filter(|event| event["event"] == name);
        own.map(|event| event["data"].as_str().unwrap()).collect()
    };
    assert_eq!((joined("stdout").as_str(), joined("stderr").as_str()), ("a\n", "b\n"));
    assert!(names.contains(&"phase"));
    assert_eq!(events.last().unwrap()["exit_status"], 0);
}

#[test]
fn flood_is_truncated_in_the_result_and_complete_in_the_log() {
    let host = Host::new();
    std::fs::create_dir(host.path().join("logs")).unwrap();
    let code = "for i in range(4000): print(f'{i:09}')";
    let args = ["run", "--json", "--output", "8k", "--log-dir", "logs", "-c", code];
    let result = host.run(&args).json();
    let stdout = &result["stdout"];
    assert_eq!((&stdout["bytes"], &stdout["truncated"]), (&40_000.into(), &true.into()));
    assert_eq!(stdout["omitted_bytes"], 40_000 - 8192);
    let whole: String = (0..4000).map(|number| format!("{number:09}\n")).collect();
    assert_eq!(host.read(stdout["log"].as_str().unwrap()), whole.as_bytes());
}

#[test]
fn timings_are_printed_and_part_of_the_result() {
    let host = Host::new();
    let done = host.run(&["run", "--timings", "-c", "print(1)"]);
    assert_eq!((done.status, done.text()), (0, "1\n"));
    let last = done.stderr.lines().last().unwrap();
    assert!(last.starts_with("belljar: total ") && last.ends_with(" ms"), "{done:?}");
    let result = host.run(&["run", "--timings", "--json", "-c", "print(1)"]).json();
    assert!(result["timings"]["total"].as_f64().unwrap() >= result["timings"]["run"].as_f64().unwrap());
}

#[test]
fn options_after_the_script_are_explained_if_it_fails() {
    let host = Host::new();
    host.write("sum.py", "import sys; sys.exit(len(sys.argv))");
    let hint = "belljar: hint: -f was passed to the program; options of belljar run go before the script.\n";
    host.run(&["run", "sum.py", "-f", "sales.csv"]).check(3, "", hint);
    host.run(&["run", "sum.py", "-x", "sales.csv"]).check(3, "", "");
    host.run(&["run", "-c", "import sys; print(sys.argv[1:])", "--", "-f"]).check(0, "['-f']\n", "");
}

#[test]
fn short_option_sets_the_environment() {
    let host = Host::new();
    let code = "import os; print(os.environ['A'], os.environ['B'])";
    host.run(&["run", "-e", "A=1", "-e", "B=2", "-c", code]).check(0, "1 2\n", "");
}

#[test]
fn missing_language_names_its_package() {
    let host = Host::new();
    for (language, stderr) in [
        (
            "perl",
            "belljar: perl: no such program in the sandbox\n\
             belljar: hint: The language perl is not installed here: apt-get install perl.\n",
        ),
        (
            "c",
            "belljar: gcc: no such program in the sandbox\n\
             belljar: hint: The language c is not installed here: apt-get install gcc libc6-dev.\n",
        ),
    ] {
        // A PATH without programs simulates a machine without the language.
        host.run(&["run", "--env", "PATH=/nowhere", "-l", language, "-c", "x"]).check(127, "", stderr);
    }
}

/// An ordinary user without a control group gets the reason, the grade, its cost, and a command that works as printed.
#[test]
fn hint_for_an_ordinary_user_is_a_working_command() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    if !rustix::process::geteuid().is_root() {
        // This user has a control group.
        return;
    }
    let host = Host::new();
    std::fs::set_permissions(host.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = host.path().join("belljar");
    // It is the whole command line, whatever its name is.
    std::fs::copy(env!("CARGO_BIN_EXE_belljar-service"), &program).unwrap();
    let as_nobody = |command: &mut std::process::Command| {
        let command = command.env_clear().env("PATH", "/usr/bin:/bin").stdin(std::process::Stdio::null());
        Done::of(command.current_dir("/").uid(65534).gid(65534))
    };
    let refused = as_nobody(std::process::Command::new(&program).args(["run", "-c", "print('it''s')"]));
    assert_eq!((refused.status, refused.text()), (125, ""), "{refused:?}");
    assert!(
        refused.stderr.contains("cannot enforce the limits of memory, processors and processes"),
        "{refused:?}"
    );
    assert!(
        refused.stderr.contains("grade watched") && refused.stderr.contains("grade cgroup"),
        "{refused:?}"
    );
    let begin = refused.stderr.find("BELLJAR_LIMITS=watched").unwrap();
    let line = refused.stderr[begin..].split(';').next().unwrap().trim();
    let done = as_nobody(std::process::Command::new("sh").args(["-c", line]));
    assert_eq!((done.status, done.text()), (0, "its\n"), "{line}: {done:?}");
}

#[test]
fn q_means_quiet() {
    let watched = ["run", "--limits", "watched", "-c", "print(1)"];
    let host = Host::new();
    assert!(host.run(&watched).stderr.contains("warning"));
    host.run(&[&watched[..3], &["-q"], &watched[3..]].concat()).check(0, "1\n", "");
}

#[test]
fn missing_file_is_not_attributed_to_the_network() {
    let host = Host::new();
    host.write("main.py", "import helper");
    host.write("helper.py", "print('here')");
    let done = host.run(&["run", "main.py"]);
    assert!(done.stderr.contains("If it is a file of yours, put it in with -f"), "{done:?}");
    host.run(&["run", "-f", "helper.py", "main.py"]).check(0, "here\n", "");
}

#[test]
fn out_of_memory_names_the_files_that_fill_it() {
    let host = Host::new();
    let code = "head -c 100m /dev/zero > big; head -c 100m /dev/zero > /tmp/big; echo done";
    let done = host.run(&["run", "--memory", "32m", "-l", "sh", "-c", code]);
    assert!(done.stderr.contains("against which the files in its home directory and /tmp count"), "{done:?}");
}
