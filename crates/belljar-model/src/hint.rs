//! Hints: one or two sentences that say what to do about an outcome.

use crate::limits::LimitsFile;
use crate::network::NetworkMode;
use crate::outcome::{LimitKind, Outcome};
use crate::spec::SandboxSpec;
use crate::timeout::Timeout;

/// Maximum number of bytes searched at the end of standard error.
const MAX_SEARCHED_BYTES: usize = 64 * 1024;

/// Messages of programs that cannot reach another host.
const NO_NETWORK: [&str; 16] = [
    "Could not resolve host",
    "could not resolve host",
    "unable to resolve host address",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "network is unreachable",
    // So says gVisor's network stack.
    "No route to host",
    "EHOSTUNREACH",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ENETUNREACH",
    "UnknownHostException",
    "failed to lookup address information",
    "Temporary failure resolving",
    "dial tcp: lookup ",
];

/// Messages of programs whose connection was reset.
const RESET: [&str; 4] =
    ["Connection reset by peer", "connection reset by peer", "ECONNRESET", "SSL_ERROR_SYSCALL"];

/// Messages of programs that cannot create more processes or threads.
const NO_PIDS: [&str; 4] = [
    "Resource temporarily unavailable",
    "fork: retry",
    "can't start new thread",
    "unable to create native thread",
];

/// Messages of programs that need root's rights.
const NO_ROOT: [&str; 4] =
    ["are you root?", "sudo: command not found", "sudo: not found", "\"no new privileges\" flag is set"];

/// The kind of modules that `belljar run` can install.
const PYTHON_MODULE: &str = "Python module";

/// How `belljar run` installs a package of Python.
const INSTALL_PACKAGE: &str =
    "a package is installed with --with PACKAGE, whose name may be another than the module's";

/// What to do about a missing module, for programs.
const PACKAGE_IN_TEMPLATE: &str = "write it into the sandbox; a package must be in the template";

/// What to do about a missing module of Python in a context, for a person at a command line.
const PACKAGE_IN_CONTEXT: &str = "put it in with -f; a package is installed with --with PACKAGE by belljar run, or with --preset pip and \
                                  %pip install PACKAGE";

/// Messages of programs that miss a module or library, and its kind.
const NOT_FOUND: [(&str, &str); 4] = [
    ("ModuleNotFoundError: No module named ", PYTHON_MODULE),
    ("Error: Cannot find module ", "Node.js module"),
    ("cannot load such file -- ", "Ruby library"),
    ("there is no package called ", "R package"),
];

/// Reader of a hint, which decides how the hint refers to limits and files: only to what the reader has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HintReader {
    /// A person at a command line, who uses flags.
    CommandLine,
    /// A program using the service or a library, with the fields of a specification.
    #[default]
    Program,
    /// A model, which has tools.
    Model {
        /// The argument that sets the time of a call.
        timeout: &'static str,
        /// The tool that makes sandboxes with another memory limit and network, if it has one.
        create: Option<&'static str>,
    },
    /// The caller of a stored tool, whose limits and network are those of the tool.
    Tool {
        /// The tool's name.
        name: String,
        /// Longest time of a call.
        timeout: Timeout,
    },
}

/// What to tell a model that cannot change something.
const NO_TOOL: &str = "no tool here can change that";

impl HintReader {
    /// Returns how to allow another host, as a sentence.
    fn allow_host(&self) -> String {
        match self {
            Self::CommandLine => "Allow a host with --allow HOST or --allow HOST:PORT".to_owned(),
            Self::Program => "Allow a host in network.allow".to_owned(),
            Self::Model { create: Some(create), .. } => {
                format!("{create} makes a sandbox that reaches the hosts in network.allow")
            }
            Self::Model { create: None, .. } => "No tool here can change that".to_owned(),
            Self::Tool { name, .. } => {
                format!("Whoever keeps the tool can allow a host: belljar tool edit {name} --allow HOST")
            }
        }
    }

    /// Returns how to give a sandbox without network access some.
    fn open_network(&self) -> String {
        match self {
            Self::CommandLine => {
                "allow a host with --allow HOST, or a package index with --preset NAME, such as pip or npm"
                    .to_owned()
            }
            Self::Program => {
                "allow a host in network.allow, or a package index in network.presets, such as pip or npm"
                    .to_owned()
            }
            Self::Model { create: Some(create), .. } => format!(
                "make a sandbox with {create} that reaches a host (network.allow) or a package index (network.presets, such as pip or npm)"
            ),
            Self::Model { create: None, .. } => format!("do without the network: {NO_TOOL}"),
            Self::Tool { name, .. } => {
                format!("have whoever keeps the tool allow a host: belljar tool edit {name} --allow HOST")
            }
        }
    }

    /// Returns how to raise a limit. `set` is its present value, if it is the time of a call.
    fn raise(&self, limit: &str, set: Option<Timeout>) -> String {
        match (self, set) {
            (Self::Tool { timeout, .. }, Some(set)) if set < *timeout => {
                format!("raise it with timeout: the tool allows {timeout}")
            }
            (Self::Tool { timeout, .. }, Some(_)) => {
                format!("the tool allows {timeout}; {}", self.raise_one_of(&[limit]))
            }
            (Self::Tool { .. }, None) => self.raise_one_of(&[limit]),
            (Self::Model { timeout, .. }, Some(_)) => format!("raise it with {timeout}"),
            (Self::Model { create: Some(create), .. }, None) if limit == MEMORY => {
                format!("make a sandbox with {create} that has more: {limit}")
            }
            (Self::Model { .. }, None) => NO_TOOL.to_owned(),
            (Self::CommandLine | Self::Program, _) => format!("raise it with {}", self.name_of(limit)),
        }
    }

    /// Returns how to raise one of several limits.
    fn raise_one_of(&self, limits: &[&str]) -> String {
        let names: Vec<String> = limits.iter().map(|limit| self.name_of(limit)).collect();
        let names = match names.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, first)) => format!("{} or {last}", first.join(", ")),
            None => String::new(),
        };
        match self {
            Self::Model { .. } => NO_TOOL.to_owned(),
            Self::Tool { name, .. } => {
                format!("whoever keeps the tool can raise it: belljar tool edit {name} {names}")
            }
            Self::CommandLine | Self::Program => format!("raise {names}"),
        }
    }

    /// Returns the name under which the limit is set.
    fn name_of(&self, limit: &str) -> String {
        match self {
            Self::CommandLine | Self::Tool { .. } => format!("--{}", limit.replace('_', "-")),
            // The time of one command is a field of the command.
            Self::Program if limit == TIMEOUT => limit.to_owned(),
            Self::Program | Self::Model { .. } => format!("limits.{limit}"),
        }
    }
}

/// Names of limits that some readers set otherwise than the rest.
const MEMORY: &str = "memory";
const TIMEOUT: &str = "timeout";

/// Rewrites a hint for programs for a person at a command line, who sets a limit of a new sandbox and its network with flags.
#[must_use]
pub fn for_command_line(hint: &str) -> String {
    let (program, person) = (HintReader::Program, HintReader::CommandLine);
    let hint = LimitsFile::TABLE.iter().fold(hint.to_owned(), |hint, limit| {
        hint.replace(&program.name_of(limit.name), &person.name_of(limit.name))
    });
    let hint = hint.replace(&program.open_network(), &person.open_network());
    let hint = hint.replace(&program.allow_host(), &person.allow_host());
    let (Some((before, _)), true) = (hint.split_once(PACKAGE_IN_TEMPLATE), hint.contains(PYTHON_MODULE))
    else {
        return hint;
    };
    format!("{before}{PACKAGE_IN_CONTEXT}.")
}

/// How often an execution hit limits, as counted by the kernel for the whole sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitEvents {
    /// Processes that were killed because memory ran out.
    pub oom_kills: u64,
    /// Processes and threads that were refused by the limit `pids`.
    pub pids_denied: u64,
}

impl LimitEvents {
    /// Returns a hint about what was counted besides the outcome, if there was something.
    fn hint(self, outcome: &Outcome, spec: &SandboxSpec, reader: &HintReader) -> Option<String> {
        let text = match self {
            Self { oom_kills: 0, pids_denied: 0 } => return None,
            Self { oom_kills: 0, .. } => pids_hint(spec, reader),
            Self { oom_kills, .. } => {
                let were_killed = if oom_kills == 1 {
                    "1 process was".to_owned()
                } else {
                    format!("{oom_kills} processes were")
                };
                let limit = memory_limit(spec);
                format!(
                    "{were_killed} killed, because the sandbox exceeded its {limit}. If it needs more, {}.",
                    reader.raise(MEMORY, None)
                )
            }
        };
        Some(match outcome {
            Outcome::TimedOut => format!("The code timed out after {}. {text}", spec.limits.timeout),
            _ => text,
        })
    }
}

/// Returns a hint about an outcome, if there is one. What the kernel counted says more than what the code printed.
///
/// `stderr_tail` is the end of standard error. It is untrusted: only fixed patterns are searched, and at most one short name is
/// quoted from it.
pub fn hint(
    outcome: &Outcome,
    events: LimitEvents,
    stderr_tail: &[u8],
    spec: &SandboxSpec,
    reader: &HintReader,
) -> Option<String> {
    match outcome {
        Outcome::Exited { .. } | Outcome::Signalled { .. } | Outcome::TimedOut
            if events != LimitEvents::default() =>
        {
            events.hint(outcome, spec, reader)
        }
        Outcome::Exited { code: 0 } => None,
        Outcome::TimedOut => {
            // Some programs wait for a network without a word.
            let network = match spec.network.mode() {
                NetworkMode::Disabled => {
                    format!(" If it waited for the network, which is disabled, {}.", reader.open_network())
                }
                _ => String::new(),
            };
            Some(format!(
                "The code timed out after {}. If it needs longer, {}.{network}",
                spec.limits.timeout,
                reader.raise(TIMEOUT, Some(spec.limits.timeout))
            ))
        }
        Outcome::OutOfMemory => Some(format!(
            "The code exceeded its {}. If it needs more, {}.",
            memory_limit(spec),
            reader.raise(MEMORY, None)
        )),
        Outcome::Limit { limit } => Some(limit_hint(*limit, spec, reader)),
        Outcome::Denied { rule } => {
            Some(format!("The code was not run: the rule {rule:?} does not allow it."))
        }
        Outcome::Infrastructure { .. } => Some(
            "Belljar failed, not the code, which may be correct. Run `belljar doctor` to check this host."
                .to_owned(),
        ),
        Outcome::Exited { .. } | Outcome::Signalled { .. } => {
            let start = stderr_tail.len().saturating_sub(MAX_SEARCHED_BYTES);
            stderr_hint(&String::from_utf8_lossy(&stderr_tail[start..]), spec, reader)
                .or_else(|| signal_hint(outcome, reader))
        }
    }
}

/// Signals that end a program which has not asked for it, and of which it writes nothing itself.
const CRASHES: [&str; 9] =
    ["SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGSEGV", "SIGSYS", "SIGXFSZ"];

/// Returns the name of a signal that ends a program without a word of its own, if it is one.
#[must_use]
pub fn crash_name(signal: i32) -> Option<String> {
    match Outcome::signalled(signal) {
        Outcome::Signalled { name, .. } => Some(name).filter(|name| CRASHES.contains(&name.as_str())),
        _ => None,
    }
}

/// Returns the signal that ended the code, as a shell prints it. Programs have it in the outcome.
fn signal_hint(outcome: &Outcome, reader: &HintReader) -> Option<String> {
    match outcome {
        Outcome::Signalled { signal, .. } if *reader == HintReader::CommandLine => {
            crash_name(*signal).map(|name| format!("The code was ended by signal {signal} ({name})."))
        }
        _ => None,
    }
}

/// Returns the words for the limit of memory, and for what counts against it.
fn memory_limit(spec: &SandboxSpec) -> String {
    format!(
        "{} memory limit, against which the files in its home directory and /tmp count",
        spec.limits.memory
    )
}

fn limit_hint(limit: LimitKind, spec: &SandboxSpec, reader: &HintReader) -> String {
    let limits = &spec.limits;
    match limit {
        LimitKind::Pids => pids_hint(spec, reader),
        LimitKind::Disk => format!(
            "The code filled its disk of {}, the limit disk. If it needs more, {}.",
            limits.disk,
            reader.raise("disk", None)
        ),
        LimitKind::Tmp => format!(
            "The code filled its /tmp of {}, the limit tmp. If it needs more, {}.",
            limits.tmp,
            reader.raise("tmp", None)
        ),
        LimitKind::Inodes => format!(
            "The code made more than {} files and directories, the limit inodes. If it needs more, {}.",
            limits.inodes,
            reader.raise("inodes", None)
        ),
        LimitKind::Output => format!(
            "The code wrote more than the limits output ({}) and log ({}) keep. Write less, or to a file.",
            limits.output, limits.log
        ),
        LimitKind::OpenFiles => format!(
            "A process held {} open files, the limit open_files. Close files. If it needs more, {}.",
            limits.open_files,
            reader.raise("open_files", None)
        ),
        LimitKind::Cpu => format!(
            "The code used up its processor time at {} CPU. If it needs more, {}.",
            limits.cpus,
            reader.raise_one_of(&["cpus", TIMEOUT])
        ),
    }
}

fn pids_hint(spec: &SandboxSpec, reader: &HintReader) -> String {
    format!(
        "The code could start no more processes or threads: the limit pids is {}. If it needs more, {}.",
        spec.limits.pids,
        reader.raise("pids", None)
    )
}

fn stderr_hint(stderr: &str, spec: &SandboxSpec, reader: &HintReader) -> Option<String> {
    let has = |patterns: &[&str]| patterns.iter().any(|pattern| stderr.contains(pattern));
    // An index that cannot be reached has no package; with a network it may also lack this one.
    let is_disabled = spec.network.mode() == NetworkMode::Disabled;
    if has(&NO_NETWORK) || is_disabled && has(&["ERROR: No matching distribution found for "]) {
        return Some(match spec.network.mode() {
            NetworkMode::Disabled => format!(
                "The sandbox has no network access (network = disabled). Give the code what it needs as files, or {}.",
                reader.open_network()
            ),
            mode => format!(
                "The sandbox reaches what its network policy allows (network = {mode}), by TCP over IPv4. {}.",
                reader.allow_host()
            ),
        });
    }
    if has(&RESET) && !is_disabled {
        let log = match reader {
            HintReader::CommandLine | HintReader::Program => "; the sandbox's network log has the reason",
            HintReader::Model { .. } | HintReader::Tool { .. } => "",
        };
        return Some(format!(
            "A connection was reset, as all are to a host that the network policy denies or that cannot be reached{log}."
        ));
    }
    if has(&["No space left on device", "ENOSPC", "Disk quota exceeded"]) {
        let limits = &spec.limits;
        return Some(format!(
            "A file system of the sandbox is full: the limit disk is {}, tmp {} (for /tmp), and inodes {}. If the code needs more, {}.",
            limits.disk,
            limits.tmp,
            limits.inodes,
            reader.raise_one_of(&["disk", "tmp", "inodes"])
        ));
    }
    if has(&NO_PIDS) {
        return Some(pids_hint(spec, reader));
    }
    if has(&["Too many open files", "EMFILE"]) {
        return Some(limit_hint(LimitKind::OpenFiles, spec, reader));
    }
    if has(&["Read-only file system", "EROFS"]) {
        return Some(
            "The code wrote to a place that is read-only in the sandbox. It can write to its home directory, to \
             /tmp, and to mounts with :rw."
                .to_owned(),
        );
    }
    if has(&NO_ROOT) {
        let (template, machine) = match reader {
            HintReader::CommandLine => ("belljar template build", "belljar sandbox create --machine"),
            HintReader::Program => ("a step apt", "machine = true"),
            HintReader::Model { .. } | HintReader::Tool { .. } => {
                return Some(
                    "The code has no root rights. A system package must be in the template.".to_owned(),
                );
            }
        };
        return Some(format!(
            "The code has no root rights. Install system packages in a template ({template}), or use a sandbox that is a machine \
             ({machine})."
        ));
    }
    NOT_FOUND.iter().find_map(|(pattern, kind)| {
        let (_, rest) = stderr.rsplit_once(pattern)?;
        let name = quoted_name(rest)?;
        // The name does not tell whether it is one of the code's own files or a package.
        let way = match reader {
            HintReader::CommandLine if *kind == PYTHON_MODULE => {
                return Some(format!(
                    "The {kind} {name} is not in the sandbox. If it is a file of yours, put it in with -f; {INSTALL_PACKAGE}."
                ));
            }
            HintReader::CommandLine => "put it in with -f; a package must be installed on this machine",
            HintReader::Program | HintReader::Model { .. } => PACKAGE_IN_TEMPLATE,
            HintReader::Tool { .. } => "give it with the files of the call; a package must be in the template",
        };
        let fetched = match spec.network.mode() {
            NetworkMode::Disabled => ", as nothing can be fetched (network = disabled)",
            _ => ", or fetched from where the network policy allows it",
        };
        Some(format!("The {kind} {name} is not in the sandbox. If it is a file of yours, {way}{fetched}."))
    })
}

/// Returns the name at the start of a text, quoted or not, if it looks like a plausible name.
fn quoted_name(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(['\'', '"', '‘', '“']);
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./@".contains(byte);
    let length = text.bytes().take_while(fits).count();
    // A path is one of the code's own files that is missing, not a package to install.
    let is_name = (1..=64).contains(&length) && !text.starts_with(['.', '/']);
    is_name.then(|| &text[..length])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec_file::SpecFile;

    #[test]
    fn hints_by_outcome() {
        use LimitKind::{Cpu, Disk, Inodes, OpenFiles, Output, Pids, Tmp};
        let limit = |limit| Outcome::Limit { limit };
        let failed = || Outcome::Exited { code: 1 };
        let no_network = Some(
            "The sandbox has no network access (network = disabled). Give the code what it needs as files, or allow a host with --allow \
             HOST, or a package index with --preset NAME",
        );
        let cases: Vec<(Outcome, &str, Option<&str>)> = vec![
            (Outcome::Exited { code: 0 }, "curl: (6) Could not resolve host: example.org", None),
            (failed(), "", None),
            (failed(), "Traceback: ValueError", None),
            (failed(), "Operation not permitted", None),
            (failed(), "connect: Connection refused", None),
            (failed(), "curl: (35) Recv failure: Connection reset by peer", None),
            (Outcome::signalled(11), "", Some("The code was ended by signal 11 (SIGSEGV).")),
            (Outcome::signalled(15), "", None),
            (
                Outcome::TimedOut,
                "",
                Some(
                    "timed out after 30 s. If it needs longer, raise it with --timeout. If it waited for the network, which is \
                     disabled, allow a host with --allow HOST, or a package index with --preset NAME",
                ),
            ),
            (
                Outcome::OutOfMemory,
                "",
                Some(
                    "exceeded its 256 MiB memory limit, against which the files in its home directory and /tmp count",
                ),
            ),
            (limit(Pids), "", Some("no more processes or threads: the limit pids is 64")),
            (limit(Disk), "", Some("filled its disk of 240 MiB, the limit disk")),
            (limit(Tmp), "", Some("filled its /tmp of 240 MiB, the limit tmp")),
            (limit(Inodes), "", Some("more than 65536 files and directories, the limit inodes")),
            (limit(Output), "", Some("the limits output (8 MiB) and log (256 MiB)")),
            (limit(OpenFiles), "", Some("held 1024 open files, the limit open_files")),
            (limit(Cpu), "", Some("processor time at 1 CPU")),
            (Outcome::Denied { rule: "r".into() }, "", Some("the rule \"r\" does not allow it")),
            (Outcome::Infrastructure { cause: "c".into() }, "", Some("Belljar failed, not the code")),
            (failed(), "curl: (6) Could not resolve host: example.org", no_network),
            (failed(), "fatal: unable to access 'https://x/': Could not resolve host: x", no_network),
            (failed(), "socket.gaierror: [Errno -3] Temporary failure in name resolution", no_network),
            (failed(), "socket.gaierror: [Errno -2] Name or service not known", no_network),
            (failed(), "OSError: [Errno 101] Network is unreachable", no_network),
            (failed(), "OSError: [Errno 113] No route to host", no_network),
            (failed(), "Error: getaddrinfo ENOTFOUND example.org", no_network),
            (failed(), "Error: getaddrinfo EAI_AGAIN example.org", no_network),
            (failed(), "Error: connect ENETUNREACH 1.1.1.1:80", no_network),
            (failed(), "wget: unable to resolve host address 'x'", no_network),
            (failed(), "java.net.UnknownHostException: example.org", no_network),
            (failed(), "dial tcp: lookup example.org on [::1]:53", no_network),
            (
                failed(),
                "OSError: [Errno 28] No space left on device",
                Some(
                    "tmp 240 MiB (for /tmp), and inodes 65536. If the code needs more, raise --disk, --tmp or --inodes",
                ),
            ),
            (failed(), "bash: fork: retry: Resource temporarily unavailable", Some("raise it with --pids")),
            (failed(), "RuntimeError: can't start new thread", Some("raise it with --pids")),
            (failed(), "OSError: [Errno 24] Too many open files: 'x'", Some("raise it with --open-files")),
            (
                failed(),
                "touch: cannot touch '/usr/x': Read-only file system",
                Some("read-only in the sandbox"),
            ),
            (
                failed(),
                "ModuleNotFoundError: No module named 'numpy'\n",
                Some(
                    "The Python module numpy is not in the sandbox. If it is a file of yours, put it in with -f; a package is installed \
                     with --with PACKAGE",
                ),
            ),
            (
                failed(),
                "Error: Cannot find module 'left-pad'\n",
                Some("The Node.js module left-pad is not in the sandbox"),
            ),
            (
                failed(),
                "cannot load such file -- nokogiri (LoadError)",
                Some("The Ruby library nokogiri is not in the sandbox"),
            ),
            (
                failed(),
                "there is no package called ‘dplyr’",
                Some("The R package dplyr is not in the sandbox"),
            ),
            (
                failed(),
                "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\nE: Unable to acquire the \
                 dpkg frontend lock, are you root?",
                Some(
                    "The code has no root rights. Install system packages in a template (belljar template build)",
                ),
            ),
            (failed(), "sh: 1: sudo: not found", Some("a machine (belljar sandbox create --machine)")),
            (failed(), "ModuleNotFoundError: No module named '\u{1b}[31m'", None),
            (failed(), "Error: Cannot find module './mine.js'", None),
            (Outcome::signalled(6), "Network is unreachable", no_network),
        ];
        let flags = r#"{"limits": {"memory": "256m", "timeout": "30", "pids": "64"}}"#;
        let spec = SpecFile::from_json(flags).unwrap().resolve().unwrap();
        let none = LimitEvents::default();
        for (outcome, stderr, expected) in cases {
            let found = hint(&outcome, none, stderr.as_bytes(), &spec, &HintReader::CommandLine);
            // Hints for programs mention no flags.
            let program = hint(&outcome, none, stderr.as_bytes(), &spec, &HintReader::Program);
            assert!(program.is_none_or(|text| !text.contains("--") && !text.contains(" -f")), "{found:?}");
            match (&found, expected) {
                (None, None) => {}
                (Some(found), Some(expected)) => {
                    assert!(found.contains(expected), "{found}");
                    assert!(found.ends_with('.') && !found.contains("  "), "{found}");
                }
                _ => panic!("{outcome:?} {stderr:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn hints_by_what_was_counted() {
        let spec = SandboxSpec::default();
        let find = |outcome: &Outcome, oom_kills, pids_denied| {
            let events = LimitEvents { oom_kills, pids_denied };
            hint(outcome, events, b"Network is unreachable", &spec, &HintReader::Program).unwrap_or_default()
        };
        let exited = |code| Outcome::Exited { code };
        let memory = "because the sandbox exceeded its 512 MiB memory limit, against which the files in its home directory and \
                      /tmp count. If it needs more, raise it with limits.memory.";
        assert_eq!(find(&exited(0), 0, 0), "");
        assert_eq!(find(&exited(0), 1, 0), format!("1 process was killed, {memory}"));
        assert_eq!(find(&exited(1), 2, 9), format!("2 processes were killed, {memory}"));
        assert_eq!(
            find(&Outcome::TimedOut, 3, 0),
            format!("The code timed out after 60 s. 3 processes were killed, {memory}")
        );
        let pids = "The code could start no more processes or threads: the limit pids is 128. If it needs more, raise it \
                    with limits.pids.";
        assert_eq!(find(&exited(0), 0, 5), pids);
        assert_eq!(find(&Outcome::TimedOut, 0, 5), format!("The code timed out after 60 s. {pids}"));
        assert!(find(&Outcome::OutOfMemory, 1, 0).starts_with("The code exceeded its 512 MiB memory limit"));
    }

    #[test]
    fn hints_are_rewritten_for_the_command_line() {
        let spec = SandboxSpec::default();
        for outcome in [Outcome::OutOfMemory, Outcome::Limit { limit: LimitKind::OpenFiles }] {
            let of = |reader| hint(&outcome, LimitEvents::default(), b"", &spec, &reader).unwrap();
            assert_eq!(for_command_line(&of(HintReader::Program)), of(HintReader::CommandLine));
        }
        let of = |stderr: &[u8], reader| {
            hint(&Outcome::Exited { code: 1 }, LimitEvents::default(), stderr, &spec, &reader).unwrap()
        };
        let unreachable = b"Could not resolve host";
        assert_eq!(
            for_command_line(&of(unreachable, HintReader::Program)),
            of(unreachable, HintReader::CommandLine)
        );
        assert_eq!(
            for_command_line(&of(b"ModuleNotFoundError: No module named 'rich'", HintReader::Program)),
            format!(
                "The Python module rich is not in the sandbox. If it is a file of yours, {PACKAGE_IN_CONTEXT}."
            )
        );
    }

    #[test]
    fn resets_of_a_network_are_explained() {
        let spec = SpecFile::from_json(r#"{"network": "open"}"#).unwrap().resolve().unwrap();
        let of = |reader| {
            let stderr = b"curl: (35) Recv failure: Connection reset by peer\n";
            hint(&Outcome::Exited { code: 35 }, LimitEvents::default(), stderr, &spec, &reader).unwrap()
        };
        let text = "A connection was reset, as all are to a host that the network policy denies or that cannot be reached";
        let log = "; the sandbox's network log has the reason.";
        assert_eq!(of(HintReader::CommandLine), format!("{text}{log}"));
        assert_eq!(of(HintReader::Program), format!("{text}{log}"));
        assert_eq!(of(HintReader::Model { timeout: "timeout", create: None }), format!("{text}."));
    }

    /// A reader is told of nothing that it does not have.
    #[test]
    fn hints_name_what_their_reader_has() {
        let flags = r#"{"limits": {"timeout": "20"}}"#;
        let spec = SpecFile::from_json(flags).unwrap().resolve().unwrap();
        let default = || HintReader::Model { timeout: "timeout", create: Some("create_sandbox") };
        let claude = || HintReader::Model { timeout: "timeout_ms", create: None };
        let tool =
            |timeout: &str| HintReader::Tool { name: "sh".to_owned(), timeout: timeout.parse().unwrap() };
        let of = |outcome: &Outcome, stderr: &[u8], reader: &HintReader| {
            hint(outcome, LimitEvents::default(), stderr, &spec, reader).unwrap()
        };
        let late = |reader: &HintReader| of(&Outcome::TimedOut, b"", reader);
        let needs = "The code timed out after 20 s. If it needs longer, ";
        let waited = " If it waited for the network, which is disabled, ";
        assert_eq!(
            late(&tool("20s")),
            format!(
                "{needs}the tool allows 20 s; whoever keeps the tool can raise it: belljar tool edit sh --timeout.{waited}have whoever \
                 keeps the tool allow a host: belljar tool edit sh --allow HOST."
            )
        );
        assert!(
            late(&tool("60s")).starts_with(&format!("{needs}raise it with timeout: the tool allows 60 s."))
        );
        assert_eq!(
            late(&claude()),
            format!(
                "{needs}raise it with timeout_ms.{waited}do without the network: no tool here can change that."
            )
        );
        assert!(
            late(&default()).contains("raise it with timeout. ")
                && late(&default()).contains("create_sandbox")
        );
        let failed = Outcome::Exited { code: 1 };
        let limit = |limit| Outcome::Limit { limit };
        for (outcome, stderr) in [
            (Outcome::OutOfMemory, &b""[..]),
            (limit(LimitKind::Pids), b""),
            (limit(LimitKind::Disk), b""),
            (limit(LimitKind::Tmp), b""),
            (limit(LimitKind::Inodes), b""),
            (limit(LimitKind::OpenFiles), b""),
            (limit(LimitKind::Cpu), b""),
            (failed.clone(), b"No space left on device"),
            (failed.clone(), b"Network is unreachable"),
            (failed.clone(), b"are you root?"),
            (failed, b"ModuleNotFoundError: No module named 'x'"),
        ] {
            for (reader, absent) in [
                (default(), &["--", "limits.", " -f"][..]),
                (claude(), &["--", "limits.", " -f", "network.", "create_sandbox"]),
                (tool("20s"), &["limits.", " -f", "network.", "create_sandbox", "--preset"]),
            ] {
                let text = of(&outcome, stderr, &reader);
                assert!(!absent.iter().any(|word| text.contains(word)), "{reader:?}: {text}");
                assert!(text.ends_with('.') && !text.contains("  "), "{reader:?}: {text}");
            }
        }
        assert!(
            of(&Outcome::OutOfMemory, b"", &default())
                .ends_with("make a sandbox with create_sandbox that has more: memory.")
        );
        assert!(of(&Outcome::OutOfMemory, b"", &tool("20s")).ends_with("belljar tool edit sh --memory."));
    }

    #[test]
    fn only_the_end_is_searched() {
        let spec = SandboxSpec::default();
        let failed = Outcome::Exited { code: 1 };
        let mut stderr = b"Network is unreachable".to_vec();
        stderr.extend(vec![0xff; MAX_SEARCHED_BYTES]);
        let none = LimitEvents::default();
        assert_eq!(hint(&failed, none, &stderr, &spec, &HintReader::Program), None);
        stderr.extend(b"Network is unreachable\xc3");
        assert!(hint(&failed, none, &stderr, &spec, &HintReader::Program).is_some());
    }
}
