//! Isolation layers of a sandbox, as reported.

use belljar_linux::seccomp;
use belljar_model::{Isolation, LIMITED_BY, Layer, LayerState, LimitsGrade};

use crate::container::Container;
use crate::daemon::DOCKER;

/// Returns the isolation in force for a container.
pub(crate) fn isolation(container: &Container<'_>, is_direct: bool) -> Isolation {
    let Container { spec, image, facts, user, runtime, .. } = *container;
    let mut layers = Vec::new();
    let mut add = |name: &str, state: LayerState, detail: String| {
        layers.push(Layer { name: name.to_owned(), state, detail });
    };
    let in_force = LayerState::InForce;
    let runtime =
        runtime.map_or_else(|| "the default runtime".to_owned(), |name| format!("the runtime {name}"));
    let own_user = if facts.has_user_namespace { ", user" } else { "" };
    add(
        "namespaces",
        in_force,
        format!("mount, pid, network, ipc, uts, cgroup{own_user}, by {} with {runtime}", facts.name),
    );
    add(
        "user",
        in_force,
        match facts.has_user_namespace {
            true => format!("uid {user} inside, mapped by the daemon"),
            false => format!("uid {user}, chosen at random, without a user namespace"),
        },
    );
    add("tree", in_force, format!("the image {}, read-only", image.name));
    add("network", in_force, "disabled: a network namespace with loopback only".to_owned());
    let is_watched = spec.grade == LimitsGrade::Watched;
    let profile = if is_watched { seccomp::Profile::Watched } else { seccomp::Profile::Default };
    let instructions = seccomp::program(profile).len();
    add(
        "seccomp",
        in_force,
        format!(
            "allow-list, {instructions} instructions, installed by the guest within the daemon's own filter"
        ),
    );
    add("landlock", in_force, "entered by the guest for user code".to_owned());
    add("capabilities", in_force, "none, and no new privileges".to_owned());
    let by = match (is_watched, facts.cgroups) {
        (false, Some(version)) => format!("control groups {version} of {}", facts.name),
        _ => "watched by the guest".to_owned(),
    };
    let limits = &spec.limits;
    let mut limited = |name: &str, limit: &dyn std::fmt::Display, state: LayerState, remark: &str| {
        add(name, state, format!("{limit}{LIMITED_BY}{by}{remark}"));
    };
    let state = if is_watched { LayerState::Weaker } else { in_force };
    match facts.limits_swap || is_watched {
        true => limited("memory", &limits.memory, state, ""),
        false => limited("memory", &limits.memory, LayerState::Weaker, ", which do not limit swap"),
    }
    let remark = if is_direct { "" } else { ", with a few more for connections through the daemon" };
    limited("pids", &limits.pids, state, remark);
    match is_watched {
        true => add("cpu", LayerState::Absent, "not limited".to_owned()),
        false => limited("cpu", &limits.cpus, state, ""),
    }
    let disk = format!("{} and {} inodes, in memory: files count as memory", limits.disk, limits.inodes);
    add("disk", in_force, disk);
    Isolation { engine: DOCKER, grade: spec.grade, tree: "image".to_owned(), layers }
}
