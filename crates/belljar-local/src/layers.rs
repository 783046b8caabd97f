//! Isolation layers of a launch, as reported.

use belljar_linux::{CgroupLayout, LaunchPlan, Wall, seccomp};
use belljar_model::{Isolation, LIMITED_BY, Layer, LayerState, LimitsGrade, SandboxSpec, Tree, TreeBase};

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
    let mut layers = Vec::new();
    let mut add = |name: &str, state: LayerState, detail: String| {
        layers.push(Layer { name: name.to_owned(), state, detail });
    };
    let if_in_force = |condition: bool| if condition { LayerState::InForce } else { LayerState::Absent };
    let has_namespaces = plan.namespaces.is_some();
    add(
        "namespaces",
        if_in_force(has_namespaces),
        if has_namespaces { "user, mount, pid, network, ipc, uts, cgroup, time" } else { "the host's own" }
            .to_owned(),
    );
    add(
        "user",
        match (plan.uid_lease.is_some(), has_namespaces) {
            (true, _) => LayerState::InForce,
            (false, true) => LayerState::InForce,
            (false, false) => LayerState::Absent,
        },
        if plan.uid_lease.is_some() {
            match plan.identity.count {
                1 => format!("uid {} outside, used by no other sandbox", plan.identity.outside_uid),
                count => format!(
                    "uids {} to {} outside, used by no other sandbox; root inside is the first",
                    plan.identity.outside_uid,
                    plan.identity.outside_uid + (count - 1)
                ),
            }
        } else {
            format!("uid {} outside, the caller's own", plan.identity.outside_uid)
        },
    );
    let is_own = match &spec.tree {
        Tree::Host | Tree::Image(_) => false,
        Tree::Template(tree) => tree.base == TreeBase::Own,
        Tree::Bare => true,
    };
    add(
        "tree",
        match kind {
            LocalKind::Local if is_own => LayerState::InForce,
            LocalKind::Local => LayerState::Weaker,
            _ => LayerState::Absent,
        },
        match kind {
            LocalKind::Local if spec.tree == Tree::Bare => "bare: a root of its own without any program",
            LocalKind::Local if spec.machine => {
                "machine: a root from a file system of its own, with what changes on a disk of its own on top"
            }
            LocalKind::Local if is_own => {
                "template: a root from a file system of its own, whose page cache only its owner's sandboxes share"
            }
            LocalKind::Local => {
                "host: a root of its own with the host's /usr read-only, whose page cache it shares"
            }
            LocalKind::Process => "the host's own root; Landlock decides what of it can be read",
            _ => "the host's own root",
        }
        .to_owned(),
    );
    add(
        "network",
        if_in_force(kind != LocalKind::None),
        match kind {
            LocalKind::Local if plan.gateway.is_some() => {
                "a network namespace with loopback only, whose connections end at a gateway that applies the policy"
            }
            LocalKind::Local => "disabled: a network namespace with loopback only",
            LocalKind::Process => "disabled: no sockets but connected pairs, by seccomp and Landlock",
            _ => "the host's own",
        }
        .to_owned(),
    );
    add(
        "seccomp",
        if_in_force(plan.seccomp.is_some()),
        plan.seccomp.map_or_else(
            || "no filter".to_owned(),
            |profile| format!("allow-list, {} instructions", seccomp::program(profile).len()),
        ),
    );
    let abi = belljar_linux::landlock_abi();
    add(
        "landlock",
        if_in_force(kind != LocalKind::None),
        if kind == LocalKind::None { "none".to_owned() } else { format!("ABI {abi}") },
    );
    add(
        "capabilities",
        match (&plan.machine, plan.drop_privileges) {
            (Some(_), _) => LayerState::Weaker,
            (None, dropped) => if_in_force(dropped),
        },
        match (&plan.machine, plan.drop_privileges) {
            (Some(machine), _) => format!(
                "root has {} within the sandbox, the user none; programs may gain root's by set-user-ID files",
                machine.capabilities.count_ones()
            ),
            (None, true) => "none, and no new privileges".to_owned(),
            (None, false) => "the caller's own".to_owned(),
        },
    );
    limits(&mut add, plan, (kind, spec), watched, layout);
    let grade = if watched { LimitsGrade::Watched } else { spec.grade };
    let tree = match kind {
        LocalKind::Local if spec.tree == Tree::Bare => "bare",
        LocalKind::Local if spec.machine => "machine",
        LocalKind::Local if is_own => "template",
        LocalKind::Local => "host",
        _ => "none",
    };
    Isolation { engine: kind.name(), grade, tree: tree.to_owned(), layers }
}

fn limits(
    add: &mut impl FnMut(&str, LayerState, String),
    plan: &LaunchPlan,
    (kind, spec): (LocalKind, &SandboxSpec),
    watched: bool,
    layout: &CgroupLayout,
) {
    let enforced = !plan.cgroups.is_empty();
    let state = match (enforced, watched) {
        (true, _) => LayerState::InForce,
        (false, true) => LayerState::Weaker,
        (false, false) => LayerState::Absent,
    };
    let by = match (enforced, watched) {
        (true, _) => format!("control groups {}", layout.describe()),
        (false, true) => "watched by the guest".to_owned(),
        (false, false) => "not limited".to_owned(),
    };
    let limits = &spec.limits;
    let limited = |limit: &dyn std::fmt::Display| {
        if state == LayerState::Absent { by.clone() } else { format!("{limit}{LIMITED_BY}{by}") }
    };
    add("memory", state, limited(&limits.memory));
    add("pids", state, limited(&limits.pids));
    let cpu_state = if enforced { LayerState::InForce } else { LayerState::Absent };
    add(
        "cpu",
        cpu_state,
        if enforced { format!("{}{LIMITED_BY}{by}", limits.cpus) } else { "not limited".to_owned() },
    );
    let disk = match kind {
        LocalKind::Local => (
            LayerState::InForce,
            format!("{} and {} inodes, in memory: files count as memory", limits.disk, limits.inodes),
        ),
        LocalKind::Process => (LayerState::Weaker, format!("each file at most {}", limits.disk)),
        _ => (LayerState::Absent, "not limited".to_owned()),
    };
    add("disk", disk.0, disk.1);
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
