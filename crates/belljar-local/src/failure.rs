//! Conversion of a failed launch step into a readable error.

use std::io;

use belljar_engine::EngineError;
use belljar_linux::{LaunchPlan, MountSource, Node, Step};

/// Names of the parts of a launch, for the error if one of them fails.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures {
    cgroups: Vec<String>,
    nodes: Vec<String>,
    mounts: Vec<String>,
    masks: Vec<String>,
}

impl Failures {
    pub(crate) fn from_plan(plan: &LaunchPlan) -> Self {
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let mut failures =
            Self { cgroups: plan.cgroups.iter().map(|group| text(&group.dir)).collect(), ..Self::default() };
        if let Some(tree) = &plan.namespaces {
            failures.nodes = tree
                .nodes
                .iter()
                .map(|node| match node {
                    Node::Dir { path, .. } | Node::Symlink { path, .. } | Node::File { path, .. } => {
                        text(path)
                    }
                })
                .collect();
            failures.mounts = tree
                .mounts
                .iter()
                .map(|step| {
                    let source = match &step.source {
                        MountSource::Path(path) | MountSource::Checked { path, .. } => text(path),
                        MountSource::Detached(_) => "a directory of the host".to_owned(),
                        MountSource::Volume { .. } => "the volume".to_owned(),
                        MountSource::Own(path) => text(path),
                        MountSource::New { kind, .. } => text(kind),
                    };
                    format!("{source} on /{}", text(&step.target))
                })
                .collect();
            let files = tree.proc_files.iter().map(|file| &file.name);
            failures.masks = tree.proc_masks.iter().chain(files).map(|name| text(name)).collect();
        }
        failures
    }

    pub(crate) fn explain(&self, step: Step, item: u32, source: io::Error) -> EngineError {
        let item = |list: &[String]| {
            usize::try_from(item)
                .ok()
                .and_then(|index| list.get(index))
                .cloned()
                .unwrap_or_else(|| "?".to_owned())
        };
        let layer = |layer: &'static str, fix: &str| EngineError::Layer {
            layer: layer.into(),
            reason: source.to_string(),
            fix: fix.to_owned(),
        };
        let what = match step {
            Step::CgroupMake => format!("make the control group {}", item(&self.cgroups)),
            Step::CgroupSet => format!("write the limits of the control group {}", item(&self.cgroups)),
            Step::CgroupJoin => format!("join the control group {}", item(&self.cgroups)),
            Step::Clone => return layer("namespaces", NAMESPACE_FIX),
            Step::IdMap => return layer("the user namespace's id map", NAMESPACE_FIX),
            Step::SetIds => "take on the sandbox's user id".to_owned(),
            Step::ParentDeath => "tie the sandbox to its supervisor".to_owned(),
            Step::Keyring => {
                return layer("a keyring of its own", "use a kernel whose keyctl works in this environment");
            }
            Step::Hostname => "set the sandbox's host name".to_owned(),
            Step::Loopback => "bring up loopback in the sandbox's network namespace".to_owned(),
            Step::ReceiveBuffers => {
                return layer(
                    "small receive buffers of TCP",
                    "let this process write below /proc/sys/net/ipv4, or mount /proc/sys read-only",
                );
            }
            Step::Propagation => "make the sandbox's mounts private".to_owned(),
            Step::Root => "make the sandbox's root file system".to_owned(),
            Step::Node => format!("make /{} in the sandbox", item(&self.nodes)),
            Step::Mount => format!("mount {}", item(&self.mounts)),
            Step::Proc => return layer("a /proc of its own", PROC_FIX),
            Step::ProcMask => format!("cover /proc/{} in the sandbox", item(&self.masks)),
            Step::Pivot => "change the sandbox's root".to_owned(),
            Step::GuestExe => "open the guest's program for the sandbox".to_owned(),
            Step::Rlimit => "set the sandbox's resource limits".to_owned(),
            Step::Capabilities => "give up capabilities".to_owned(),
            Step::NoNewPrivileges => "give up new privileges".to_owned(),
            Step::Seccomp => {
                return layer("the system call filter", "use a kernel with CONFIG_SECCOMP_FILTER");
            }
            Step::MachineDomain => {
                return layer("the Landlock domain of a machine", "use a kernel with Landlock");
            }
            Step::Descriptors => "arrange the sandbox's descriptors".to_owned(),
            Step::Exec => "start the guest".to_owned(),
            Step::Scratch => "make the scratch directory".to_owned(),
            Step::Gateway => return layer("the way to the network's gateway", GATEWAY_FIX),
            Step::Volume => {
                return EngineError::Layer {
                    layer: item(&self.mounts).into(),
                    reason: source.to_string(),
                    fix: VOLUME_FIX.to_owned(),
                };
            }
        };
        EngineError::Launch { step: what, source }
    }
}

/// Fix if user namespaces are refused.
pub(crate) const NAMESPACE_FIX: &str = "allow unprivileged user namespaces: \
     sysctl -w user.max_user_namespaces=10000; on Debian also kernel.unprivileged_userns_clone=1, \
     on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; or run Belljar as root";

/// Fix if a network namespace cannot be connected to the gateway.
pub(crate) const GATEWAY_FIX: &str =
    "use a kernel with nf_tables and nft_tproxy; where they are modules: modprobe -a nf_tables nft_tproxy";

/// Fix for a volume that cannot be mounted.
const VOLUME_FIX: &str = "the machine needs loop devices, ext4 and idmapped mounts (modules loop and ext4, Linux 5.12 or newer; in a \
     container, /dev/loop*); where the volume's file is damaged, check it with e2fsck";

const PROC_FIX: &str = "a container hides parts of /proc, and the kernel then refuses a fresh one: \
     run Belljar outside of it, or let the container see the whole /proc (docker run --security-opt systempaths=unconfined)";
