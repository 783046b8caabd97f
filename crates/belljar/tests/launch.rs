//! The system calls of a launch, traced with strace(1) and compared with a golden file: a new call shows up in the diff.
//! Between a clone and an exec of one thread, the order counts; elsewhere only the set of calls does.
//!
//! Calls that depend on the machine (its control groups, its `/etc`, its kernel's `/proc`) are listed once, as a set.
//! `BELLJAR_BLESS=1` rewrites `tests/golden/launch.txt`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot continue has failed, and one that cannot start prints why"
)]

#[path = "posture/golden.rs"]
mod golden;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

/// Calls that vary with memory, scheduling, the tracer or the order of exits, and mean nothing. A build for tests also queries
/// each descriptor before it closes it.
const NOISE: &[&str] = &[
    "brk",
    "mmap",
    "munmap",
    "mremap",
    "madvise",
    "mprotect",
    "restart_syscall",
    "sched_yield",
    "futex",
    "exit_group",
    "shutdown",
];

/// Files whose contents differ between machines, or between two launches.
const FROM_THE_MACHINE: &[&str] = &["</tmp/meminfo>", "</tmp/cpuinfo>", "</tmp/stat>"];

/// Words without significance, or not in all versions of strace.
const IGNORED_WORDS: &[&str] = &["NULL", "O_LARGEFILE", "PR_", "SA_RESTORER", "SIG_DFL", "STATX_ALL", "MS_"];

/// One call: its name, the relevant words of its arguments, and its error.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    name: String,
    words: Vec<String>,
    error: String,
}

impl Call {
    /// Parses a line. Returns `None` for an irrelevant one.
    fn read(line: &str) -> Option<Self> {
        let (name, rest) = line.split_once('(')?;
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_name || NOISE.contains(&name) || rest.contains("F_GETFD") || rest.contains("= ? ERESTART") {
            return None;
        }
        let (arguments, result) = rest.rsplit_once(" = ").unwrap_or((rest, ""));
        let error = result.strip_prefix("-1 ").and_then(|text| text.split(' ').next()).unwrap_or_default();
        let mut words = words(arguments);
        let mut error = error.to_owned();
        match name {
            // Records of a launch contain times and numbers.
            "write" if arguments.contains("<socket:") => words.retain(|word| word.starts_with('<')),
            // What the machine's processors and clock say.
            "write" if FROM_THE_MACHINE.iter().any(|path| arguments.contains(path)) => {
                words.retain(|word| word.starts_with('<'));
            }
            // The file that the descriptor was open on does not matter; its number does.
            "dup3" => {
                let target = arguments.split(", ").nth(1).unwrap_or_default();
                words.truncate(1);
                words.push(target.split('<').next().unwrap_or_default().to_owned());
            }
            // Whether there is a v2 group to clone into depends on the machine.
            "clone3" => words.retain(|word| !word.contains("cgroup") && word != "CLONE_INTO_CGROUP"),
            // Which capabilities exist depends on the machine; that all are dropped does not.
            "capget" | "capset" if arguments.contains("CAP_") => {
                words = vec!["those of the caller".to_owned()]
            }
            // The previous limits depend on the caller.
            "prlimit64" if arguments.contains("NULL, {") => words.truncate(1),
            // One call for each capability that this kernel has, and a failing one after the last.
            "prctl" if arguments.starts_with("PR_CAPBSET_DROP") => {
                words = vec!["PR_CAPBSET_DROP each".to_owned()];
                error.clear();
            }
            "rt_sigaction" if words.len() == 1 => {
                words = vec!["each signal".to_owned()];
                error.clear();
            }
            // The guest may have ended by itself just before.
            "waitid" => words.retain(|word| !word.starts_with("CLD_") && !word.starts_with("SIG")),
            _ => {}
        }
        Some(Self { name: name.to_owned(), words, error })
    }

    fn is_about(&self, text: &str) -> bool {
        self.words.iter().any(|word| word.contains(text))
    }

    fn text(&self) -> String {
        let error = if self.error.is_empty() { String::new() } else { format!(" = {}", self.error) };
        format!("{}({}){error}", self.name, self.words.join(" "))
    }
}

/// Extracts strings, files behind descriptors, and names of flags, without values that differ between runs.
fn words(arguments: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = arguments;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => {
                let end = closing_quote(rest);
                words.push(format!("\"{}\"", normal(&rest[1..end])));
                end + 1
            }
            '<' => {
                let end = rest.find('>').unwrap_or(rest.len() - 1);
                if end > 1 {
                    words.push(format!("<{}>", normal(&rest[1..end])));
                }
                end + 1
            }
            'A'..='Z' => {
                let end = rest
                    .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
                    .unwrap_or(rest.len());
                let word = &rest[..end];
                if end > 2 && !IGNORED_WORDS.contains(&word) {
                    words.push(word.to_owned());
                }
                end
            }
            'a'..='z' | '_' => {
                let end = rest
                    .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
                    .unwrap_or(rest.len());
                if let Some(value) = rest[end..].strip_prefix('=').filter(|_| rest.starts_with("rlim_cur")) {
                    words.push(value.split([',', '}']).next().unwrap().to_owned());
                }
                end
            }
            other => other.len_utf8(),
        };
        rest = &rest[length..];
    }
    words
}

fn closing_quote(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len() - 1)
}

/// Replaces numbers of processes, inodes and users, and ids.
fn normal(text: &str) -> String {
    let text = text.replace(BELLJAR, "BELLJAR");
    let mut normal = String::new();
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end.max(first.len_utf8()));
        let is_uid = word.parse().is_ok_and(|number: u32| (1_900_000_000..1_900_065_536).contains(&number));
        let is_inode = normal.ends_with(":[") && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_pid = normal.ends_with("/proc/") && word.parse::<u32>().is_ok();
        let is_id = word.len() == 20 && normal.ends_with("belljar-");
        normal.push_str(match () {
            () if is_uid => "SANDBOX",
            () if is_inode => "N",
            () if is_pid => "PID",
            () if is_id => "ID",
            () => word,
        });
        rest = after;
    }
    normal.replace(":[N]", "").replace("anon_inode:[", "[")
}

/// Reports whether a call is about the machine's control groups, which are v1 or v2 and have any names.
fn is_cgroups(call: &Call) -> bool {
    call.is_about("/sys/fs/cgroup")
}

/// Reports whether a call counts sockets, which begins when a sandbox has run for a tenth of a second.
fn counts_sockets(call: &Call) -> bool {
    call.is_about("net/sockstat")
}

/// Returns the tag of a call whose repetitions depend on the machine: files of `/etc`, links of the root, covers of `/proc`.
fn tag(call: &Call) -> Option<&'static str> {
    let has = |test: fn(&str) -> bool| call.words.iter().any(|word| test(word.trim_matches(['"', '<', '>'])));
    if has(|word| word.starts_with("etc/") || word.contains("/etc/") || word == "etc") {
        return Some("for each part of /etc");
    }
    let covers = has(|word| word == "/tmp/proc" || word.starts_with("/tmp/proc/"));
    let covers = covers && ["newfstatat", "move_mount", "close"].contains(&call.name.as_str());
    if covers || (call.name == "open_tree" && has(|word| word.starts_with(".hidden-"))) {
        return Some("for each part of /proc that is covered");
    }
    if call.name == "symlinkat" && has(|word| word.starts_with("usr/")) {
        return Some("for each link of the root into /usr");
    }
    None
}

/// Lists the calls in order, with repetitions listed once.
fn ordered(calls: &[Call]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut runs: Vec<(&str, BTreeSet<String>)> = Vec::new();
    for call in calls.iter().filter(|call| !is_cgroups(call)) {
        if let Some(tag) = tag(call) {
            let name = call.name.clone();
            match runs.iter_mut().find(|(known, _)| *known == tag) {
                Some((_, names)) => drop(names.insert(name)),
                None => {
                    lines.push(format!("{tag}:"));
                    runs.push((tag, BTreeSet::from([name])));
                }
            }
            continue;
        }
        let text = call.text();
        if lines.last() != Some(&text) {
            lines.push(text);
        }
    }
    for line in &mut lines {
        if let Some((_, names)) = runs.iter().find(|(tag, _)| *line == format!("{tag}:")) {
            line.push(' ');
            line.push_str(&names.iter().map(String::as_str).collect::<Vec<_>>().join(" "));
        }
    }
    lines
}

/// Returns the distinct names of the calls.
fn names(calls: &[Call]) -> Vec<String> {
    let lasting = calls.iter().filter(|call| !is_cgroups(call) && !counts_sockets(call));
    let names: BTreeSet<_> = lasting.map(|call| call.name.clone()).collect();
    names.into_iter().collect()
}

/// Returns the names of the calls about control groups.
fn cgroup_names(calls: &[Call]) -> BTreeSet<&str> {
    calls.iter().filter(|call| is_cgroups(call)).map(|call| call.name.as_str()).collect()
}

/// One thread's calls.
struct Trace(Vec<Call>);

impl Trace {
    fn has(&self, name: &str, word: &str) -> bool {
        self.0.iter().any(|call| call.name == name && call.is_about(word))
    }

    fn position(&self, test: impl Fn(&Call) -> bool) -> usize {
        self.0.iter().position(test).unwrap()
    }
}

/// Traces one launch, with these flags of `run`, with one trace for each thread.
fn trace(without: &str, flags: &[&str]) -> Vec<Trace> {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("strace")
        .args(["-ff", "-qq", "-y", "-s", "256", "-e", "signal=none", "-o"])
        .arg(dir.path().join("trace"))
        .args([BELLJAR, "run"])
        .args(flags)
        .args(["-l", "sh", "-c", ":"])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("BELLJAR_TEST_WITHOUT", without)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut files: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &std::path::PathBuf| {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        Trace(text.lines().filter_map(Call::read).collect())
    };
    files.iter().map(read).collect()
}

/// Returns the golden text of a launch without the given walls.
fn launch(without: &str) -> String {
    let traces = trace(without, &[]);
    let find = |name: &str, word: &str| {
        traces
            .iter()
            .find(|trace| trace.has(name, word))
            .unwrap_or_else(|| panic!("no thread calls {name} {word}"))
    };
    let launcher =
        traces.iter().find(|trace| trace.0[0].name == "execve" && trace.0[0].is_about("run")).unwrap();
    let supervisor = find("prctl", "belljar-super");
    let first = find("prctl", "belljar-init");
    let helper = find("unshare", "CLONE_NEWNET");
    let code = find("execve", "/bin/sh");

    let mut text = String::from(
        "# The system calls of `belljar run -l sh -c :`, started by root\n#\n\
         # Written by crates/belljar/tests/launch.rs with BELLJAR_BLESS=1; CONTRIBUTING.md says when.\n\
         # Repetitions are told once. Control groups are left out where the order counts: which there are, and when they are\n\
         # made, depends on the machine.\n",
    );
    let mut section = |title: &str, lines: Vec<String>| {
        text.push_str(&format!("\n## {title}\n\n"));
        for line in lines {
            text.push_str(&line);
            text.push('\n');
        }
    };
    let clone = launcher.position(|call| call.name == "clone3");
    section("belljar itself, until it clones the supervisor: the set", names(&launcher.0[..=clone]));
    section("belljar itself, from then on: the set", names(&launcher.0[clone + 1..]));
    section("The supervisor, from its clone to its end", ordered(&supervisor.0));
    section("The maker of the network namespace", ordered(&helper.0));
    // The time at which the network is ready varies.
    let pivot = first.position(|call| call.name == "pivot_root");
    let waits = pivot + first.0[pivot..].iter().position(|call| call.name == "recvmsg").unwrap();
    let equipped = first.position(|call| call.name == "unshare");
    let exec = first.position(|call| call.name == "execveat");
    section("The first process, until it waits for what the others make", ordered(&first.0[..waits]));
    let mut taken = ordered(&first.0[waits..equipped]);
    taken.sort();
    taken.dedup();
    section("The first process, which takes that over, in any order", taken);
    section("The first process, until it becomes the guest", ordered(&first.0[equipped..=exec]));
    let is_clone = |call: &Call| call.name.starts_with("clone") && call.error.is_empty();
    let spawns = |first: &Trace, exec: usize| exec + first.0[exec..].iter().position(is_clone).unwrap();
    section("The guest, until it starts the code: the set", names(&first.0[exec + 1..=spawns(first, exec)]));
    let exec = code.position(|call| call.name == "execve" && call.error.is_empty());
    section("The code, from its clone to its exec", ordered(&code.0[..=exec]));

    // A list of changed files needs a guest with a runtime.
    let others = trace(without, &["--json"]);
    let guest = others.iter().find(|trace| trace.has("prctl", "belljar-init")).unwrap();
    let exec = guest.position(|call| call.name == "execveat");
    let title = "A guest with a runtime, until it starts its other thread: the set";
    section(title, names(&guest.0[exec + 1..=spawns(guest, exec)]));
    let restricts = |trace: &&Trace| trace.0.iter().any(|call| call.name == "landlock_restrict_self");
    let spawner = others.iter().find(restricts).unwrap();
    let title = "Its other thread, until it starts the code: the set";
    section(title, names(&spawner.0[..=spawner.position(is_clone)]));

    for calls in [&supervisor.0, &first.0] {
        let names = cgroup_names(calls);
        let known = [
            "clone3", "close", "mkdirat", "open", "openat", "read", "recvmsg", "rmdir", "sendmsg",
            "unlinkat", "write",
        ];
        let known = BTreeSet::from(known);
        assert!(names.is_subset(&known), "other calls on control groups: {:?}", names.difference(&known));
    }
    text
}

/// Reports whether a launch can be traced here, and prints the reason if not.
fn can_trace() -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root, whose launch is written down");
        return false;
    }
    let tried =
        Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: needs strace, and ptrace that is allowed");
        return false;
    }
    true
}

#[test]
fn calls_match_the_golden_file() {
    if can_trace() {
        golden::check("launch.txt", &launch(""));
    }
}

#[cfg(feature = "mutation")]
#[test]
fn missing_call_is_detected() {
    if !can_trace() {
        return;
    }
    let (all, less) = (launch(""), launch("keyring"));
    let missing: Vec<_> = all.lines().filter(|line| !less.lines().any(|known| known == *line)).collect();
    assert_eq!(missing, ["keyctl(KEYCTL_JOIN_SESSION_KEYRING)"]);
    assert_eq!(all.lines().count(), less.lines().count() + 1);
}
