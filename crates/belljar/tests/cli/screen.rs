//! `belljar screen`.

use serde_json::Value;

use crate::host::Host;

#[test]
fn code_is_read_and_not_run() {
    let host = Host::new();
    host.write("a.py", "from os import system as s\nopen('made', 'w')\ns('rm -rf /')\n");
    let done = host.run(&["screen", "a.py"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""));
    let found = "3:1      high   destructive-command  rm  (in bash)\n         a command that destroys files, disks or processes\n         walls: it";
    assert!(done.text().contains(found), "{}", done.text());
    let [.., risk, advice] = done.text().lines().collect::<Vec<_>>()[..] else { panic!("{done:?}") };
    assert!(risk.starts_with("risk: high, ") && risk.ends_with(" findings"), "{risk}");
    assert!(advice.starts_with("Advice, not a wall: "), "{advice}");
    assert_eq!(host.names(), ["a.py"]);
    let done = host.run(&["screen", "a.py", "--json"]);
    let report: Value = serde_json::from_str(done.text()).unwrap();
    assert_eq!((done.status, &report["risk"]), (0, &Value::from("high")), "{report}");
    let nothing = host.run(&["screen", "-c", "print(1)"]);
    assert!(nothing.text().starts_with("risk: low, nothing found\nAdvice, not a wall:"), "{nothing:?}");
    let denied = host.run(&["screen", "-l", "js", "-c", "require('fs')", "--deny-module", "fs"]);
    assert!(denied.text().contains("1:1      high   module-denied  fs\n"), "{denied:?}");
}

#[test]
fn several_files_are_read() {
    let host = Host::new();
    host.write("a.py", "import os\nos.system('rm -rf /')\n");
    host.write("b.sh", "echo hi\n");
    let done = host.run(&["screen", "a.py", "b.sh"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""));
    let (first, second) = done.text().split_once("b.sh:\n").unwrap();
    assert!(first.starts_with("a.py:\n") && first.contains("destructive-command"), "{first}");
    assert!(second.starts_with("risk: low, nothing found\n"), "{second}");
    let done = host.run(&["screen", "a.py", "b.sh", "--json"]);
    let reports: Vec<Value> = done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<_> = reports.iter().map(|report| (&report["file"], &report["risk"])).collect();
    assert_eq!(seen, [(&"a.py".into(), &"high".into()), (&"b.sh".into(), &"low".into())]);
    // If one cannot be read, none is reported.
    let done = host.run(&["screen", "a.py", "none.py"]);
    assert!(done.status == 125 && done.text().is_empty() && done.stderr.contains("none.py"), "{done:?}");
}

#[test]
fn wrong_input_is_refused() {
    let host = Host::new();
    host.write("a.c", "int main(void) { return 0; }\n");
    host.write("bytes.py", b"\xff\xfe");
    host.write("large.py", "#".repeat((1 << 20) + 1));
    host.write("unknown.xyz", "x");
    for (arguments, status, expected) in [
        (&["a.c"][..], 2, "language: c cannot be screened; python, javascript,"),
        (&["bytes.py"], 125, "is not UTF-8"),
        (&["large.py"], 2, "code: too large: 1048577 bytes > limit 1048576"),
        (&["unknown.xyz"], 125, "language: \"unknown.xyz\" has no known extension"),
        (&["none.py"], 125, "cannot read \"none.py\""),
        (&["-l", "pyton", "-c", "x"], 2, "did you mean python?"),
        (&["-c", "x", "--deny-module", ""], 2, "modules.deny: \"\" is no name of a module"),
        (&["-c", "x", "a.c"], 2, "cannot be used with"),
    ] {
        let done = host.run(&[&["screen"], arguments].concat());
        assert_eq!((done.status, done.text()), (status, ""), "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(expected), "{arguments:?}: {}", done.stderr);
    }
}
