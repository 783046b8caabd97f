//! Checks of the documentation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::code::has_ipython;
use crate::fixture::Home;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs a script with `belljar` on the path.
fn run(home: &Home, script: &str) -> (bool, String) {
    let belljar = home.belljar(&[]);
    let dir = Path::new(belljar.get_program()).parent().unwrap().to_owned();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-eu", "-o", "pipefail", "-c", script]).current_dir(home.dir.path());
    for (name, value) in belljar.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.env("PATH", path).stdin(std::process::Stdio::null()).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}

#[test]
fn readme_commands_work() {
    let home = Home::new();
    let id = home.create("");
    home.write("sales.csv", "1,2\n");
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let lines: Vec<_> = readme
        .lines()
        .filter(|line| {
            ["belljar sandbox ", "belljar key ", "belljar audit "].iter().any(|begin| line.starts_with(begin))
        })
        .collect();
    assert!(lines.len() >= 5, "{lines:?}");
    for line in lines {
        let line = line.replace("ID", &id);
        let (good, text) = run(&home, &line);
        assert!(good, "{line}: {text}");
    }
}

#[test]
fn picture_shows_what_is_printed() {
    if !rustix::process::geteuid().is_root() {
        // Without control groups the outputs say so.
        return;
    }
    let home = Home::new();
    let script = format!(
        "python3 {0}/scripts/picture.py --belljar \"$(command -v belljar)\" --check {0}/docs/terminal.svg",
        repository().display()
    );
    let (good, text) = run(&home, &script);
    assert!(good, "{text}");
}

#[test]
fn command_page_scripts_work() {
    let home = Home::new();
    let page = std::fs::read_to_string(repository().join("docs/commands.md")).unwrap();
    let scripts: Vec<_> =
        page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!scripts.is_empty());
    // All in one shell, one after the other.
    let (good, text) = run(&home, &scripts.concat());
    assert!(good, "{text}");
}

#[test]
fn tools_page_scripts_work() {
    let home = Home::new();
    let page = std::fs::read_to_string(repository().join("docs/tools.md")).unwrap();
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (good, text) = run(&home, script);
    assert!(good && text.contains("allowed by tool of analyse@1"), "{text}");
}

#[test]
fn screening_page_script_works() {
    let home = Home::new();
    home.write("analyse.py", "import numpy\nimport socket\nprint(numpy)\n");
    let page = std::fs::read_to_string(repository().join("docs/screening.md")).unwrap();
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (good, text) = run(&home, script);
    assert!(good && text.contains("module-denied") && text.contains("not a wall"), "{text}");
}

#[test]
fn approvals_page_script_works() {
    let home = Home::new();
    let page = std::fs::read_to_string(repository().join("docs/approvals.md")).unwrap();
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (good, text) = run(&home, script);
    assert!(good && text.contains("by ann") && text.contains("as planned"), "{text}");
    assert_eq!(home.read("out.txt"), "released\n", "{text}");
    if has_ipython() {
        let of_code = page.split("```sh\n").nth(2).and_then(|rest| rest.split("```").next()).unwrap();
        let (good, text) = run(&home, of_code);
        assert!(good && text.contains("calling code, which runs already:"), "{text}");
        assert_eq!(home.read("code.txt"), "'out\\n'\n", "{text}");
    }
    let by_risk = page.split("```sh\n").nth(3).and_then(|rest| rest.split("```").next()).unwrap();
    let (good, text) = run(&home, by_risk);
    assert!(good && text.contains("by the tool's rule on-risk; risk high") && text.contains("42"), "{text}");
}

/// Runs the commands of the page on volumes, and checks their errors.
#[test]
fn volumes_page_works() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        println!("SKIPPED volumes_page_works: needs root and loop devices, for volumes");
        return;
    }
    let home = Home::new();
    let page = std::fs::read_to_string(repository().join("docs/volumes.md")).unwrap();
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    // The example must not use up the disk.
    let (good, text) = run(&home, &script.replace("--size 1g", "--size 32m"));
    assert!(good && text.matches("hello\n").count() == 2, "{text}");
    let documented = std::fs::read_to_string(repository().join("docs/commands.md")).unwrap();
    let documented: BTreeSet<&str> = documented.split('`').skip(1).step_by(2).collect();
    let mut keys = BTreeSet::new();
    gather(&home.json("volume create data --size 16m"), &mut keys);
    gather(&home.json("volume info data"), &mut keys);
    let id = home.create("--volume data:/mnt/data:ro");
    gather(&home.json(&format!("sandbox info {id}"))["volumes"], &mut keys);
    assert!(keys.len() >= 6 && keys.iter().all(|key| documented.contains(key.as_str())), "{keys:?}");
    home.write("file", "content\n");
    for (line, expected) in [
        ("volume rm data", "is in use by sandbox"),
        ("volume rm none", "volume \"none\" not found"),
        ("volume create data", "\"data\" already exists (a volume)"),
        ("volume create data --size 1", "size: "),
        ("volume cp file none:file", "volume \"none\" not found"),
        ("volume cp file data:../file", "which may lead out of the volume"),
        ("volume cp data:none back", "none"),
        ("sandbox create --volume data", "NAME:PATH"),
        ("sandbox create --volume data:/usr/data", "volume path"),
    ] {
        let (good, text) = run(&home, &format!("belljar {line}"));
        assert!(!good && text.contains(expected), "{line}: {text}");
    }
}

/// Runs the commands of the page on the code interpreter, if its requirements are installed.
#[test]
fn interpreter_page_script_works() {
    if !crate::code::has_ipython() {
        return;
    }
    let home = Home::new();
    let page = std::fs::read_to_string(repository().join("docs/code-interpreter.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let script: String = blocks.filter(|block| block.contains("belljar ")).collect();
    let (good, text) = run(&home, &script);
    assert!(good && text.contains("18446744073709551616") && text.contains("\"status\":\"ok\""), "{text}");
    assert!(home.read("out.ipynb").contains("42"), "{text}");
}

#[test]
fn every_json_key_is_documented() {
    let home = Home::new();
    let id = home.create("--name work --label job=42 --timeout 10m --idle-timeout 5m");
    home.good(&format!("sandbox exec -d {id} -- sleep 100"));
    home.inside(&id, "true");
    let page = std::fs::read_to_string(repository().join("docs/commands.md")).unwrap();
    let documented: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let commands = [
        "sandbox info ID",
        "sandbox ls",
        "sandbox stats ID",
        "sandbox ps ID",
        "sandbox logs ID",
        "sandbox snapshot ID --name base --note text",
        "sandbox port ID 8000",
        "sandbox port ID 8000 --token 1h",
        "sandbox port ID",
        "sandbox fork ID",
        "sandbox pause ID",
        "key create --name n --expires 1h --max-memory 1g --max-sandboxes 9 --max-disk 1g --max-cpu-per-hour 9",
        "key create --max-executions-per-minute 9",
        "key ls",
        "template ls",
        "audit verify",
        "gc --dry-run",
    ];
    home.write("home/belljar.log.old", "old");
    let mut missing = BTreeSet::new();
    for command in commands {
        let mut keys = BTreeSet::new();
        gather(&home.json(&command.replace("ID", &id)), &mut keys);
        assert!(!keys.is_empty(), "{command}");
        missing.extend(
            keys.into_iter()
                .filter(|key| !documented.contains(key.as_str()))
                .map(|key| format!("{command}: {key}")),
        );
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

fn gather(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                keys.insert(key.clone());
                if key != "labels" {
                    gather(value, keys);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, keys)),
        _ => {}
    }
}
