//! Isolation layers of a sandbox, as reported.

use belljar_linux::seccomp;
use belljar_model::LayerState::{InForce, Weaker};
use belljar_model::{Isolation, Layers, LimitsGrade, WATCHED};

use crate::container::Container;
use crate::daemon::DOCKER;

/// Returns the isolation in force for a container.
pub(crate) fn isolation(container: &Container<'_>, is_direct: bool) -> Isolation {
    let Container { spec, image, facts, user, runtime, .. } = *container;
    let mut layers = Layers::default();
    let runtime =
        runtime.map_or_else(|| "the default runtime".to_owned(), |name| format!("the runtime {name}"));
    let own_user = if facts.has_user_namespace { ", user" } else { "" };
    let namespaces =
        format!("mount, pid, network, ipc, uts, cgroup{own_user}, by {} with {runtime}", facts.name);
    layers.add("namespaces", InForce, namespaces);
    let user = match facts.has_user_namespace {
        true => format!("uid {user} inside, mapped by the daemon"),
        false => format!("uid {user}, chosen at random, without a user namespace"),
    };
    layers.add("user", InForce, user);
    layers.add("tree", InForce, format!("the image {}, read-only", image.name));
    layers.add_network("a network namespace", &spec.network);
    let is_watched = spec.grade == LimitsGrade::Watched;
    let profile = if is_watched { seccomp::Profile::Watched } else { seccomp::Profile::Default };
    let filter = ", installed by the guest within the daemon's own filter";
    layers.add_filter(seccomp::program(profile).len(), filter);
    layers.add("landlock", InForce, "entered by the guest for user code");
    layers.add("capabilities", InForce, "none, and no new privileges");
    let by = match (is_watched, facts.cgroups) {
        (false, Some(version)) => format!("control groups {version} of {}", facts.name),
        _ => WATCHED.to_owned(),
    };
    let (limits, state) = (&spec.limits, if is_watched { Weaker } else { InForce });
    match facts.limits_swap || is_watched {
        true => layers.add_limit("memory", state, &limits.memory, &by),
        false => {
            layers.add_limit("memory", Weaker, &limits.memory, &format!("{by}, which do not limit swap"));
        }
    }
    let remark = if is_direct { "" } else { ", with a few more for connections through the daemon" };
    layers.add_limit("pids", state, &limits.pids, &format!("{by}{remark}"));
    match is_watched {
        true => layers.add_no_limit("cpu"),
        false => layers.add_limit("cpu", state, &limits.cpus, &by),
    }
    layers.add_memory_disk(limits);
    layers.isolation(DOCKER, spec.grade, "image")
}
