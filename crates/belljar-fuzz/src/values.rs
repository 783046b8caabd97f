//! Single values of flags and files.

use std::fmt::{Debug, Display};
use std::path::Component;
use std::str::FromStr;
use std::time::Duration;

use belljar_model::{
    ByteSize, Cidr, Cpus, DiskSize, DomainName, DomainPattern, EngineName, EnvVar, Hostname, Inodes,
    LimitsGrade, LogSize, Memory, ModelError, Mount, NetworkMode, OpenFiles, OutputSize, Pids, SandboxId,
    Timeout, TmpSize, check_targets,
};

use crate::data::{check_refusal, text};

/// Checks that a value survives a round trip through its text form, or that the refusal names the field.
fn check<T>(text: &str, field: &str, in_bounds: impl Fn(&T) -> bool) -> Option<T>
where
    T: FromStr<Err = ModelError> + Display + PartialEq + Debug,
{
    match text.parse::<T>() {
        Ok(value) => {
            assert!(in_bounds(&value), "{text:?} gives {value:?}");
            let written = value.to_string();
            let again: T = written.parse().expect("a formatted value can be parsed");
            assert_eq!(again, value, "{text:?} is written {written:?}");
            assert_eq!(again.to_string(), written);
            Some(value)
        }
        Err(error) => {
            check_refusal(&error.to_string(), &[field]);
            None
        }
    }
}

pub(crate) fn size(data: &[u8]) {
    let text = text(data);
    let size = check::<ByteSize>(&text, "size", |_| true).map(ByteSize::bytes);
    // A limit accepts exactly the sizes in its range.
    let is_in = |min: u64, max: u64| size.is_some_and(|size| (min..=max).contains(&size));
    macro_rules! limit {
        ($name:ident, $field:literal, $min:expr, $max:expr) => {
            let limit = check::<$name>(&text, $field, |limit| ($min..=$max).contains(&limit.bytes()));
            assert_eq!(limit.is_some(), is_in($min, $max), "{text:?}");
            assert_eq!(limit.map(|limit| limit.bytes()), size.filter(|_| limit.is_some()));
        };
    }
    const MIB: u64 = 1 << 20;
    limit!(Memory, "memory", 16 * MIB, 1 << 40);
    limit!(TmpSize, "tmp", MIB, 1 << 40);
    limit!(DiskSize, "disk", MIB, 16 << 40);
    limit!(OutputSize, "output", 4096, 256 * MIB);
    limit!(LogSize, "log", 0, 1 << 40);
}

pub(crate) fn timeout(data: &[u8]) {
    let range = Duration::from_millis(1)..=Duration::from_secs(86_400);
    check::<Timeout>(&text(data), "timeout", |timeout| range.contains(&timeout.duration()));
}

pub(crate) fn cpus(data: &[u8]) {
    let text = text(data);
    let found = check::<Cpus>(&text, "cpus", |cpus| (10..=1_024_000).contains(&cpus.millis()));
    if let Some(cpus) = found {
        let number: f64 = text.parse().expect("a number");
        assert!((number * 1000.0 - f64::from(cpus.millis())).abs() < 1e-6, "{text:?} gives {cpus}");
    }
}

pub(crate) fn count(data: &[u8]) {
    let text = text(data);
    let number: Option<u64> = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    macro_rules! limit {
        ($name:ident, $field:literal, $min:literal, $max:literal) => {
            let found = check::<$name>(&text, $field, |_| true).map(|found| u64::from(found.get()));
            assert_eq!(found, number.filter(|number| ($min..=$max).contains(number)), "{text:?}");
        };
    }
    limit!(Pids, "pids", 1, 4_194_304);
    limit!(Inodes, "inodes", 16, 4_294_967_296);
    limit!(OpenFiles, "open_files", 16, 1_048_576);
}

pub(crate) fn word(data: &[u8]) {
    let text = text(data);
    check::<SandboxId>(&text, "id", |id| {
        let id = id.as_str().as_bytes();
        id.len() == 20
            && id[0].is_ascii_lowercase()
            && id.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    });
    check::<Hostname>(&text, "hostname", |name| {
        let name = name.as_str();
        (1..=63).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-')
    });
    check::<EngineName>(&text, "engine", |name| {
        let name = name.as_str().as_bytes();
        (1..=31).contains(&name.len())
            && name[0].is_ascii_lowercase()
            && name.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
    });
    // Each of these has exactly one spelling.
    let exact =
        |is_read: bool, names: &[&str]| assert_eq!(is_read, names.contains(&text.as_str()), "{text:?}");
    exact(check::<NetworkMode>(&text, "network", |_| true).is_some(), &["disabled", "whitelist", "open"]);
    check::<DomainName>(&text, "name", |name| {
        name.as_str().len() <= 253 && name.as_str().parse::<std::net::IpAddr>().is_err()
    });
    check::<DomainPattern>(&text, "name", |_| true);
    check::<Cidr>(&text, "cidr", |_| true);
    exact(check::<LimitsGrade>(&text, "grade", |_| true).is_some(), &["cgroup", "watched"]);
}

/// Reports whether `path` may be the source or target of a mount.
pub(crate) fn is_plain(path: &std::path::Path) -> bool {
    path.is_absolute()
        && path.parent().is_some()
        && path.as_os_str().len() <= 4095
        && !path.as_os_str().as_encoded_bytes().contains(&0)
        && path.components().skip(1).all(|part| matches!(part, Component::Normal(_)))
}

pub(crate) fn mount(data: &[u8]) {
    const NEEDED: [&str; 11] =
        ["/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
    check::<Mount>(&text(data), "mount", |mount| {
        is_plain(&mount.source)
            && is_plain(&mount.target)
            && NEEDED.iter().all(|needed| !mount.target.starts_with(needed))
    });
}

pub(crate) fn mount_targets(data: &[u8]) {
    let mounts: Vec<Mount> = text(data).lines().filter_map(|line| line.parse().ok()).collect();
    // No mount covers an earlier one: the rule itself, checked for each pair.
    let is_valid = (0..mounts.len())
        .all(|at| mounts[..at].iter().all(|earlier| !earlier.target.starts_with(&mounts[at].target)));
    match check_targets(&mounts) {
        Ok(()) => assert!(is_valid, "{mounts:?}"),
        Err(error) => {
            assert!(!is_valid, "{mounts:?}: {error}");
            check_refusal(&error.to_string(), &["mounts"]);
        }
    }
}

pub(crate) fn env(data: &[u8]) {
    let text = text(data);
    match text.parse::<EnvVar>() {
        Ok(variable) => {
            let (name, value) = (variable.name(), variable.value());
            assert_eq!(format!("{name}={value}"), text);
            assert!(!name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
            assert!(name.len() + value.len() + 2 <= 128 << 10);
            // The debug text must not contain the value, which may be a secret.
            let empty = EnvVar::new(name, "").expect("the name is valid");
            assert_eq!(format!("{variable:?}"), format!("{empty:?}"));
        }
        Err(error) => check_refusal(&error.to_string(), &["env"]),
    }
}
