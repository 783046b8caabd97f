//! Examination of what this machine can enforce, what is missing, and how to fix it.

use belljar_engine::{Finding, FindingState, THIS_COMMAND};
use belljar_linux::CgroupLayout;
use belljar_model::LimitsGrade;

use crate::engine::{LocalConfig, LocalEngine};
use crate::failure::{GATEWAY_FIX, NAMESPACE_FIX};
use crate::guest_program::GuestChoice;

/// Command line of a server, which is started anew to give its sandboxes control groups.
const SERVE: &str = "belljar serve";

/// Returns how to fix that no control group can be created: which grade of limits each way gives, and what it costs. The sandboxes of
/// a server are in its group, not in that of a command.
pub(crate) fn cgroup_fix(is_server: bool) -> String {
    let watched = format!(
        "accept the weaker grade watched, in which limits are checked every 20 ms, so that a burst can exceed them, and CPU \
         time is not limited: BELLJAR_LIMITS=watched {THIS_COMMAND}"
    );
    let (it, command) = if is_server { ("the server", SERVE) } else { ("it", THIS_COMMAND) };
    // Directory of the user's service manager, unless configured otherwise (systemd.exec(5)).
    let user = rustix::process::geteuid();
    if user.is_root() {
        return format!(
            "{watched}; or give {it} control groups that can be written, which gives the full grade cgroup: in a container, docker run \
             --privileged --cgroupns=private"
        );
    }
    let manager = format!("/run/user/{}/systemd", user.as_raw());
    if !std::path::Path::new(&manager).is_dir() {
        return format!("{watched}; or run {it} as root, which gives the full grade cgroup");
    }
    format!(
        "start {it} in a control group of its own, which gives the full grade cgroup and costs some milliseconds: \
         systemd-run --user --scope -q -p Delegate=yes {command}; or {watched}"
    )
}

impl LocalEngine {
    /// Checks everything that isolation needs, without changing anything.
    pub(crate) fn examine(config: LocalConfig) -> Vec<Finding> {
        let engine = Self::new(config);
        vec![
            kernel(),
            user(),
            guest(engine.config()),
            namespaces(),
            networks(),
            proc_mount(),
            cgroups(engine.layout()),
            seccomp(),
            landlock(),
            tree(),
            code(),
            templates(),
            volumes(),
        ]
    }

    /// Returns what keeps sandboxes with this grade of limits from being created by a server here.
    pub(crate) fn obstacles(config: LocalConfig, grade: LimitsGrade) -> Vec<Finding> {
        let engine = Self::new(config);
        let mut found =
            vec![kernel(), guest(engine.config()), namespaces(), proc_mount(), seccomp(), landlock()];
        if grade == LimitsGrade::Cgroup {
            let groups = cgroups(engine.layout());
            let fix = groups.fix.as_ref().map(|_| cgroup_fix(true));
            found.push(Finding { fix, ..groups });
        }
        found.retain(|finding| finding.state == FindingState::Missing);
        found
    }
}

/// Directories in which programs are looked for, as volumes and sandboxes do.
const PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// Returns those of the programs that this machine does not have.
fn missing_programs<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let is_there = |name: &&&str| PATH.split(':').any(|dir| std::path::Path::new(dir).join(name).is_file());
    names.iter().filter(|name| !is_there(name)).copied().collect()
}

/// Returns the fix if namespaces cannot be made.
fn namespace_fix() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => {
            "a container may not make them: run it with docker run --privileged --cgroupns=private, or Belljar outside of it"
        }
        false => NAMESPACE_FIX,
    }
}

/// Checks for the interpreters of contexts in the machine's own tree.
fn code() -> Finding {
    const FIX: &str = "apt-get install python3-ipython nodejs; or use a template that has them, such as \
                       belljar template build code-interpreter, and --template code-interpreter";
    let mut python = std::process::Command::new("/usr/bin/python3");
    python.args([
        "-I",
        "-c",
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('IPython') is None)",
    ]);
    python
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let has_ipython = python.status().is_ok_and(|status| status.success());
    let missing: Vec<&str> = (!has_ipython)
        .then_some("IPython in /usr/bin/python3")
        .into_iter()
        .chain(missing_programs(&["node"]))
        .collect();
    if missing.is_empty() {
        return good(
            "code",
            "contexts of Python and JavaScript work in the machine's own tree: belljar code, run --rich",
        );
    }
    let detail =
        format!("without a template, contexts (belljar code, run --rich) lack {}", missing.join(" and "));
    bad("code", FindingState::Weaker, detail, FIX)
}

/// Checks for the programs that build templates.
fn templates() -> Finding {
    if !rustix::process::geteuid().is_root() {
        let fix = "run the server as root: mounting the tree of a template or an image needs it";
        let detail = "only a server of root can build templates and pull images";
        return bad("templates", FindingState::Weaker, detail, fix);
    }
    let missing = missing_programs(&["mmdebstrap", "mksquashfs"]);
    if missing.is_empty() {
        return good("templates", "can be built: mmdebstrap and mksquashfs are installed");
    }
    let detail = format!("cannot all be built: not installed: {}", missing.join(", "));
    bad("templates", FindingState::Weaker, detail, "apt-get install mmdebstrap squashfs-tools")
}

/// Checks for what volumes need.
fn volumes() -> Finding {
    let mut missing = missing_programs(&["mke2fs"]);
    let has_loops = std::path::Path::new("/dev/loop-control").exists();
    missing.extend((!has_loops).then_some("/dev/loop-control"));
    if !rustix::process::geteuid().is_root() {
        let fix = "run the server as root: mounting a volume needs it";
        return bad(
            "volumes",
            FindingState::Weaker,
            "only sandboxes of a server of root can mount them",
            fix,
        );
    }
    if missing.is_empty() {
        return good("volumes", "can be created and mounted: mke2fs and loop devices are there");
    }
    let detail = format!("cannot be used without {}", missing.join(" and "));
    bad("volumes", FindingState::Weaker, detail, "apt-get install e2fsprogs, and modprobe loop")
}

fn good(name: &'static str, detail: impl Into<String>) -> Finding {
    Finding { name, state: FindingState::Good, detail: detail.into(), fix: None }
}

fn bad(name: &'static str, state: FindingState, detail: impl Into<String>, fix: &str) -> Finding {
    Finding { name, state, detail: detail.into(), fix: Some(fix.to_owned()) }
}

/// Oldest kernel with everything that a launch needs: `mount_setattr` came with 5.12, Landlock with 5.13, and counting
/// processes per user namespace with 5.14.
const MIN_KERNEL: (u32, u32) = (5, 14);

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let fix = "use Linux 5.14 or newer, such as that of Debian 12 or Ubuntu 22.04";
    if version >= MIN_KERNEL {
        good("kernel", format!("Linux {release}"))
    } else {
        bad("kernel", FindingState::Missing, format!("Linux {release} is too old"), fix)
    }
}

fn user() -> Finding {
    if rustix::process::geteuid().is_root() {
        good("user", "root: each sandbox gets a user id of its own")
    } else {
        let uid = rustix::process::geteuid().as_raw();
        good("user", format!("uid {uid}: sandboxes run as this user, behind a user namespace"))
    }
}

fn guest(config: &LocalConfig) -> Finding {
    const FIX: &str = "put belljar, belljar-service and belljar-guest of one build into one directory";
    let describe = |path: &std::path::Path| format!("a program of its own, {}", path.display());
    match &config.guest {
        Some(path) => match GuestChoice::at(path).path() {
            Ok(path) => good("guest", describe(path)),
            Err(why) => bad("guest", FindingState::Missing, why, FIX),
        },
        None => match GuestChoice::beside().path() {
            Ok(path) => good("guest", describe(path)),
            Err(why) => bad("guest", FindingState::Weaker, format!("{OWN_GUEST}: {why}"), FIX),
        },
    }
}

/// Description used if there is no separate guest program.
pub(crate) const OWN_GUEST: &str = "this program itself, which takes longer to start";

fn namespaces() -> Finding {
    match belljar_linux::try_user_namespace() {
        Ok(()) => good("namespaces", "user, mount, pid, network, ipc, uts, cgroup and time can be made"),
        Err(errno) => {
            bad("namespaces", FindingState::Missing, format!("they cannot be made: {errno}"), namespace_fix())
        }
    }
}

fn networks() -> Finding {
    match belljar_linux::try_network() {
        Ok(()) => good("networks", "a sandbox can have one, all of which leads to its gateway"),
        Err(errno) => {
            let detail = format!("sandboxes can have none but the mode disabled: {errno}");
            bad("networks", FindingState::Weaker, detail, GATEWAY_FIX)
        }
    }
}

/// Checks `/proc`: the kernel allows a fresh one in a user namespace only if the present one is fully visible.
fn proc_mount() -> Finding {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let covered = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|target| target.starts_with("/proc/") && *target != "/proc/sys/fs/binfmt_misc")
        .count();
    let is_root = rustix::process::geteuid().is_root();
    if covered == 0 {
        good("proc", "wholly visible, so sandboxes can have their own")
    } else {
        let fix =
            "run Belljar outside of the container, or with docker run --security-opt systempaths=unconfined";
        let state = if is_root { FindingState::Weaker } else { FindingState::Missing };
        bad("proc", state, format!("{covered} parts of it are covered, as in a container"), fix)
    }
}

fn cgroups(layout: &CgroupLayout) -> Finding {
    if layout.is_complete() {
        return good("control groups", format!("{}: memory, processors and processes", layout.describe()));
    }
    let reasons: Vec<String> =
        layout.missing.iter().map(|(controller, reason)| format!("{controller}: {reason}")).collect();
    bad("control groups", FindingState::Missing, reasons.join("; "), &cgroup_fix(false))
}

fn seccomp() -> Finding {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    if actions.split_whitespace().any(|action| action == "errno") {
        good("seccomp", "filters are available")
    } else {
        let fix = "use a kernel with CONFIG_SECCOMP_FILTER";
        bad("seccomp", FindingState::Missing, "the kernel has no filters", fix)
    }
}

fn landlock() -> Finding {
    let fix = "use a kernel with CONFIG_SECURITY_LANDLOCK, and \"landlock\" in its lsm= list";
    match belljar_linux::landlock_abi() {
        0 => bad("landlock", FindingState::Missing, "the kernel has none, or it is off", fix),
        abi @ 1..6 => bad(
            "landlock",
            FindingState::Weaker,
            format!("ABI {abi}: signals and abstract sockets are kept in by namespaces only"),
            "use Linux 6.12 or newer for ABI 6; the engine process needs it for an ordinary user",
        ),
        abi => good("landlock", format!("ABI {abi}")),
    }
}

fn tree() -> Finding {
    bad(
        "tree",
        FindingState::Weaker,
        "host: sandboxes read this machine's /usr and share its page cache",
        "this is right for one user on their own machine; do not serve several tenants with it",
    )
}
