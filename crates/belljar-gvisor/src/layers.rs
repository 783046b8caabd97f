//! Isolation layers of a sandbox, as reported.

use belljar_linux::{CgroupLayout, seccomp};
use belljar_model::LayerState::{Absent, InForce, Weaker};
use belljar_model::{HOST_TREE, Isolation, Layers, NetworkMode, SandboxSpec};

use crate::bundle::SENTRY_BYTES;
use crate::runsc::{GVISOR, Runsc};

/// Returns the isolation in force for a sandbox.
pub(crate) fn isolation(spec: &SandboxSpec, runsc: &Runsc, layout: &CgroupLayout) -> Isolation {
    let mut layers = Layers::default();
    let (limits, groups, room) = (&spec.limits, layout.describe(), SENTRY_BYTES >> 20);
    let kernel = format!(
        "a kernel of its own, gVisor {}, which itself is in mount, pid, network, ipc and uts namespaces",
        runsc.describe()
    );
    layers.add("namespaces", InForce, kernel);
    let user = "uid 1000 of that kernel, which is none of this machine; the guest is its root";
    layers.add("user", InForce, user);
    layers.add("tree", Weaker, HOST_TREE);
    let has = match spec.network.mode() {
        NetworkMode::Disabled => "a network stack of that kernel",
        _ => "a network namespace, which that kernel uses,",
    };
    layers.add_network(has, &spec.network);
    layers.add_filter(
        seccomp::program(seccomp::Profile::Default).len(),
        ", installed by the guest; that kernel makes its own calls behind gVisor's filter",
    );
    let instead =
        "that kernel has none: the ids of the guest, and mounts without anything else, stand in for it";
    layers.add("landlock", Absent, instead);
    let capabilities = "none for user code, and no new privileges; the guest has three of that kernel's";
    layers.add("capabilities", InForce, capabilities);
    let watch = format!(
        "the guest, which watches it; control groups {groups} end the sandbox at {room} MiB more, with gVisor's own"
    );
    layers.add_limit("memory", Weaker, &limits.memory, &watch);
    let kernel = "that kernel, which does not count what it refuses (RLIMIT_NPROC)";
    layers.add_limit("pids", Weaker, &limits.pids, kernel);
    layers.add_limit("cpu", InForce, &limits.cpus, &format!("control groups {groups}, with gVisor's own"));
    let disk = "in memory: files count as memory; the number of files has no limit of its own";
    layers.add("disk", Weaker, format!("{} {disk}", limits.disk));
    layers.isolation(GVISOR, spec.grade, "host")
}
