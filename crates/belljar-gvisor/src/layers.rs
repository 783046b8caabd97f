//! Isolation layers of a sandbox, as reported.

use belljar_linux::{CgroupLayout, seccomp};
use belljar_model::{Isolation, LIMITED_BY, Layer, LayerState, SandboxSpec};

use crate::bundle::SENTRY_BYTES;
use crate::runsc::{GVISOR, Runsc};

/// Returns the isolation in force for a sandbox.
pub(crate) fn isolation(spec: &SandboxSpec, runsc: &Runsc, layout: &CgroupLayout) -> Isolation {
    let mut layers = Vec::new();
    let mut add = |name: &str, state: LayerState, detail: String| {
        layers.push(Layer { name: name.to_owned(), state, detail });
    };
    let in_force = LayerState::InForce;
    let limits = &spec.limits;
    let groups = layout.describe();
    add(
        "namespaces",
        in_force,
        format!(
            "a kernel of its own, gVisor {}, which itself is in mount, pid, network, ipc and uts namespaces",
            runsc.describe()
        ),
    );
    add(
        "user",
        in_force,
        "uid 1000 of that kernel, which is none of this machine; the guest is its root".to_owned(),
    );
    add(
        "tree",
        LayerState::Weaker,
        "host: a root of its own with the host's /usr read-only, whose page cache it shares".to_owned(),
    );
    add("network", in_force, "disabled: a network stack of that kernel with loopback only".to_owned());
    let instructions = seccomp::program(seccomp::Profile::Default).len();
    add(
        "seccomp",
        in_force,
        format!(
            "allow-list, {instructions} instructions, installed by the guest; that kernel makes its own calls behind gVisor's filter"
        ),
    );
    add(
        "landlock",
        LayerState::Absent,
        "that kernel has none: the ids of the guest, and mounts without anything else, stand in for it"
            .to_owned(),
    );
    add(
        "capabilities",
        in_force,
        "none for user code, and no new privileges; the guest has three of that kernel's".to_owned(),
    );
    let room = SENTRY_BYTES >> 20;
    add(
        "memory",
        LayerState::Weaker,
        format!(
            "{}{LIMITED_BY}the guest, which watches it; control groups {groups} end the sandbox at {room} MiB more, with gVisor's own",
            limits.memory
        ),
    );
    add(
        "pids",
        LayerState::Weaker,
        format!(
            "{}{LIMITED_BY}that kernel, which does not count what it refuses (RLIMIT_NPROC)",
            limits.pids
        ),
    );
    add("cpu", in_force, format!("{}{LIMITED_BY}control groups {groups}, with gVisor's own", limits.cpus));
    add(
        "disk",
        LayerState::Weaker,
        format!(
            "{} in memory: files count as memory; the number of files has no limit of its own",
            limits.disk
        ),
    );
    Isolation { engine: GVISOR, grade: spec.grade, tree: "host".to_owned(), layers }
}
