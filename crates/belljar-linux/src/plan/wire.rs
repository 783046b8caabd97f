//! Launch plans between two processes of the same program, which are on the same machine: fields in the order of their definition, numbers
//! in the machine's own order of bytes, and descriptors beside them in the order in which the fields have them.

use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::{
    CgroupJoin, CgroupPlan, CgroupSetting, GuestExe, GuestProgram, Identity, LaunchPlan, MachinePlan,
    MountSource, MountStep, NamespacePlan, Node, ProcFile, Scratch, Without,
};
use crate::kernel::{CStringArray, LandlockAttr};
use crate::network::GatewayPlan;
use crate::seccomp::Profile;

/// Bytes and descriptors to send.
#[derive(Debug, Default)]
pub(crate) struct Encoded<'a> {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<BorrowedFd<'a>>,
}

/// Bytes and descriptors that have been received.
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    descriptors: std::vec::IntoIter<OwnedFd>,
}

impl LaunchPlan {
    /// Encodes the plan.
    pub(crate) fn encode(&self) -> Encoded<'_> {
        let mut encoded = Encoded::default();
        self.put(&mut encoded);
        encoded
    }

    /// Decodes a plan.
    ///
    /// # Errors
    /// `EBADMSG` if bytes or descriptors are missing, left over, or not those of a plan.
    pub(crate) fn decode(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, Errno> {
        let mut decoder = Decoder { bytes, descriptors: descriptors.into_iter() };
        let plan = Self::take(&mut decoder)?;
        match decoder.bytes.is_empty() && decoder.descriptors.len() == 0 {
            true => Ok(plan),
            false => Err(Errno::BADMSG),
        }
    }
}

/// A part of a plan.
trait Wire: Sized {
    fn put<'a>(&'a self, to: &mut Encoded<'a>);
    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno>;
}

impl Decoder<'_> {
    fn bytes(&mut self, count: usize) -> Result<&[u8], Errno> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(Errno::BADMSG)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Returns which variant of an enum follows.
    fn variant(&mut self) -> Result<u8, Errno> {
        u8::take(self)
    }
}

macro_rules! numbers {
    ($($name:ty),*) => {$(
        impl Wire for $name {
            fn put<'a>(&'a self, to: &mut Encoded<'a>) {
                to.bytes.extend_from_slice(&self.to_ne_bytes());
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
                let bytes = from.bytes(size_of::<Self>())?;
                Ok(Self::from_ne_bytes(bytes.try_into().map_err(|_| Errno::BADMSG)?))
            }
        }
    )*};
}

macro_rules! structs {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Wire for $name {
            fn put<'a>(&'a self, to: &mut Encoded<'a>) {
                let Self { $($field),* } = self;
                $($field.put(to);)*
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
                $(let $field = Wire::take(from)?;)*
                Ok(Self { $($field),* })
            }
        }
    )*};
}

macro_rules! enums {
    ($($name:ident { $($number:literal $variant:ident $fields:tt),* })*) => {$(
        impl Wire for $name {
            fn put<'a>(&'a self, to: &mut Encoded<'a>) {
                match self {
                    $(enums!(pattern $variant $fields) => {
                        to.bytes.push($number);
                        enums!(put to $fields);
                    })*
                }
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
                match from.variant()? {
                    $($number => enums!(take from $variant $fields),)*
                    _ => Err(Errno::BADMSG),
                }
            }
        }
    )*};
    (pattern $variant:ident ($field:ident)) => { Self::$variant($field) };
    (pattern $variant:ident { $($field:ident),* }) => { Self::$variant { $($field),* } };
    (put $to:ident ($field:ident)) => { $field.put($to) };
    (put $to:ident { $($field:ident),* }) => { $($field.put($to);)* };
    (take $from:ident $variant:ident ($field:ident)) => { Ok(Self::$variant(Wire::take($from)?)) };
    (take $from:ident $variant:ident { $($field:ident),* }) => {{
        $(let $field = Wire::take($from)?;)*
        Ok(Self::$variant { $($field),* })
    }};
}

numbers!(u8, u32, u64);

structs! {
    LaunchPlan {
        guest, guest_socket, guest_config, dev_null, cgroups, uid_lease, identity, namespaces, gateway, seccomp, drop_privileges,
        keep_capabilities, machine, rlimits, scratch, without
    }
    GuestProgram { exe, argv, envp }
    Identity { inside, outside_uid, outside_gid, count, privileged }
    CgroupPlan { dir, settings, join, can_kill, is_freezer }
    CgroupSetting { file, value, optional }
    NamespacePlan {
        flags, hostname, staging, root_options, nodes, mounts, proc_target, proc_masks, proc_files, enter
    }
    ProcFile { name, content }
    MountStep { source, target, attributes, make }
    Scratch { parent, name }
    MachinePlan { capabilities, domain }
    LandlockAttr { handled_access_fs, handled_access_net, scoped }
    Without { bits }
}

enums! {
    GuestExe { 0 Fd (fd), 1 Checked { path, device, inode } }
    CgroupJoin { 0 AtClone {}, 1 Tasks {} }
    Node { 0 Dir { path, mode }, 1 Symlink { path, target }, 2 File { path, content } }
    MountSource {
        0 Path (path), 1 Checked { path, device, inode }, 2 Own (path), 3 Detached (fd), 4 Volume { image, ids },
        5 New { kind, options }
    }
}

impl Wire for bool {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        to.bytes.push((*self).into());
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        Ok(from.variant()? != 0)
    }
}

impl Wire for CString {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        to.bytes.extend_from_slice(&(self.as_bytes().len() as u64).to_ne_bytes());
        to.bytes.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        Self::new(Vec::take(from)?).map_err(|_| Errno::BADMSG)
    }
}

impl Wire for OwnedFd {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        to.descriptors.push(self.as_fd());
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        from.descriptors.next().ok_or(Errno::BADMSG)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        to.bytes.extend_from_slice(&(self.len() as u64).to_ne_bytes());
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        let count = u64::take(from)?;
        (0..count).map(|_| T::take(from)).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        to.bytes.push(self.is_some().into());
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        bool::take(from)?.then(|| T::take(from)).transpose()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        self.0.put(to);
        self.1.put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl Wire for CStringArray {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        self.strings().put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        Ok(Self::new(Wire::take(from)?))
    }
}

impl Wire for Profile {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        to.bytes.push(*self as u8);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        let number = from.variant()?;
        Self::ALL.into_iter().find(|profile| *profile as u8 == number).ok_or(Errno::BADMSG)
    }
}

impl Wire for GatewayPlan {
    fn put<'a>(&'a self, to: &mut Encoded<'a>) {
        self.sockets.put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Errno> {
        Ok(Self::new(OwnedFd::take(from)?))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn text(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    /// A plan with each variant of each enum.
    fn plan() -> LaunchPlan {
        let sources = [
            MountSource::Path(text("/usr")),
            MountSource::Checked { path: text("/data"), device: 3, inode: u64::MAX },
            MountSource::Own(text("tmp")),
            MountSource::Detached(file()),
            MountSource::Volume { image: file(), ids: file() },
            MountSource::New {
                kind: text("tmpfs"),
                options: vec![(text("size"), text("1m")), (text("ro"), text(""))],
            },
        ];
        let make = || {
            vec![
                Node::Dir { path: text("a"), mode: 0o755 },
                Node::Symlink { path: text("b"), target: text("a") },
                Node::File { path: text("c"), content: vec![0, 255] },
            ]
        };
        let step = |source| MountStep { source, target: text("to"), attributes: 7, make: make() };
        LaunchPlan {
            guest: GuestProgram {
                exe: GuestExe::Checked { path: text("/bin/guest"), device: 1, inode: 2 },
                argv: CStringArray::new(vec![text("belljar"), text("guest")]),
                envp: CStringArray::new(Vec::new()),
            },
            guest_socket: file(),
            guest_config: file(),
            dev_null: file(),
            cgroups: [CgroupJoin::AtClone, CgroupJoin::Tasks]
                .into_iter()
                .map(|join| CgroupPlan {
                    dir: text("/sys/fs/cgroup/x"),
                    settings: vec![CgroupSetting {
                        file: text("pids.max"),
                        value: text("5"),
                        optional: true,
                    }],
                    join,
                    can_kill: true,
                    is_freezer: false,
                })
                .collect(),
            uid_lease: Some(file()),
            identity: Identity {
                inside: 1000,
                outside_uid: 1_900_000_001,
                outside_gid: 1_900_000_002,
                count: 1,
                privileged: true,
            },
            namespaces: Some(NamespacePlan {
                flags: 1 << 40,
                hostname: text("box"),
                staging: text("/tmp"),
                root_options: vec![(text("mode"), text("755"))],
                nodes: make(),
                mounts: sources.into_iter().map(step).collect(),
                proc_target: text("proc"),
                proc_masks: vec![text("kcore")],
                proc_files: vec![ProcFile { name: text("stat"), content: vec![9; 100_000] }],
                enter: Some(text("tree")),
            }),
            gateway: Some(GatewayPlan::new(file())),
            seccomp: Some(Profile::Machine),
            drop_privileges: true,
            keep_capabilities: 5,
            machine: Some(MachinePlan {
                capabilities: 6,
                domain: LandlockAttr { handled_access_fs: 1, handled_access_net: 2, scoped: 3 },
            }),
            rlimits: vec![(1, 2), (3, u64::MAX)],
            scratch: Some(Scratch { parent: file(), name: text("scratch") }),
            without: Without { bits: 8 },
        }
    }

    /// Returns the text of a plan in which each descriptor has the number of its file.
    fn shown(plan: &LaunchPlan) -> String {
        let mut text = format!("{plan:?}");
        for descriptor in plan.encode().descriptors {
            let inode = rustix::fs::fstat(descriptor).unwrap().st_ino;
            text = text.replace(&format!("fd: {} ", descriptor.as_raw_fd()), &format!("inode: {inode} "));
        }
        // Where the strings of an array are.
        let parts = text.split("pointers: [").map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
        parts.collect()
    }

    #[test]
    fn plans_arrive_as_they_were() {
        let plan = plan();
        let encoded = plan.encode();
        let copies = || -> Vec<OwnedFd> {
            encoded.descriptors.iter().map(|one| one.try_clone_to_owned().unwrap()).collect()
        };
        let arrived = LaunchPlan::decode(&encoded.bytes, copies()).unwrap();
        assert_eq!(shown(&arrived), shown(&plan));
        assert_eq!(arrived.encode().bytes, encoded.bytes);
        // Plans without their ends, and with something after them.
        let refused =
            |bytes: &[u8], descriptors| matches!(LaunchPlan::decode(bytes, descriptors), Err(Errno::BADMSG));
        let (_, short) = encoded.bytes.split_last().unwrap();
        assert!(refused(short, copies()) && refused(&[&encoded.bytes[..], &[0]].concat(), copies()));
        let mut descriptors = copies();
        descriptors.push(file());
        assert!(refused(&encoded.bytes, descriptors));
        assert!(refused(&encoded.bytes, copies().split_off(1)) && refused(&[], Vec::new()));
    }
}
