//! Isolation layers of a launch, as reported.

use belljar_linux::{CgroupLayout, LaunchPlan, Wall, seccomp};
use belljar_model::{HOST_TREE, Isolation, LayerState, Layers, LimitsGrade, SandboxSpec, Tree, WATCHED};

use crate::LocalKind;

/// Namespaces that a test can disable one by one.
pub(crate) const NAMESPACE_WALLS: &[(Wall, u64)] = &[
    (Wall::Network, 0x4000_0000),
    (Wall::Ipc, 0x0800_0000),
    (Wall::Uts, 0x0400_0000),
    (Wall::CgroupNamespace, 0x0200_0000),
];

/// Returns the isolation in force for a sandbox that was launched by `plan`.
pub(crate) fn isolation(
    plan: &LaunchPlan,
    kind: LocalKind,
    spec: &SandboxSpec,
    watched: bool,
    layout: &CgroupLayout,
) -> Isolation {
    let mut layers = Layers::default();
    let if_in_force = |condition: bool| if condition { LayerState::InForce } else { LayerState::Absent };
    let has_namespaces = plan.namespaces.is_some();
    let namespaces =
        if has_namespaces { "user, mount, pid, network, ipc, uts, cgroup, time" } else { "the host's own" };
    layers.add("namespaces", if_in_force(has_namespaces), namespaces);
    let identity = &plan.identity;
    let user = match (plan.uid_lease.is_some(), identity.count) {
        (true, 1) => format!("uid {} outside, used by no other sandbox", identity.outside_uid),
        (true, count) => format!(
            "uids {} to {} outside, used by no other sandbox; root inside is the first",
            identity.outside_uid,
            identity.outside_uid + (count - 1)
        ),
        (false, _) => format!("uid {} outside, the caller's own", identity.outside_uid),
    };
    layers.add("user", if_in_force(plan.uid_lease.is_some() || has_namespaces), user);
    let is_own = spec.tree.is_own();
    let (state, name, tree) = match kind {
        LocalKind::Local if spec.tree == Tree::Bare => {
            (LayerState::InForce, "bare", "bare: a root of its own without any program")
        }
        LocalKind::Local if spec.machine => (
            if is_own { LayerState::InForce } else { LayerState::Weaker },
            "machine",
            "machine: a root from a file system of its own, with what changes on a disk of its own on top",
        ),
        LocalKind::Local if is_own => (
            LayerState::InForce,
            "template",
            "template: a root from a file system of its own, whose page cache only its owner's sandboxes share",
        ),
        LocalKind::Local => (LayerState::Weaker, "host", HOST_TREE),
        LocalKind::Process => {
            (LayerState::Absent, "none", "the host's own root; Landlock decides what of it can be read")
        }
        LocalKind::None => (LayerState::Absent, "none", "the host's own root"),
    };
    layers.add("tree", state, tree);
    match kind {
        LocalKind::Local => layers.add_network("a network namespace", &spec.network),
        LocalKind::Process => layers.add(
            "network",
            LayerState::InForce,
            "disabled: no sockets but connected pairs, by seccomp and Landlock",
        ),
        LocalKind::None => layers.add("network", LayerState::Absent, "the host's own"),
    }
    match plan.seccomp {
        Some(profile) => layers.add_filter(seccomp::program(profile).len(), ""),
        None => layers.add("seccomp", LayerState::Absent, "no filter"),
    }
    match kind {
        LocalKind::None => layers.add("landlock", LayerState::Absent, "none"),
        _ => layers.add("landlock", LayerState::InForce, format!("ABI {}", belljar_linux::landlock_abi())),
    }
    match (&plan.machine, plan.drop_privileges) {
        (Some(machine), _) => layers.add(
            "capabilities",
            LayerState::Weaker,
            format!(
                "root has {} within the sandbox, the user none; programs may gain root's by set-user-ID files",
                machine.capabilities.count_ones()
            ),
        ),
        (None, true) => layers.add("capabilities", LayerState::InForce, "none, and no new privileges"),
        (None, false) => layers.add("capabilities", LayerState::Absent, "the caller's own"),
    }
    let limits = &spec.limits;
    let (state, by) = match (plan.cgroups.is_empty(), watched) {
        (false, _) => (LayerState::InForce, format!("control groups {}", layout.describe())),
        (true, true) => (LayerState::Weaker, WATCHED.to_owned()),
        (true, false) => (LayerState::Absent, String::new()),
    };
    let all: [(_, &dyn std::fmt::Display, _); 3] = [
        ("memory", &limits.memory, state != LayerState::Absent),
        ("pids", &limits.pids, state != LayerState::Absent),
        // The guest does not watch it.
        ("cpu", &limits.cpus, state == LayerState::InForce),
    ];
    for (name, limit, is_enforced) in all {
        match is_enforced {
            true => layers.add_limit(name, state, limit, &by),
            false => layers.add_no_limit(name),
        }
    }
    match kind {
        LocalKind::Local if spec.disk.is_some() => {
            let disk = format!("{} and {} inodes, on a disk of its own", limits.disk, limits.inodes);
            layers.add("disk", LayerState::InForce, disk);
        }
        LocalKind::Local => layers.add_memory_disk(limits),
        LocalKind::Process => {
            layers.add("disk", LayerState::Weaker, format!("each file at most {}", limits.disk));
        }
        LocalKind::None => layers.add_no_limit("disk"),
    }
    let grade = if watched { LimitsGrade::Watched } else { spec.grade };
    layers.isolation(kind.name(), grade, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_bits_match_the_kernel() {
        let all = NAMESPACE_WALLS.iter().fold(0, |all, (_, bit)| all | bit);
        assert_eq!(all & !belljar_linux::NAMESPACES, 0);
        assert_eq!(all.count_ones(), 4);
    }
}
