//! Limits of a sandbox. Constructing a limit validates it, so that every value is in its range.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::ModelError;
use crate::node::Fields;
use crate::size::ByteSize;
use crate::text::serde_as_scalar;
use crate::timeout::{Timeout, parse_decimal};

/// Defines a limit that is a number of bytes.
macro_rules! size_limit {
    ($(#[$doc:meta])* $name:ident, $field:literal, $min:expr, $max:expr, $default:expr, $allowed:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(ByteSize);

        impl $name {
            /// Minimum.
            pub const MIN: Self = Self($min);
            /// Maximum.
            pub const MAX: Self = Self($max);
            const DEFAULT: Self = Self($default);
            const FIELD: &'static str = $field;
            const ALLOWED: &'static str = $allowed;

            /// Creates the limit from a number of bytes.
            ///
            /// # Errors
            ///
            /// Fails if the number is out of range.
            pub fn new(bytes: u64) -> Result<Self, ModelError> {
                let size = ByteSize::new(bytes);
                Self::checked(size).ok_or_else(|| ModelError::not_allowed(Self::FIELD, size.to_string(), Self::ALLOWED))
            }

            /// Returns the limit in bytes.
            pub const fn bytes(self) -> u64 {
                self.0.bytes()
            }

            fn checked(size: ByteSize) -> Option<Self> {
                (Self::MIN.0..=Self::MAX.0).contains(&size).then_some(Self(size))
            }
        }

        impl FromStr for $name {
            type Err = ModelError;

            fn from_str(text: &str) -> Result<Self, ModelError> {
                ByteSize::parse(text)
                    .and_then(Self::checked)
                    .ok_or_else(|| ModelError::not_allowed(Self::FIELD, text, Self::ALLOWED))
            }
        }

        limit_traits!($name);
    };
}

/// Defines a limit that is a plain number.
macro_rules! count_limit {
    ($(#[$doc:meta])* $name:ident, $number:ty, $field:literal, $min:expr, $max:expr, $default:expr, $allowed:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($number);

        impl $name {
            /// Minimum.
            pub const MIN: Self = Self($min);
            /// Maximum.
            pub const MAX: Self = Self($max);
            const DEFAULT: Self = Self($default);
            const FIELD: &'static str = $field;
            const ALLOWED: &'static str = $allowed;

            /// Creates the limit.
            ///
            /// # Errors
            ///
            /// Fails if the number is out of range.
            pub fn new(count: $number) -> Result<Self, ModelError> {
                Self::checked(count).ok_or_else(|| ModelError::not_allowed(Self::FIELD, count.to_string(), Self::ALLOWED))
            }

            /// Returns the limit as a number.
            pub const fn get(self) -> $number {
                self.0
            }

            fn checked(count: $number) -> Option<Self> {
                (Self::MIN.0..=Self::MAX.0).contains(&count).then_some(Self(count))
            }
        }

        impl FromStr for $name {
            type Err = ModelError;

            fn from_str(text: &str) -> Result<Self, ModelError> {
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                digits
                    .then(|| text.parse().ok())
                    .flatten()
                    .and_then(Self::checked)
                    .ok_or_else(|| ModelError::not_allowed(Self::FIELD, text, Self::ALLOWED))
            }
        }

        limit_traits!($name);
    };
}

macro_rules! limit_traits {
    ($name:ident) => {
        impl Default for $name {
            fn default() -> Self {
                Self::DEFAULT
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        serde_as_scalar!($name);
    };
}

/// A row of the table of limits, from which flags and settings are made.
#[derive(Debug, Clone, Copy)]
pub struct LimitInfo {
    /// Name in specifications, such as `open_files`.
    pub name: &'static str,
    /// Key of the setting with a server's default, such as `template.limits.open_files`.
    pub setting: &'static str,
    /// Description, a sentence.
    pub help: &'static str,
    /// Kind of its value: `SIZE`, `NUMBER` or `TIME`.
    pub value: &'static str,
    /// Default, as written in a TOML file.
    pub default: &'static str,
    /// Where it can be set.
    pub scope: LimitScope,
}

/// Where a limit can be set, each scope including the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitScope {
    /// Only in runs without a server.
    Run,
    /// Also in new sandboxes of a server.
    Create,
    /// Also in running sandboxes.
    Update,
}

/// Defines the table of limits: of the fields of [`Limits`], [`LimitsFile`] and [`LimitNumbers`], and [`LimitsFile::TABLE`].
/// Each row has its description, its kind of value and its default. Limits after `@local` have the scope [`LimitScope::Run`].
macro_rules! limits {
    (@row $name:ident $scope:ident $kind:ident $default:literal $doc:literal) => {
        LimitInfo {
            name: stringify!($name),
            setting: concat!("template.limits.", stringify!($name)),
            help: $doc.trim_ascii_start(),
            value: stringify!($kind),
            default: $default,
            scope: LimitScope::$scope,
        }
    };
    (
        $(#[doc = $doc:literal] $name:ident: $type:ty = $scope:ident $kind:ident $default:literal, $key:ident: $number:ty = |$limit:ident| $value:expr;)*
        @local $(#[doc = $local_doc:literal] $local:ident: $local_type:ty = $local_kind:ident $local_default:literal;)*
    ) => {
        /// Limits of a sandbox.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Limits {
            $(#[doc = $doc] pub $name: $type,)*
            $(#[doc = $local_doc] pub $local: $local_type,)*
        }

        /// Resource limits of a sandbox, as given. A size is a number of bytes or a text such as `256m`.
        #[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LimitsRequest))]
        pub struct LimitsFile {
            $(#[doc = $doc]
            #[serde(skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "schema", schema(value_type = Option<crate::text::Scalar>))]
            pub $name: Option<$type>,)*
            $(#[doc = $local_doc]
            #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
            #[cfg_attr(feature = "schema", schema(ignore))]
            pub $local: Option<$local_type>,)*
        }

        /// Resource limits of a sandbox, as numbers.
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Limits))]
        pub struct LimitNumbers {
            $(#[doc = $doc] pub $key: $number,)*
        }

        impl LimitsFile {
            /// All limits.
            pub const TABLE: &[LimitInfo] = &[
                $(limits!(@row $name $scope $kind $default $doc),)*
                $(limits!(@row $local Run $local_kind $local_default $local_doc),)*
            ];

            /// Returns the limits that can be set in this scope.
            pub fn table(scope: LimitScope) -> impl Iterator<Item = &'static LimitInfo> {
                Self::TABLE.iter().filter(move |limit| limit.scope >= scope)
            }

            /// Returns the limits that are set.
            pub fn given(&self) -> impl Iterator<Item = &'static LimitInfo> {
                let given = [$(self.$name.is_some(),)* $(self.$local.is_some(),)*];
                Self::TABLE.iter().zip(given).filter_map(|(limit, is_given)| is_given.then_some(limit))
            }

            /// Parses the limit of this name. Returns whether there is one.
            ///
            /// # Errors
            ///
            /// Fails if the value cannot be read or is out of range.
            pub fn set(&mut self, name: &str, text: &str) -> Result<bool, ModelError> {
                match name {
                    $(stringify!($name) => self.$name = Some(text.parse()?),)*
                    $(stringify!($local) => self.$local = Some(text.parse()?),)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Merges with other limits; values in `over` win.
            #[must_use]
            pub fn merge(self, over: Self) -> Self {
                Self {
                    $($name: over.$name.or(self.$name),)*
                    $($local: over.$local.or(self.$local),)*
                }
            }

            /// Fills in the defaults.
            #[must_use]
            pub fn resolve(self) -> Limits {
                let sized = self.sizes_from_memory();
                sized.resolve_fields()
            }

            fn resolve_fields(self) -> Limits {
                Limits {
                    $($name: self.$name.unwrap_or_default(),)*
                    $($local: self.$local.unwrap_or_default(),)*
                }
            }
        }

        impl From<&Limits> for LimitsFile {
            fn from(limits: &Limits) -> Self {
                Self { $($name: Some(limits.$name),)* $($local: Some(limits.$local),)* }
            }
        }

        impl From<&Limits> for LimitNumbers {
            fn from(limits: &Limits) -> Self {
                Self { $($key: { let $limit = limits.$name; $value },)* }
            }
        }
    };
}

limits! {
    /// Memory and swap of everything in a sandbox, including files in memory.
    memory: Memory = Update SIZE "\"512m\"", memory_bytes: u64 = |size| size.bytes();
    /// Processors, such as 0.5.
    cpus: Cpus = Update NUMBER "1", cpus: f64 = |cpus| cpus.get();
    /// Timeout of an execution that sets none.
    timeout: Timeout = Create TIME "\"60s\"", timeout_s: f64 = |timeout| timeout.duration().as_secs_f64();
    /// Maximum number of processes and threads.
    pids: Pids = Update NUMBER "128", pids: u32 = |count| count.get();
    /// Size of /tmp, by default nearly that of the memory.
    tmp: TmpSize = Create SIZE "\"480m\"", tmp_bytes: u64 = |size| size.bytes();
    /// Size of the home directory, by default nearly that of the memory.
    disk: DiskSize = Create SIZE "\"480m\"", disk_bytes: u64 = |size| size.bytes();
    /// Maximum number of files and directories in each writable file system.
    inodes: Inodes = Create NUMBER "65536", inodes: u64 = |count| count.get();
    /// Maximum of each output stream in a result.
    output: OutputSize = Create SIZE "\"8m\"", output_bytes: u64 = |size| size.bytes();
    /// Maximum number of open files of each process.
    open_files: OpenFiles = Create NUMBER "1024", open_files: u64 = |count| count.get();
    @local
    /// Maximum of each output stream in --log-dir.
    log: LogSize = SIZE "\"256m\"";
}

impl Memory {
    /// Returns the default size of a file system in memory, in bytes: all that a sixteenth of the memory, and at least 8 MiB, leaves for
    /// processes. Then a program that fills the file system gets an error; one that fills the memory is killed.
    fn for_files(self) -> u64 {
        self.bytes() - (self.bytes() / 16).max(8 << 20)
    }
}

impl LimitsFile {
    /// Fills in the sizes of the file systems in memory.
    fn sizes_from_memory(mut self) -> Self {
        let bytes = self.memory.unwrap_or_default().for_files();
        self.tmp = self.tmp.or_else(|| TmpSize::new(bytes).ok());
        self.disk = self.disk.or_else(|| DiskSize::new(bytes).ok());
        self
    }

    /// Reports whether no limit is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn from_fields(mut fields: Fields) -> Result<Self, ModelError> {
        let mut limits = Self::default();
        for LimitInfo { name, .. } in Self::TABLE {
            if let Some(text) = fields.scalar(name)? {
                limits.set(name, &text)?;
            }
        }
        fields.finish()?;
        Ok(limits)
    }
}

/// How limits are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitsGrade {
    /// By a control group: the kernel counts all processes of the sandbox together.
    #[default]
    Cgroup,
    /// By resource limits of each process and a watcher that sums them up. Weaker: a burst can exceed a limit before it is
    /// noticed. In force only when requested by name.
    Watched,
}

impl LimitsGrade {
    /// Returns the name: `cgroup` or `watched`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Watched => "watched",
        }
    }
}

impl FromStr for LimitsGrade {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            "cgroup" => Ok(Self::Cgroup),
            "watched" => Ok(Self::Watched),
            _ => Err(ModelError::not_allowed("grade", text, "cgroup, or watched, which is weaker")),
        }
    }
}

impl fmt::Display for LimitsGrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

size_limit!(
    /// Memory and swap of a sandbox: from 16 MiB to 1 TiB, 512 MiB by default.
    Memory, "memory", ByteSize::mib(16), ByteSize::mib(1 << 20), ByteSize::mib(512),
    "a size from 16 MiB to 1 TiB, such as 256m"
);

size_limit!(
    /// Size of `/tmp`: from 1 MiB to 1 TiB, 480 MiB by default with the default memory.
    TmpSize, "tmp", ByteSize::mib(1), ByteSize::mib(1 << 20), ByteSize::mib(480),
    "a size from 1 MiB to 1 TiB, such as 100m"
);

size_limit!(
    /// Size of the writable disk: from 1 MiB to 16 TiB, 480 MiB by default with the default memory.
    DiskSize, "disk", ByteSize::mib(1), ByteSize::mib(16 << 20), ByteSize::mib(480),
    "a size from 1 MiB to 16 TiB, such as 1g"
);

size_limit!(
    /// Size that is kept of each output stream, head and tail: from 4 KiB to 256 MiB, 8 MiB by default.
    OutputSize, "output", ByteSize::new(4096), ByteSize::mib(256), ByteSize::mib(8),
    "a size from 4 KiB to 256 MiB, such as 8m"
);

size_limit!(
    /// Size that is written to disk of each output stream: up to 1 TiB, 256 MiB by default. 0 disables the log.
    LogSize, "log", ByteSize::new(0), ByteSize::mib(1 << 20), ByteSize::mib(256),
    "a size from 0 bytes (no log) to 1 TiB, such as 256m"
);

count_limit!(
    /// Processes and threads at once: from 1 to 4194304, 128 by default.
    Pids, u32, "pids", 1, 4_194_304, 128,
    "a whole number from 1 to 4194304, such as 64"
);

count_limit!(
    /// Files and directories in each writable file system: from 16 to 4294967296, 65536 by default.
    Inodes, u64, "inodes", 16, 1 << 32, 65_536,
    "a whole number from 16 to 4294967296, such as 65536"
);

count_limit!(
    /// Descriptors that one process may hold: from 16 to 1048576, 1024 by default.
    OpenFiles, u64, "open_files", 16, 1_048_576, 1024,
    "a whole number from 16 to 1048576, such as 1024"
);

/// Processor time: from 0.01 to 1024 processors, 1 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus(u32);

impl Cpus {
    /// Minimum, 0.01 processors.
    pub const MIN: Self = Self(10);
    /// Maximum, 1024 processors.
    pub const MAX: Self = Self(1_024_000);
    const DEFAULT: Self = Self(1000);
    const ALLOWED: &'static str = "a number from 0.01 to 1024 with at most three decimals, such as 0.5";

    /// Creates the limit from thousandths of a processor.
    ///
    /// # Errors
    ///
    /// Fails if the number is out of range.
    pub fn new(millis: u32) -> Result<Self, ModelError> {
        Self::checked(millis)
            .ok_or_else(|| ModelError::not_allowed("cpus", Self(millis).to_string(), Self::ALLOWED))
    }

    /// Creates the limit from a number of processors.
    ///
    /// # Errors
    ///
    /// Fails if the number is out of range or has more than three decimals.
    pub fn from_number(cpus: f64) -> Result<Self, ModelError> {
        // A duration of as many seconds is the number without rounding errors.
        let exact = Duration::try_from_secs_f64(cpus).ok();
        exact
            .filter(|exact| exact.subsec_nanos() % 1_000_000 == 0)
            .and_then(|exact| Self::checked(u32::try_from(exact.as_millis()).ok()?))
            .ok_or_else(|| ModelError::not_allowed("cpus", cpus.to_string(), Self::ALLOWED))
    }

    /// Returns the number of processors.
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    /// Returns the limit in thousandths of a processor.
    pub const fn millis(self) -> u32 {
        self.0
    }

    fn checked(millis: u32) -> Option<Self> {
        (Self::MIN.0..=Self::MAX.0).contains(&millis).then_some(Self(millis))
    }

    fn parse(text: &str) -> Option<Self> {
        let (value, scale) = parse_decimal(text, 3)?;
        Self::checked(u32::try_from(value.checked_mul(1000)? / scale).ok()?)
    }
}

impl Default for Cpus {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl FromStr for Cpus {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::parse(text).ok_or_else(|| ModelError::not_allowed("cpus", text, Self::ALLOWED))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

serde_as_scalar!(Cpus);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks one limit: its range as stated in the error, its default, and texts just inside and outside of the range.
    macro_rules! check_limit {
        ($name:ident, default $default:literal, in [$($inside:literal),*], out [$($outside:literal),*]) => {{
            assert_eq!($name::default(), $default.parse().unwrap());
            let allowed = $name::ALLOWED;
            for edge in [$name::MIN, $name::MAX] {
                assert!(allowed.contains(&edge.to_string()), "{allowed} lacks {edge}");
                assert_eq!(edge.to_string().parse::<$name>().unwrap(), edge);
            }
            $(assert!($inside.parse::<$name>().is_ok(), "{}", $inside);)*
            for text in [$($outside),*] {
                let expected = format!("{}: {text:?} is not allowed; give {allowed}", stringify_field::<$name>(text));
                assert_eq!(text.parse::<$name>().unwrap_err().to_string(), expected);
            }
        }};
    }

    fn stringify_field<T: FromStr<Err = ModelError>>(text: &str) -> &'static str {
        match text.parse::<T>() {
            Err(ModelError::NotAllowed { field, .. }) => field,
            _ => "nothing was refused",
        }
    }

    #[test]
    fn limits_enforce_their_ranges() {
        check_limit!(Memory, default "512m", in ["16m", "1t", "16777216"], out ["0", "16777215", "1025g", "", "5 parsecs", "-1m"]);
        check_limit!(Cpus, default "1", in ["0.01", "1024", "0.5", "1.250"], out ["0", "0.009", "0.0101", "1024.001", "1e1", "-1", "", "NaN", "1 cpu"]);
        check_limit!(Pids, default "128", in ["1", "4194304"], out ["0", "4194305", "99999999999", "-1", "+1", "1k", "", "1.0"]);
        check_limit!(TmpSize, default "480m", in ["1m", "1t"], out ["0", "1048575", "2t"]);
        check_limit!(DiskSize, default "480m", in ["1m", "16t"], out ["0", "17t"]);
        check_limit!(Inodes, default "65536", in ["16", "4294967296"], out ["0", "15", "4294967297"]);
        check_limit!(OutputSize, default "8m", in ["4k", "256m"], out ["0", "4095", "257m"]);
        check_limit!(LogSize, default "256m", in ["0", "1", "1t"], out ["2t", "none"]);
        check_limit!(OpenFiles, default "1024", in ["16", "1048576"], out ["0", "15", "1048577"]);
    }

    #[test]
    fn table_has_the_defaults() {
        let mut limits = LimitsFile::default();
        for limit in LimitsFile::TABLE {
            assert!(limits.set(limit.name, limit.default.trim_matches('"')).unwrap(), "{}", limit.name);
        }
        assert_eq!(limits.resolve(), Limits::default());
    }

    #[test]
    fn file_systems_leave_memory_for_processes() {
        let sizes = |given: &[(&str, &str)]| {
            let mut limits = LimitsFile::default();
            given.iter().for_each(|(name, text)| assert!(limits.set(name, text).unwrap()));
            let limits = limits.resolve();
            [limits.memory.to_string(), limits.disk.to_string(), limits.tmp.to_string()]
        };
        assert_eq!(sizes(&[]), ["512 MiB", "480 MiB", "480 MiB"]);
        assert_eq!(sizes(&[("memory", "2g")]), ["2 GiB", "1920 MiB", "1920 MiB"]);
        assert_eq!(sizes(&[("memory", "16m"), ("disk", "1g")]), ["16 MiB", "1 GiB", "8 MiB"]);
        assert_eq!(sizes(&[("memory", "2g"), ("tmp", "1m")]), ["2 GiB", "1920 MiB", "1 MiB"]);
    }

    #[test]
    fn error_names_value_and_range() {
        assert_eq!(
            "0".parse::<Memory>().unwrap_err().to_string(),
            "memory: \"0\" is not allowed; give a size from 16 MiB to 1 TiB, such as 256m"
        );
        assert_eq!(
            Memory::new(1 << 20).unwrap_err().to_string(),
            "memory: \"1 MiB\" is not allowed; give a size from 16 MiB to 1 TiB, such as 256m"
        );
        assert!(Pids::new(0).is_err() && Cpus::new(9).is_err() && Inodes::new(u64::MAX).is_err());
    }

    #[test]
    fn cpus_are_displayed() {
        for (text, millis, written) in [
            ("0.5", 500, "0.5"),
            ("2", 2000, "2"),
            ("1.250", 1250, "1.25"),
            ("10", 10_000, "10"),
            ("0.01", 10, "0.01"),
        ] {
            let cpus: Cpus = text.parse().unwrap();
            assert_eq!((cpus.millis(), cpus.to_string().as_str()), (millis, written));
        }
    }

    #[test]
    fn grades_round_trip() {
        for grade in [LimitsGrade::Cgroup, LimitsGrade::Watched] {
            assert_eq!(grade.to_string().parse::<LimitsGrade>().unwrap(), grade);
            assert_eq!(serde_json::to_value(grade).unwrap(), grade.as_str());
        }
        assert_eq!(
            "none".parse::<LimitsGrade>().unwrap_err().to_string(),
            "grade: \"none\" is not allowed; give cgroup, or watched, which is weaker"
        );
    }

    #[test]
    fn serde_round_trips_and_validates() {
        let limits =
            Limits { memory: "1g".parse().unwrap(), cpus: "0.25".parse().unwrap(), ..Limits::default() };
        let json = serde_json::to_string(&limits).unwrap();
        assert_eq!(serde_json::from_str::<Limits>(&json).unwrap(), limits);
        assert!(serde_json::from_str::<Limits>(&json.replace("1 GiB", "1 MiB")).is_err());
    }

    proptest! {
        #[test]
        fn allowed_limits_round_trip(millis in 10_u32..=1_024_000, bytes in (16_u64 << 20)..=(1 << 40)) {
            let cpus = Cpus::new(millis).unwrap();
            prop_assert_eq!(cpus.to_string().parse::<Cpus>().unwrap(), cpus);
            let memory = Memory::new(bytes).unwrap();
            prop_assert_eq!(memory.to_string().parse::<Memory>().unwrap(), memory);
        }
    }
}
