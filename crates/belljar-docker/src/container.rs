//! The container of a sandbox, as the daemon is asked for it.

use std::collections::HashMap;
use std::time::Duration;

use belljar_engine::Environment;
use belljar_engine::backend::guest_config;
use belljar_guest_config::{
    Domain, GUEST_ARGUMENT, GuestConfig, LISTEN_ARGUMENT, WatchedLimits, guest_threads,
};
use belljar_linux::NETWORK_ADDRESS;
use belljar_local::{RESOLVER_OPTIONS, TRUST_DIR, Trust};
use belljar_model::{LimitsGrade, NetworkMode, SandboxId, SandboxSpec};
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};

use crate::facts::Facts;
use crate::guest_volume::{Guest, PROGRAM};
use crate::image::Image;

/// The home directory inside.
pub(crate) const HOME: &str = "/home/user";

/// Directory of the guest's socket, in memory. User code cannot write there.
pub(crate) const SOCKET_DIR: &str = ".belljar/run";

/// Name of the guest's socket in it.
pub(crate) const SOCKET: &str = "s";

/// Size of that directory's file system, in bytes.
const SOCKET_DIR_BYTES: u64 = 64 << 10;

/// Search path of images that set none.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// First user id outside. Each sandbox has a random one of the 2^24 from here, far from those of accounts and of other engines, so that no
/// account of the machine can signal its processes.
const FIRST_USER: u32 = 1_800_000_000;

/// Number of them.
const USERS: u32 = 1 << 24;

/// Size of the file system with what programs trust in addition, in bytes.
const TRUST_DIR_BYTES: u64 = 8 << 20;

/// User id where the daemon maps users to others outside.
const MAPPED_USER: u32 = 1000;

/// Label with the sandbox's id.
pub(crate) const SANDBOX_LABEL: &str = "belljar.sandbox";

/// Label with the id of the server that holds the sandbox; empty without one.
pub(crate) const SERVER_LABEL: &str = "belljar.server";

/// Parts of `/proc` that containers do not see: those that Docker masks, and others that reveal or affect the machine.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/bus",
    "/proc/cmdline",
    "/proc/driver",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/locks",
    "/proc/modules",
    "/proc/mtrr",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/tty",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// A container to create.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Container<'a> {
    pub(crate) id: &'a SandboxId,
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) image: &'a Image,
    pub(crate) guest: &'a Guest,
    pub(crate) facts: &'a Facts,
    pub(crate) runtime: Option<&'a str>,
    /// The server that holds it. Without one it ends with this process, and the daemon removes it then.
    pub(crate) server: Option<&'a str>,
    /// Whether it outlives its first connection.
    pub(crate) is_long: bool,
    pub(crate) user: u32,
    /// Number of processes and threads of the engine's own in the container.
    pub(crate) own_pids: u32,
    /// What its programs trust in addition.
    pub(crate) trust: Option<&'a Trust>,
}

/// Number of threads of a program that connects the host to the guest through the daemon.
const BRIDGE_THREADS: u32 = 2;

/// Number of such programs for which the limit of processes has room: the connections of one client.
const MAX_BRIDGES: u32 = 3;

/// Returns the number of processes and threads of the engine's own for which the limit of a container has room.
pub(crate) fn own_pids(is_direct: bool) -> u32 {
    if is_direct { own_pids_now(0) } else { own_pids_now(MAX_BRIDGES) }
}

/// Returns the number of processes and threads of the engine's own in a container with so many connections through the daemon.
pub(crate) fn own_pids_now(bridges: u32) -> u32 {
    guest_threads(true, false) + bridges * BRIDGE_THREADS
}

/// Returns the user id of a sandbox.
pub(crate) fn user(facts: &Facts, random: u32) -> u32 {
    match facts.has_user_namespace {
        true => MAPPED_USER,
        false => FIRST_USER + random % USERS,
    }
}

/// Returns the user id of the programs that connect the host to the guest through the daemon: another one, so that neither user code nor the
/// guest, which signals all processes that it may, can signal them.
pub(crate) fn bridge_user(user: u32) -> u32 {
    if user == MAPPED_USER { MAPPED_USER + 1 } else { user + USERS }
}

/// Returns the name of a sandbox's container.
pub(crate) fn name(id: &SandboxId) -> String {
    format!("belljar-{id}")
}

impl Container<'_> {
    /// Returns the request to the daemon.
    pub(crate) fn body(&self) -> ContainerCreateBody {
        let socket = format!("/{SOCKET_DIR}/{SOCKET}");
        // Both are always set, as those of the image would be taken for ours otherwise.
        let labels = [(SANDBOX_LABEL, self.id.as_str()), (SERVER_LABEL, self.server.unwrap_or_default())];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        ContainerCreateBody {
            hostname: Some(self.spec.hostname.to_string()),
            user: Some(format!("{0}:{0}", self.user)),
            image: Some(self.image.id.clone()),
            entrypoint: Some(vec![PROGRAM.to_owned()]),
            cmd: Some(vec![GUEST_ARGUMENT.to_owned(), LISTEN_ARGUMENT.to_owned(), socket]),
            working_dir: Some("/".to_owned()),
            // Otherwise the daemon would run programs of the image beside the guest.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            labels: Some(labels),
            host_config: Some(self.host_config()),
            ..ContainerCreateBody::default()
        }
    }

    fn host_config(&self) -> HostConfig {
        let limits = &self.spec.limits;
        let is_limited = self.spec.grade == LimitsGrade::Cgroup;
        // Without a network, the machine's own resolvers are none of the sandbox's business, and it cannot reach them.
        let (resolver, options) = match self.spec.network.mode() {
            NetworkMode::Disabled => ("127.0.0.1".to_owned(), None),
            _ => (NETWORK_ADDRESS.to_string(), Some(RESOLVER_OPTIONS.map(str::to_owned).into())),
        };
        let limit = |value: u64| is_limited.then(|| i64::try_from(value).unwrap_or(i64::MAX));
        HostConfig {
            memory: limit(limits.memory.bytes()),
            // The sum of memory and swap, so that there is none.
            memory_swap: limit(limits.memory.bytes()),
            nano_cpus: limit(u64::from(limits.cpus.millis()) * 1_000_000),
            pids_limit: limit(u64::from(limits.pids.get().saturating_add(self.own_pids))),
            ulimits: Some(ulimits()),
            init: Some(false),
            auto_remove: Some(self.server.is_none()),
            restart_policy: Some(RestartPolicy {
                name: Some(RestartPolicyNameEnum::NO),
                maximum_retry_count: None,
            }),
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            network_mode: Some("none".to_owned()),
            dns: Some(vec![resolver]),
            dns_options: options,
            dns_search: Some(vec![".".to_owned()]),
            extra_hosts: Some(vec![format!("{}:127.0.0.1", self.spec.hostname)]),
            sysctls: Some(self.sysctls()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            ipc_mode: Some("private".to_owned()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            readonly_rootfs: Some(true),
            tmpfs: Some(self.memory_disks()),
            shm_size: Some(i64::try_from(limits.tmp.bytes()).unwrap_or(i64::MAX)),
            mounts: Some(vec![self.guest.mount(true)]),
            masked_paths: Some(MASKED.iter().map(|path| (*path).to_owned()).collect()),
            runtime: self.runtime.map(str::to_owned),
            ..HostConfig::default()
        }
    }

    fn sysctls(&self) -> HashMap<String, String> {
        // Docker turns it off where it gives no address, also on loopback.
        let ipv6 = self.facts.has_ipv6.then_some(("net.ipv6.conf.all.disable_ipv6", "0"));
        // Docker allows everybody every port; that of the resolver is the gateway's, also while there is none.
        let has_network = self.spec.network.mode() != NetworkMode::Disabled;
        let ports = has_network.then_some(("net.ipv4.ip_unprivileged_port_start", "54"));
        ipv6.into_iter().chain(ports).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Returns the file systems in memory, by path, with their options.
    fn memory_disks(&self) -> HashMap<String, String> {
        let (limits, user) = (&self.spec.limits, self.user);
        let disk = |bytes: u64, mode: &str| {
            let inodes = limits.inodes.get();
            format!("rw,nosuid,nodev,exec,size={bytes},nr_inodes={inodes},mode={mode},uid={user},gid={user}")
        };
        // Files of a volume that an image declares would be on the machine's disk, without a limit.
        let declared = self.image.volumes.iter().map(|path| (path.clone(), disk(limits.tmp.bytes(), "0755")));
        let mut disks: HashMap<String, String> = declared.collect();
        disks.extend([
            (HOME.to_owned(), disk(limits.disk.bytes(), "0755")),
            ("/tmp".to_owned(), disk(limits.tmp.bytes(), "1777")),
            ("/var/tmp".to_owned(), disk(limits.tmp.bytes(), "1777")),
            (
                format!("/{SOCKET_DIR}"),
                format!("rw,nosuid,nodev,noexec,size={SOCKET_DIR_BYTES},mode=0711,uid={user},gid={user}"),
            ),
        ]);
        if self.trust.is_some() {
            let options =
                format!("rw,nosuid,nodev,noexec,size={TRUST_DIR_BYTES},mode=0755,uid={user},gid={user}");
            disks.insert(TRUST_DIR.to_owned(), options);
        }
        disks
    }

    /// Returns the configuration of the guest. `deadline` is that of a long-lived sandbox.
    pub(crate) fn guest_config(&self, deadline: Option<Duration>) -> GuestConfig {
        let limits = &self.spec.limits;
        let mut write = [HOME, "/tmp", "/dev", "/var/tmp"].map(std::path::PathBuf::from).to_vec();
        write.extend(self.image.volumes.iter().map(Into::into));
        GuestConfig {
            landlock: Some(Domain { read: vec!["/".into()], write, tcp: true, least_abi: 1 }),
            watched: (self.spec.grade == LimitsGrade::Watched).then(|| WatchedLimits {
                memory_bytes: limits.memory.bytes(),
                pids: limits.pids.get(),
                own_kernel: false,
            }),
            ..guest_config(self.spec, HOME.as_ref(), self.environment(), self.is_long, deadline)
        }
    }

    fn environment(&self) -> Environment {
        let of_image = |name: &str| self.image.env.iter().find(|(known, _)| known == name);
        let path = of_image("PATH").map_or(PATH, |(_, path)| path);
        let mut env = Environment::default();
        env.extend(self.image.env.iter().cloned());
        env.extend(Environment::new(self.id, HOME.as_ref(), path).into_variables());
        if self.trust.is_some() {
            env.extend(Trust::environment());
        }
        env
    }
}

fn ulimits() -> Vec<ResourcesUlimits> {
    let limit = |name: &str, value: i64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(value),
        hard: Some(value),
    };
    vec![
        // A limit of 1 also keeps a core dump from being piped to a helper on the host, which 0 does not (core(5)).
        limit("core", 1),
        limit("memlock", 64 << 10),
        limit("msgqueue", 819_200),
        limit("sigpending", 1024),
        limit("rtprio", 0),
        limit("nice", 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container<T>(spec: &SandboxSpec, use_it: impl FnOnce(Container<'_>) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("guest");
        std::fs::write(&path, "guest").unwrap();
        let image = Image {
            id: "sha256:1".to_owned(),
            name: "app".to_owned(),
            env: vec![("PATH".to_owned(), "/app".to_owned()), ("LANG".to_owned(), "de".to_owned())],
            volumes: vec!["/data".to_owned()],
        };
        let facts = Facts::new(Default::default(), Default::default());
        use_it(Container {
            id: &SandboxId::from_entropy([7; SandboxId::LEN]),
            spec,
            image: &image,
            guest: &Guest::read(Some(&path)).unwrap(),
            facts: &facts,
            runtime: None,
            server: None,
            is_long: false,
            user: user(&facts, 5),
            own_pids: own_pids(true),
            trust: None,
        })
    }

    /// The whole request, so that each change of the walls shows in review.
    #[test]
    fn request_has_every_wall() {
        let body = container(&SandboxSpec::default(), |container| container.body());
        let body = serde_json::to_value(body).unwrap();
        let host = &body["HostConfig"];
        for (name, value) in [
            ("CapDrop", serde_json::json!(["ALL"])),
            ("SecurityOpt", serde_json::json!(["no-new-privileges"])),
            ("ReadonlyRootfs", true.into()),
            ("NetworkMode", "none".into()),
            ("CgroupnsMode", "private".into()),
            ("IpcMode", "private".into()),
            ("AutoRemove", true.into()),
            ("Init", false.into()),
            ("LogConfig", serde_json::json!({ "Type": "none" })),
        ] {
            assert_eq!(host[name], value, "{name}");
        }
        for name in
            ["CapAdd", "Privileged", "Devices", "Binds", "PidMode", "UTSMode", "UsernsMode", "PortBindings"]
        {
            assert!(host[name].is_null(), "{name}");
        }
        assert_eq!(body["User"], "1800000005:1800000005");
        assert_eq!(body["Healthcheck"]["Test"], serde_json::json!(["NONE"]));
        assert_eq!(body["Entrypoint"], serde_json::json!([PROGRAM]));
    }

    #[test]
    fn limits_are_those_of_the_specification() {
        let mut spec = SandboxSpec::default();
        spec.limits.memory = "64m".parse().unwrap();
        spec.limits.cpus = "0.5".parse().unwrap();
        spec.limits.pids = "10".parse().unwrap();
        spec.limits.disk = "8m".parse().unwrap();
        let host = |spec: &SandboxSpec| container(spec, |container| container.body().host_config.unwrap());
        let all = host(&spec);
        assert_eq!((all.memory, all.memory_swap), (Some(64 << 20), Some(64 << 20)));
        assert_eq!((all.nano_cpus, all.pids_limit), (Some(500_000_000), Some(12)));
        let disks = all.tmpfs.unwrap();
        assert!(
            disks[HOME].contains("size=8388608,") && disks[HOME].contains("uid=1800000005,"),
            "{disks:?}"
        );
        assert!(disks.contains_key("/data") && disks["/.belljar/run"].contains("mode=0711"), "{disks:?}");
        spec.grade = LimitsGrade::Watched;
        let watched = host(&spec);
        assert_eq!((watched.memory, watched.nano_cpus, watched.pids_limit), (None, None, None));
        assert!(container(&spec, |container| container.guest_config(None)).watched.is_some());
    }

    /// Whatever a policy allows, the daemon connects nothing: the gateway enters the container's own namespace.
    #[test]
    fn network_is_never_the_daemons() {
        let network = belljar_model::NetworkFile { mode: Some("open".to_owned()), ..Default::default() };
        let spec = SandboxSpec { network: network.resolve().unwrap(), ..SandboxSpec::default() };
        let host = container(&spec, |container| container.body().host_config.unwrap());
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(host.dns, Some(vec![NETWORK_ADDRESS.to_string()]));
        assert_eq!(host.dns_options.unwrap(), RESOLVER_OPTIONS);
    }

    #[test]
    fn environment_is_that_of_the_image_and_then_ours() {
        let config = container(&SandboxSpec::default(), |container| container.guest_config(None));
        let value =
            |name: &str| config.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(value("PATH"), Some("/home/user/.local/bin:/app"));
        assert_eq!((value("LANG"), value("HOME")), (Some("C.UTF-8"), Some(HOME)));
        assert!(config.own_filter && config.first_process && config.landlock.is_some());
    }
}
