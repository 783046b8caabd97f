//! Properties of every parser that must hold for any input.
//!
//! Each check is a plain function of bytes that panics if a property does not hold. It is written once and used twice:
//! by the fuzz target of the same name in `fuzz/`, and by a property test in `tests/properties.rs`. `docs/fuzzing.md` lists the
//! checks and their results.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a check is a test: it panics if a property does not hold"
)]

mod answers;
mod archive;
mod cli;
mod data;
mod e2b;
mod hop;
mod hostile;
mod kernel;
mod language;
mod messages;
mod mounts;
mod network;
mod result;
mod run;
mod screen;
mod seccomp;
mod spec;
mod stream;
mod template;
mod tools;
mod values;

// Files of the program `belljar`, which is not a library: included as they are, so that its parsers need not be public.
#[allow(dead_code, reason = "only the parsers are called")]
#[path = "../../belljar/src/copy_out.rs"]
mod copy_out;
#[allow(dead_code, reason = "only the parsers are called")]
#[path = "../../belljar/src/files.rs"]
mod files;
#[allow(dead_code, reason = "only the parsers are called")]
#[path = "../../belljar/src/input.rs"]
mod input;
#[allow(dead_code, reason = "only the parsers are called")]
#[path = "../../belljar/src/message.rs"]
mod message;
#[allow(dead_code, reason = "only the parsers are called")]
#[path = "../../belljar/src/policy.rs"]
mod policy;

/// Declares every check, under the name of its fuzz target.
macro_rules! targets {
    ($($(#[$doc:meta])* $name:ident in $module:ident;)*) => {
        $($(#[$doc])* pub fn $name(data: &[u8]) {
            $module::$name(data);
        })*

        /// Every check, by the name of its fuzz target.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name)),*];
    };
}

targets! {
    /// A specification in TOML.
    spec_toml in spec;
    /// A specification in JSON.
    spec_json in spec;
    /// Stored tools in TOML.
    tool_file in tools;
    /// Code to screen.
    screening in screen;
    /// A query of a rule of screening, and code.
    screening_query in screen;
    /// A patch as Codex models write them, and a file.
    tool_patch in tools;
    /// A size, as text, and every limit that is one.
    size in values;
    /// A timeout, as text.
    timeout in values;
    /// A number of processors, as text.
    cpus in values;
    /// A count, as text: processes, files, open files.
    count in values;
    /// A word: id, host name, engine, network, grade.
    word in values;
    /// A mount, as text.
    mount in values;
    /// An environment variable, as text.
    env in values;
    /// The targets of many mounts, one per line.
    mount_targets in values;
    /// Rules about mounts, and a requested mount.
    mount_policy in mounts;
    /// The text of a policy file.
    policy_file in cli;
    /// A language file.
    language in language;
    /// A command with placeholders, and their values.
    command_template in language;
    /// The name or the first line of a script.
    script in language;
    /// A result in JSON.
    result_json in result;
    /// An event in JSON.
    event_json in result;
    /// The head and the tail of a stream.
    stream_output in stream;
    /// The collected pieces of a stream.
    collector in stream;
    /// The standard error of a program, searched for a hint.
    hint in stream;
    /// The text of a system call policy.
    seccomp_policy in seccomp;
    /// Records of a launch.
    launch_report in kernel;
    /// The mount table and the groups of a process.
    cgroup_tables in kernel;
    /// A number in a file of a control group.
    cgroup_number in kernel;
    /// A line of `/proc/PID/stat`.
    proc_stat in kernel;
    /// A line of `/proc/net/tcp`.
    tcp_table in kernel;
    /// A stream of an interpreter, with marks.
    stream_marks in kernel;
    /// The path in a request to the guest.
    guest_path in kernel;
    /// A tar to unpack, either raw or built entry by entry.
    archive_tar in archive;
    /// A compressed archive or a zip to unpack.
    archive_zip in archive;
    /// A shell pattern and a path.
    glob in archive;
    /// The configuration of a guest.
    guest_config in kernel;
    /// Every message of the protocol.
    message in messages;
    /// A guest that sends raw HTTP/2 frames.
    guest_frames in answers;
    /// A guest that answers one call arbitrarily.
    guest_answer in answers;
    /// A guest that answers all calls of a run arbitrarily.
    guest_run in run;
    /// A guest that sends a file.
    copy_out in cli;
    /// `SRC[:DEST]`, and paths in a sandbox.
    file_pair in cli;
    /// Text to be shown on a terminal.
    terminal_text in cli;
    /// The user database.
    users in cli;
    /// A template file.
    template_file in template;
    /// A Dockerfile.
    dockerfile in template;
    /// The header of an exported template.
    bundle_head in template;
    /// The documents of an OCI image.
    oci_documents in template;
    /// A network policy, and names requested under it.
    network_policy in network;
    /// A secret or a rule for requests, in the form of a flag.
    network_flag in network;
    /// A domain name.
    network_name in network;
    /// A query to the resolver of a sandbox.
    dns_query in network;
    /// The first flight of TLS.
    client_hello in network;
    /// The head of a request in HTTP/1.1.
    request_head in network;
    /// The head of a request that is passed on.
    next_hop in hop;
    /// The path of a request that is checked by rules.
    request_path in hop;
    /// A header's value that may contain a secret.
    redaction in hop;
    /// Frames of Connect, as E2B's clients send them.
    e2b_frames in e2b;
    /// The message of a call to E2B's daemon.
    e2b_call in e2b;
    /// A request to E2B's control plane for a sandbox or a network.
    e2b_sandbox in e2b;
    /// The query of a file's signed address.
    e2b_signature in e2b;
    /// Metadata of a sandbox, and a filter for it.
    e2b_filter in e2b;
    /// An upload of files, with its headers.
    e2b_upload in e2b;
}
