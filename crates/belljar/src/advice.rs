//! Advice for command lines that are written as for other programs.

use std::ffi::OsString;
use std::path::Path;

use belljar_model::nearest;
use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::message::shell_quote;

/// Advice for commands that do not exist, by the command that they are given to.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("", "ps", "belljar sandbox ls lists sandboxes, belljar sandbox ps SANDBOX the processes in one"),
    ("", "auth", NO_LOGIN),
    ("", "login", LOGIN),
    ("", "logout", LOGIN),
    ("", "load", "belljar image import FILE imports an image from a file of docker save"),
    ("", "save", "belljar image export IMAGE FILE writes an image to a file"),
    ("", "version", "belljar --version prints the version"),
    ("", "images", "belljar image ls lists images, belljar template ls templates"),
    ("", "pull", "belljar image pull IMAGE pulls an image"),
    ("", "up", "belljar serve starts a server"),
    ("", "start", "belljar serve starts a server, belljar sandbox create a sandbox"),
    ("", "stop", END_SERVER),
    ("", "restart", END_SERVER),
    ("", "server", END_SERVER),
    ("", "daemon", END_SERVER),
    ("", "upgrade", END_SERVER),
    (
        "",
        "log",
        "belljar sandbox logs SANDBOX shows what happened to a sandbox, belljar audit tail the audit log",
    ),
    ("", "repl", "belljar code runs code cell by cell"),
    ("", "whoami", "belljar status shows the key and what it uses of its quotas"),
    ("", "usage", "belljar status shows what the key uses of its quotas, belljar top what each sandbox uses"),
    ("", "build", BUILD),
    (
        "image",
        "prune",
        "belljar image gc removes what nothing needs; belljar image rm IMAGE removes one image",
    ),
    ("image", "load", "belljar image import FILE imports an image from a file of docker save"),
    ("image", "save", "belljar image export IMAGE FILE writes an image to a file"),
    (
        "image",
        "tag",
        "an image has the name of its registry, or that of belljar image import --name; a template has that of belljar image build -t",
    ),
    ("image", "push", "images are pulled and run here, and never sent to a registry"),
    ("image", "remove", "belljar image rm IMAGE removes an image"),
    ("image", "inspect", "belljar image info IMAGE shows an image"),
    ("tool", "diff", "belljar tool show NAME@VERSION shows a version; compare two of them"),
    ("tool", "update", "belljar tool edit NAME changes a tool"),
    ("tool", "delete", "belljar tool rm NAME removes a tool"),
    ("tool", "run", "belljar tool call NAME calls a tool"),
    (
        "sandbox",
        "update",
        "belljar sandbox set SANDBOX changes limits, timeout and labels, belljar sandbox net SANDBOX the network",
    ),
    ("", "python", "belljar code runs Python cell by cell, belljar run SCRIPT a script"),
    ("sandbox", "run", "belljar sandbox exec SANDBOX COMMAND runs a command in a sandbox"),
    (
        "sandbox",
        "stop",
        "belljar sandbox kill SANDBOX ends a sandbox, belljar sandbox pause SANDBOX pauses it",
    ),
    ("sandbox", "delete", "belljar sandbox kill SANDBOX ends a sandbox"),
    ("sandbox", "restart", RESTART),
    ("sandbox", "rename", RENAME),
    ("sandbox", "extend", "belljar sandbox set SANDBOX --timeout TIME sets a timeout from now on"),
    (
        "sandbox",
        "wait",
        "belljar sandbox process wait SANDBOX PROCESS waits for a process, belljar events -f shows the end of a sandbox",
    ),
    (
        "sandbox",
        "events",
        "belljar sandbox logs SANDBOX shows what happened to a sandbox, belljar events what happened to all",
    ),
    (
        "sandbox",
        "top",
        "belljar top shows what sandboxes use, belljar sandbox ps SANDBOX the processes in one",
    ),
    ("sandbox", "commit", "belljar sandbox snapshot SANDBOX keeps the files of a sandbox as a template"),
    ("sandbox process", "log", PROCESS_OUTPUT),
    ("sandbox process", "logs", PROCESS_OUTPUT),
    ("sandbox process", "output", PROCESS_OUTPUT),
    ("sandbox process", "ls", PROCESSES),
    ("sandbox process", "list", PROCESSES),
    ("sandbox process", "ps", PROCESSES),
    (
        "sandbox net",
        "probe",
        "belljar net probe SANDBOX has a program in a sandbox connect, and compares what it met with the policy",
    ),
    (
        "sandbox net",
        "check",
        "belljar net check --sandbox SANDBOX HOST shows whether a sandbox's policy allows a host",
    ),
    ("volume", "inspect", "belljar volume info VOLUME shows a volume"),
    ("volume", "cat", VOLUME_FILES),
    ("volume", "get", VOLUME_FILES),
    (
        "volume",
        "prune",
        "belljar volume ls lists volumes with the sandboxes that mount them, belljar volume rm VOLUME removes one",
    ),
    (
        "volume",
        "resize",
        "a volume keeps its size: belljar volume create NAME --size SIZE creates another one",
    ),
    (
        "sandbox",
        "start",
        "belljar sandbox create creates a sandbox, belljar sandbox resume SANDBOX resumes one",
    ),
    ("sandbox", "inspect", "belljar sandbox info SANDBOX shows its details"),
    (
        "sandbox",
        "connect",
        "belljar sandbox shell SANDBOX opens a terminal, belljar sandbox exec SANDBOX COMMAND runs a command",
    ),
    ("sandbox", "ssh", "belljar sandbox shell SANDBOX opens a terminal"),
    ("net", "get", SANDBOX_NET),
    ("net", "set", SANDBOX_NET),
    ("key", "info", "belljar key ls shows keys"),
    (
        "key",
        "show",
        "belljar key ls shows keys, and nobody the secret of one; belljar key create makes another one",
    ),
    ("key", "rename", "belljar key set KEY --name NAME renames a key"),
    ("key", "rotate", "belljar key create makes a key, and belljar key revoke KEY revokes the old one"),
    ("audit", "ls", "belljar audit tail shows the last records"),
    ("audit", "list", "belljar audit tail shows the last records"),
    ("config", "get", "belljar config show prints every setting with its value and its origin"),
    (
        "config",
        "set",
        "settings are in a file, which belljar config example prints, and in variables: belljar config show names both",
    ),
    ("key", "rm", REVOKE),
    ("key", "delete", REVOKE),
    ("config", "init", SETTINGS),
    ("config", "create", SETTINGS),
    ("template", "init", TEMPLATE_FILE),
    ("template", "create", TEMPLATE_FILE),
    (
        "sandbox",
        "attach",
        "belljar sandbox shell SANDBOX opens a terminal, belljar sandbox process attach follows a process",
    ),
];

const END_SERVER: &str = "belljar status shows the process of this user's server, and kill PROCESS ends it: sandboxes keep running, and the next \
                          command starts a new one; belljar sandbox kill SANDBOX ends a sandbox";
const RESTART: &str = "belljar sandbox pause SANDBOX and belljar sandbox resume SANDBOX stop and continue it, belljar sandbox fork SANDBOX copies \
                       its files into a new one";
const RENAME: &str = "a sandbox keeps the name that belljar sandbox create --name gave it; belljar sandbox set SANDBOX --label KEY=VALUE sets a \
                      label";
const PROCESS_OUTPUT: &str = "belljar sandbox process read SANDBOX PROCESS prints what a process wrote, belljar sandbox process attach SANDBOX \
                              PROCESS follows it";
const PROCESSES: &str = "belljar sandbox ps SANDBOX lists the processes in a sandbox";
const VOLUME_FILES: &str =
    "belljar volume cp VOLUME:PATH - writes a file or a directory of a volume to standard output";
const FORK: &str = "leave it out: a fork is as its sandbox is; belljar sandbox set changes the limits of a running sandbox, and its labels";

const BUILD: &str =
    "belljar image build -t NAME DIR builds a Dockerfile, belljar template build FILE a template's file";

const TEMPLATE_FILE: &str = "belljar template build FILE builds one from a file that you write, with name, base and steps; belljar template build --help says more";

const FROM: &str = "--template NAME starts from a snapshot or another template; belljar sandbox fork SANDBOX copies a sandbox";
const SANDBOX_NET: &str = "belljar sandbox net SANDBOX get shows the network policy of a sandbox, and belljar sandbox net SANDBOX --help what changes it";
const REVOKE: &str = "belljar key revoke KEY revokes a key";
const SETTINGS: &str = "belljar config example prints a file with every setting and its default";

const LOGIN: &str = "belljar image login REGISTRY stores an account at a registry; the server of this user's home needs no login, another one \
                     takes --server URL and --api-key KEY";

const NO_LOGIN: &str = "there is no login: the server of this user's home needs no key; for another one give --server URL and --api-key \
                        KEY, or set BELLJAR_API_URL and BELLJAR_API_KEY; belljar key create makes a key";

/// Advice for arguments that do not exist, by their command. An empty argument stands for one that is not a flag.
const ARGUMENTS: &[(&str, &str, &str)] = &[
    ("run", "-v", MOUNT),
    ("run", "--volume", MOUNT),
    ("run", "-i", TERMINAL),
    ("run", "-t", TERMINAL),
    ("run", "--interactive", TERMINAL),
    ("run", "--tty", TERMINAL),
    ("run", "--rm", "leave it out: belljar run always removes its sandbox"),
    (
        "run",
        "-m",
        "--memory SIZE limits the memory; a module of Python is run with -l sh -c 'python3 -m MODULE'",
    ),
    ("run", "-w", DIRECTORY),
    ("run", "--workdir", DIRECTORY),
    ("run", "--cwd", DIRECTORY),
    ("run", "--python", LANGUAGE),
    ("run", "--node", LANGUAGE),
    ("run", "--network", NETWORK),
    ("run", "--machine", ROOT),
    ("run", "-u", ROOT),
    ("run", "--user", ROOT),
    ("run", "--privileged", ROOT),
    ("run", "--gpus", NO_GPU),
    ("shell", "--image", SHELL_OF),
    ("shell", "--template", SHELL_OF),
    ("shell", "-i", LEAVE_OUT),
    ("shell", "-t", LEAVE_OUT),
    ("shell", "--rm", LEAVE_OUT),
    ("shell", "-c", SHELL_COMMAND),
    ("shell", "-l", SHELL_COMMAND),
    ("shell", "", SHELL_COMMAND),
    ("shell", "-u", ROOT),
    ("shell", "--user", ROOT),
    ("shell", "--privileged", ROOT),
    ("shell", "--gpus", NO_GPU),
    ("shell", "-v", MOUNT),
    ("shell", "--volume", MOUNT),
    ("shell", "--network", NETWORK),
    ("code", "--with", "--preset pip allows the package index; %pip install PACKAGE in a cell installs one"),
    ("code", "-c", "belljar run --rich -c CODE runs one piece of code and shows its results"),
    ("code", "--gpus", NO_GPU),
    ("code", "--network", NETWORK),
    ("sandbox create", "-v", VOLUME),
    (
        "sandbox create",
        "--rm",
        "leave it out: a sandbox is removed at its --timeout, or by belljar sandbox kill",
    ),
    ("sandbox create", "-i", CREATED),
    ("sandbox create", "-t", CREATED),
    ("sandbox create", "--interactive", CREATED),
    ("sandbox create", "--tty", CREATED),
    ("sandbox create", "-d", "leave it out: belljar sandbox create returns when the sandbox runs"),
    ("sandbox create", "--detach", "leave it out: belljar sandbox create returns when the sandbox runs"),
    ("sandbox create", "", "--image IMAGE names an image, --template NAME a template of the server"),
    ("sandbox create", "-p", SANDBOX_PORTS),
    ("sandbox create", "--publish", SANDBOX_PORTS),
    (
        "sandbox create",
        "--privileged",
        "--machine with --image IMAGE makes a machine, with a root user and services",
    ),
    ("sandbox create", "--gpus", NO_GPU),
    ("sandbox create", "--network", NETWORK),
    ("sandbox net", "", SANDBOX_NET),
    ("sandbox set", "--name", RENAME),
    ("sandbox fork", "--name", FORK),
    ("sandbox fork", "-e", FORK),
    ("sandbox fork", "--env", FORK),
    ("sandbox fork", "--memory", FORK),
    ("sandbox create", "--from", FROM),
    ("sandbox create", "--snapshot", FROM),
    ("sandbox port", "--rm", "--remove unpublishes a port"),
    ("sandbox kill", "-a", "--all ends all sandboxes"),
    (
        "volume ls",
        "",
        "belljar volume info VOLUME shows a volume, belljar volume cp VOLUME:PATH DIR copies files out of one",
    ),
    ("volume rm", "-f", "leave it out: a volume that a sandbox mounts is not removed; end the sandbox first"),
    ("key create", "--memory", "--max-memory SIZE limits the memory of its sandboxes together"),
    ("top", "--once", "-n 1 looks once"),
    ("doctor", "--engine", "belljar engine info ENGINE examines one engine"),
    (
        "backup",
        "--server",
        "belljar backup reads the home of a server on this machine: --home DIR names another one",
    ),
    ("serve", "", END_SERVER),
    ("key create", "", "--name NAME names the key"),
    ("console", "--open", "open the printed link in a browser; it signs in once"),
    ("serve", "-p", LISTEN),
    ("serve", "--port", LISTEN),
    ("serve", "--host", LISTEN),
    ("serve", "--bind", LISTEN),
    ("image login", "-p", PASSWORD),
    ("image login", "--password", PASSWORD),
    ("image pull", "--platform", "leave it out: images are those for the server's machine"),
    ("template build", "-t", "leave it out: the file has the template's name"),
    ("template build", "--tag", "leave it out: the file has the template's name"),
    ("run", "--cpu", "--cpus NUMBER limits the processors"),
    ("run", "-d", BACKGROUND),
    ("run", "--detach", BACKGROUND),
    ("run", "--name", BACKGROUND),
    ("run", "-p", PORTS),
    ("run", "--publish", PORTS),
    ("sandbox exec", "-w", "--cwd DIR sets the directory"),
    ("sandbox exec", "--workdir", "--cwd DIR sets the directory"),
    ("sandbox shell", "-i", LEAVE_OUT),
    ("sandbox shell", "-t", LEAVE_OUT),
    ("sandbox exec", "-i", EXEC),
    ("sandbox exec", "-t", EXEC),
    ("sandbox exec", "--interactive", EXEC),
    ("sandbox exec", "--tty", EXEC),
    (
        "secret create",
        "",
        "the value is no argument, because other users could see it; write it to standard input, or give --env VARIABLE or --file PATH",
    ),
    (
        "secret set",
        "",
        "the value is no argument; write it to standard input, or give --env VARIABLE or --file PATH",
    ),
    (
        "code",
        "",
        "belljar run --rich FILE runs a file and shows its results and pictures, belljar run FILE runs it as a program",
    ),
];

const DIRECTORY: &str =
    "code runs in its home directory; -f SRC:DEST puts files there, and cd in a script changes the directory";
const ROOT: &str = "code has no root rights; belljar sandbox create --machine --image debian:12 makes a sandbox that has a root user, and belljar sandbox exec -u root \
                    runs a command as root there";
const NO_GPU: &str = "sandboxes have no GPU; leave it out";
const SHELL_OF: &str = "belljar sandbox create makes a sandbox of an image (--image) or a template (--template), belljar sandbox shell SANDBOX opens \
                        a terminal in it";
const LEAVE_OUT: &str = "leave it out: this command always opens a terminal";
const SHELL_COMMAND: &str = "belljar shell -- CMD runs a command on the terminal, as in belljar shell -- python3, or -- bash -c 'COMMANDS'";
const VOLUME: &str = "--volume NAME:DST mounts a volume of the server, --mount SRC:DST shows a directory of its machine inside";
const CREATED: &str = "leave it out: belljar sandbox shell SANDBOX opens a terminal in a sandbox";
const SANDBOX_PORTS: &str = "belljar sandbox port SANDBOX PORT publishes a port of a sandbox, belljar sandbox port-forward brings it to this machine";
const LISTEN: &str = "--listen ADDRESS:PORT sets the address, as in --listen 127.0.0.1:8787";
const LANGUAGE: &str = "-l LANGUAGE names the language, as in belljar run -l python -c CODE; belljar run SCRIPT finds it by the extension";
const NETWORK: &str = "--net MODE sets the network: disabled (the default, as Docker's none), whitelist or open; --allow HOST allows one host";
const MOUNT: &str = "--mount SRC:DST[:rw] shows a directory of this machine inside; belljar sandbox create --volume mounts a volume of a \
                     server";
const TERMINAL: &str = "leave it out: belljar run passes standard input on; belljar shell opens a terminal";
const PASSWORD: &str = "a password is no argument, because other users could see it; write it to standard input with --password-stdin";
const BACKGROUND: &str = "belljar sandbox create makes a sandbox that stays, belljar sandbox exec -d runs a command in its background";
const PORTS: &str =
    "belljar sandbox create makes a sandbox that stays, belljar sandbox port publishes a port of it";
const EXEC: &str = "leave it out: belljar sandbox exec passes standard input on; belljar sandbox shell SANDBOX COMMAND runs it in a terminal";

/// Rewrites `help COMMAND` to `COMMAND --help`, also within a group of commands.
pub(crate) fn help_as_flag(mut words: Vec<OsString>, command: impl FnOnce() -> Command) -> Vec<OsString> {
    let is_help = |word: Option<&OsString>| word.is_some_and(|word| word == "help");
    let at = if is_help(words.get(1)) {
        1
    } else if is_help(words.get(2)) && group(&command(), &words).is_some() {
        2
    } else {
        return words;
    };
    words.remove(at);
    words.push("--help".into());
    words
}

/// Returns the group of commands that a command line names.
fn group<'a>(command: &'a Command, words: &[OsString]) -> Option<&'a Command> {
    command.find_subcommand(words.get(1)?).filter(|command| command.has_subcommands())
}

/// Returns the innermost group of commands that a command line names, and its words, such as `sandbox process`.
fn innermost<'a>(command: &'a Command, words: &[OsString]) -> (&'a Command, String) {
    let (mut group, mut names) = (command, Vec::new());
    for word in words.iter().skip(1) {
        match group.find_subcommand(word).filter(|below| below.has_subcommands()) {
            Some(below) => group = below,
            None => break,
        }
        names.push(group.get_name());
    }
    (group, names.join(" "))
}

/// Adds advice to an error of the parser.
pub(crate) fn advise(mut error: clap::Error, words: &[OsString], command: &Command) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let advice = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            text(ContextKind::InvalidSubcommand).and_then(|word| for_command(&word, words, command))
        }
        ErrorKind::UnknownArgument => {
            text(ContextKind::InvalidArg).and_then(|argument| for_argument(&argument, words, command))
        }
        _ => None,
    };
    // A program's option before its script is no value of an argument, as the parser's own advice takes it to be.
    let is_run = words.get(1).is_some_and(|word| word == "run");
    let advice = advice.or_else(|| {
        let short = text(ContextKind::InvalidArg).filter(|flag| flag.starts_with('-') && !flag.starts_with("--"))?;
        (is_run && error.kind() == ErrorKind::UnknownArgument).then(|| {
            format!("belljar run --help lists the options; {short} for the program goes after its script: belljar run SCRIPT {short}")
        })
    });
    if let Some(advice) = advice {
        error.remove(ContextKind::SuggestedSubcommand);
        // The usage names a suggested argument as well.
        if error.remove(ContextKind::SuggestedArg).is_some() {
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage(command, words)));
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    error
}

/// Returns the usage of the command that these words call.
fn usage(command: &Command, words: &[OsString]) -> StyledStr {
    let mut command = command.clone();
    command.build();
    let mut called = &command;
    for word in words.iter().skip(1) {
        match called.find_subcommand(word) {
            Some(below) => called = below,
            None => break,
        }
    }
    called.clone().render_usage()
}

/// Returns advice for an unknown command: for words of other programs, commands of a group, and misspelt ones.
fn for_command(word: &str, words: &[OsString], command: &Command) -> Option<String> {
    let (group, name) = innermost(command, words);
    if let Some((.., advice)) = COMMANDS.iter().find(|(of, other, _)| *of == name && *other == word) {
        return Some((*advice).to_owned());
    }
    if name.is_empty() && (word.contains(['.', '/']) || Path::new(word).is_file()) {
        return Some(format!("belljar run {} runs a script", shell_quote(word)));
    }
    let place = if name.is_empty() { "belljar".to_owned() } else { format!("belljar {name}") };
    let known = group.get_subcommands();
    if name.is_empty() {
        let has_it = |group: &&Command| group.find_subcommand(word).is_some();
        let found: Vec<_> = command
            .get_subcommands()
            .filter(has_it)
            .map(|group| format!("belljar {} {word}", group.get_name()))
            .collect();
        if !found.is_empty() {
            return Some(format!("did you mean {}?", found.join(", ")));
        }
    }
    nearest(word, known.map(Command::get_name)).map(|near| format!("did you mean {place} {near}?"))
}

fn for_argument(argument: &str, words: &[OsString], command: &Command) -> Option<String> {
    let mut place = words.get(1)?.to_str()?.to_owned();
    if group(command, words).is_some() {
        place = format!("{place} {}", words.get(2)?.to_str()?);
    }
    let argument = if argument.starts_with('-') { argument } else { "" };
    let found = ARGUMENTS.iter().find(|(of, other, _)| *of == place && *other == argument);
    found.map(|(.., advice)| (*advice).to_owned())
}
