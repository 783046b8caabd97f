//! What a daemon can enforce, as it reports itself.

use belljar_model::LimitsGrade;
use bollard::models::{SystemInfo, SystemInfoCgroupDriverEnum, SystemVersion};

/// What a daemon can enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Name and version, such as `Docker 20.10.24`.
    pub(crate) name: String,
    /// Version of the control groups that it uses, as text; `None` if it uses none.
    pub(crate) cgroups: Option<&'static str>,
    /// Limits of a sandbox that it does not enforce.
    pub(crate) unlimited: Vec<&'static str>,
    /// Whether it limits swap too.
    pub(crate) limits_swap: bool,
    /// Whether users of containers are others outside.
    pub(crate) has_user_namespace: bool,
    /// Processor architecture, in the kernel's words.
    pub(crate) arch: String,
    /// Names of its runtimes.
    pub(crate) runtimes: Vec<String>,
    /// Whether the kernel has IPv6: that of this machine, which is taken for the daemon's.
    pub(crate) has_ipv6: bool,
}

impl Facts {
    pub(crate) fn new(version: SystemVersion, info: SystemInfo) -> Self {
        let is_podman = version.components.iter().flatten().any(|one| one.name.contains("Podman"));
        let name = if is_podman { "Podman" } else { "Docker" };
        let security = info.security_options.unwrap_or_default();
        let has_option = |option: &str| security.iter().any(|one| one.split(',').any(|part| part == option));
        let cgroups = match info.cgroup_driver {
            None | Some(SystemInfoCgroupDriverEnum::NONE | SystemInfoCgroupDriverEnum::EMPTY) => None,
            Some(_) => Some(match info.cgroup_version.map(|version| version.to_string()).as_deref() {
                Some("2") => "v2",
                _ => "v1",
            }),
        };
        let enforced = |flag: Option<bool>| cgroups.is_some() && flag == Some(true);
        let limits = [
            ("memory", enforced(info.memory_limit)),
            ("cpus", enforced(info.cpu_cfs_quota)),
            ("pids", enforced(info.pids_limit)),
        ];
        let mut runtimes: Vec<String> = info.runtimes.unwrap_or_default().into_keys().collect();
        runtimes.sort();
        Self {
            name: format!("{name} {}", info.server_version.or(version.version).unwrap_or_default()),
            cgroups,
            unlimited: limits.into_iter().filter(|(_, enforced)| !enforced).map(|(limit, _)| limit).collect(),
            limits_swap: info.swap_limit == Some(true),
            has_user_namespace: has_option("name=userns") || has_option("name=rootless"),
            arch: info.architecture.unwrap_or_default(),
            runtimes,
            has_ipv6: std::path::Path::new("/proc/sys/net/ipv6").exists(),
        }
    }

    /// Returns why a sandbox with limits of this grade cannot be created.
    pub(crate) fn obstacle(&self, grade: LimitsGrade) -> Option<String> {
        if grade == LimitsGrade::Watched || self.unlimited.is_empty() {
            return None;
        }
        let limits = self.unlimited.join(", ");
        Some(match self.cgroups {
            None => format!("{} has no control groups, so it limits none of {limits}", self.name),
            Some(version) => format!("{} does not limit {limits} with control groups {version}", self.name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> SystemInfo {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn docker_with_control_groups_limits_everything() {
        let info = info(
            r#"{"MemoryLimit":true,"SwapLimit":true,"CpuCfsQuota":true,"PidsLimit":true,"CgroupDriver":"cgroupfs","CgroupVersion":"1",
            "SecurityOptions":["name=seccomp,profile=default"],"ServerVersion":"20.10.24","Architecture":"x86_64","Runtimes":{"runc":{}}}"#,
        );
        let facts = Facts::new(SystemVersion::default(), info);
        assert_eq!((facts.name.as_str(), facts.cgroups), ("Docker 20.10.24", Some("v1")));
        assert_eq!(facts.obstacle(LimitsGrade::Cgroup), None);
        assert!(!facts.has_user_namespace && facts.limits_swap && facts.runtimes == ["runc"]);
    }

    /// A rootless daemon on v1 accepts limits, and enforces none.
    #[test]
    fn limits_that_are_not_enforced_are_obstacles() {
        let rootless = info(
            r#"{"MemoryLimit":true,"CpuCfsQuota":true,"PidsLimit":true,"CgroupDriver":"none","CgroupVersion":"1",
            "SecurityOptions":["name=seccomp,profile=default","name=rootless"],"ServerVersion":"20.10.24"}"#,
        );
        let facts = Facts::new(SystemVersion::default(), rootless);
        assert_eq!(facts.unlimited, ["memory", "cpus", "pids"]);
        assert!(facts.has_user_namespace);
        let obstacle = facts.obstacle(LimitsGrade::Cgroup).unwrap();
        assert!(obstacle.contains("no control groups"), "{obstacle}");
        assert_eq!(facts.obstacle(LimitsGrade::Watched), None);
        let partly = info(
            r#"{"MemoryLimit":true,"CpuCfsQuota":false,"PidsLimit":true,"CgroupDriver":"systemd","CgroupVersion":"2"}"#,
        );
        let obstacle = Facts::new(SystemVersion::default(), partly).obstacle(LimitsGrade::Cgroup).unwrap();
        assert!(obstacle.ends_with("does not limit cpus with control groups v2"), "{obstacle}");
    }
}
