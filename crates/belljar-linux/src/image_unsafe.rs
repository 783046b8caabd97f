//! Mounts a file that contains a file system through its own loop device, so that it has its own superblock and shares no page
//! cache with mounts of the same file through another device.
//!
//! ```text
//! layer    squashfs, read-only; several devices may have the same file
//! volume   ext4, written by several sandboxes at once: one device and one superblock for each file, shared by all mounts
//! ```
//!
//! The device clears itself when it is no longer used, and this module attaches no mount: both disappear with the last
//! descriptor and the last mount namespace, even if the process that made them was killed.

#![expect(unsafe_code, reason = "the ioctls of loop devices; the blocks say why they are sound")]
// A volume is mounted between a clone and an exec: docs/fork-safety.md.
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::string_slice)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::event::Timespec;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::kernel::{MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID};
use crate::line::Line;
use crate::plan::{Wall, Without};

/// Attempts to get a free loop device, each of which can lose a race with another process.
const MAX_ATTEMPTS: usize = 64;

/// Maximum number of loop devices searched for the one that has a volume's file.
const MAX_DEVICES: u32 = 1024;

/// Attempts, one millisecond apart, to get a volume's device while it is being attached or detached. After the end of the last
/// sandbox, the kernel may still write back the file system's cache.
const MAX_VOLUME_ATTEMPTS: u32 = 10_000;

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
/// `BLKFLSBUF` in include/uapi/linux/fs.h.
const BLKFLSBUF: libc::Ioctl = 0x1261;
const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
/// Bypasses the page cache of the file. What remains is the file system's own cache, charged to the sandbox that caused it.
const DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Info {
    const fn new(flags: u32) -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// Error from mounting a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct ImageError {
    /// The step that failed, such as `open /dev/loop-control`.
    pub step: &'static str,
    /// The kernel's reason.
    #[source]
    pub errno: std::io::Error,
}

/// An [`ImageError`] that needs no allocation.
#[derive(Clone, Copy)]
struct Failed {
    step: &'static str,
    errno: Errno,
}

impl From<Failed> for ImageError {
    fn from(Failed { step, errno }: Failed) -> Self {
        Self { step, errno: errno.into() }
    }
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Failed {
    move |errno| Failed { step, errno }
}

/// A mounted image. The superblock lives as long as this, or any mount that [`ImageMount::mount`] returned.
#[derive(Debug)]
pub struct ImageMount {
    device: CString,
    kind: CString,
    attributes: MountAttrFlags,
    _keep: OwnedFd,
}

impl ImageMount {
    /// Attaches `image`, a read-only descriptor of a file with a file system of the type `kind`, to a loop device and mounts it.
    /// `without` names walls that a test disables.
    ///
    /// # Errors
    /// Fails if there are no loop devices, the caller may not use them, or the file contains no such file system.
    pub fn new(image: BorrowedFd<'_>, kind: &str, without: Without) -> Result<Self, ImageError> {
        let device = attach(image, READ_ONLY | AUTOCLEAR)?;
        let path = device.path.as_cstr().map_err(failed(MOUNT))?.to_owned();
        let kind = CString::new(kind).unwrap_or_default();
        let attributes = attributes(without) | MountAttrFlags::MOUNT_ATTR_RDONLY;
        let keep = mount(&path, &kind, &READ_ONLY_OPTIONS, attributes)?;
        // From here on the mount holds the device.
        drop(device);
        Ok(Self { device: path, kind, attributes, _keep: keep })
    }

    /// Makes another mount of the same superblock, attached nowhere: read-only, `nodev` and `nosuid`.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn mount(&self) -> Result<OwnedFd, ImageError> {
        Ok(mount(&self.device, &self.kind, &READ_ONLY_OPTIONS, self.attributes)?)
    }

    /// Returns the loop device's path.
    #[must_use]
    pub fn device(&self) -> &CStr {
        &self.device
    }
}

/// Mounts a volume, attached nowhere. `image` is its file, opened for reading and writing by this launch alone, and `ids` a user
/// namespace that maps its owner. Waits while the volume is being attached or detached. Fork-safe.
///
/// A file on two devices would be written by two file systems that do not know of each other. Attaching it therefore requires a
/// lock of the file. The device inherits the lock with the file's descriptor, and the kernel releases it when the device is
/// cleared, even if the process that took it was killed.
pub(crate) fn mount_volume(
    image: BorrowedFd<'_>,
    ids: BorrowedFd<'_>,
    attributes: u64,
    without: Without,
) -> Result<OwnedFd, Errno> {
    let device = get_or_attach_device(image, without)?;
    let path = device.path.as_cstr()?;
    // Read-only mounts share the superblock, which is writable.
    let mount =
        mount(path, c"ext4", &VOLUME_OPTIONS, self::attributes(without)).map_err(|failed| failed.errno)?;
    // From here on the mount holds the device.
    drop(device);
    crate::kernel::mount_setattr(
        mount.as_fd(),
        attributes & !(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV),
        0,
        false,
        Some(ids).filter(|_| !without.has(Wall::VolumeIds)),
    )?;
    Ok(mount)
}

/// Returns the device that has a volume's file, or attaches the file to a new one.
fn get_or_attach_device(image: BorrowedFd<'_>, without: Without) -> Result<Device, Errno> {
    for _ in 0..MAX_VOLUME_ATTEMPTS {
        if without.has(Wall::VolumeLock) {
            return attach(image, AUTOCLEAR | DIRECT_IO).map_err(|failed| failed.errno);
        }
        match rustix::fs::flock(image, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return attach(image, AUTOCLEAR | DIRECT_IO).map_err(|failed| failed.errno),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if let Some(device) = find_device(image)? {
            return Ok(device);
        }
        let one_millisecond = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let _ = rustix::event::poll(&mut [], Some(&one_millisecond));
    }
    Err(Errno::BUSY)
}

/// An open loop device. It is not cleared before this is closed.
struct Device {
    path: Line<24>,
    open: OwnedFd,
}

impl Device {
    fn open(number: u32, flags: OFlags) -> Result<Self, Errno> {
        let path = Line::new().text(b"/dev/loop").number(number);
        let open = rustix::fs::open(path.as_cstr()?, flags | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path, open })
    }
}

/// Returns the device that has this file, if there is one.
fn find_device(image: BorrowedFd<'_>) -> Result<Option<Device>, Errno> {
    let stat = rustix::fs::fstat(image)?;
    let this = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev), stat.st_ino);
    for number in 0..MAX_DEVICES {
        // A device may be in the course of being cleared, or may have been removed.
        let Ok(device) = Device::open(number, OFlags::RDONLY | OFlags::NONBLOCK) else { continue };
        let mut info = Info::new(0);
        // SAFETY: the structure has the kernel's layout and outlives the call, which fills it.
        if unsafe { libc::ioctl(device.open.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } != 0 {
            continue;
        }
        let (major, minor) = decode_device_number(info.device);
        if this == (major, minor, info.inode) {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// Opens the loop device whose file was at this path, which may have been removed since, after what is mounted from it was written to it.
/// Returns `None` if there is none.
///
/// # Errors
/// The kernel's reason: it takes root of the machine.
pub fn open_written_device(file: &Path) -> io::Result<Option<File>> {
    for device in std::fs::read_dir("/sys/block")?.flatten() {
        let Ok(backing) = std::fs::read(device.path().join("loop/backing_file")) else { continue };
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let backing = backing.strip_suffix(b" (deleted)").unwrap_or(backing);
        if backing != file.as_os_str().as_bytes() {
            continue;
        }
        let device = File::open(Path::new("/dev").join(device.file_name()))?;
        // SAFETY: the ioctl takes no argument. It writes what file systems on the device have in memory (`blkdev_flushbuf`).
        if unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF) } != 0 {
            return Err(io::Error::last_os_error());
        }
        return Ok(Some(device));
    }
    Ok(None)
}

/// Decodes a device number as the kernel does (`new_decode_dev`): 12 bits of major and 20 bits of minor, the lowest 8 first.
fn decode_device_number(encoded: u64) -> (u32, u32) {
    let encoded = u32::try_from(encoded & u64::from(u32::MAX)).unwrap_or_default();
    ((encoded & 0x000f_ff00) >> 8, (encoded & 0xff) | ((encoded >> 12) & 0x000f_ff00))
}

/// Attaches a file to a free loop device. Fork-safe.
fn attach(image: BorrowedFd<'_>, flags: u32) -> Result<Device, Failed> {
    let control = rustix::fs::open(c"/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("open /dev/loop-control"))?;
    for _ in 0..MAX_ATTEMPTS {
        // SAFETY: the ioctl takes no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        let number = u32::try_from(number).map_err(|_| failed("find a free loop device")(last()))?;
        let device = Device::open(number, OFlags::RDWR).map_err(failed("open a free loop device"))?;
        match configure(device.open.as_fd(), image, flags) {
            Ok(()) => return Ok(device),
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(failed("attach the file to a loop device")(errno)),
        }
    }
    Err(failed("find a free loop device that no other process takes")(Errno::BUSY))
}

fn configure(device: BorrowedFd<'_>, image: BorrowedFd<'_>, flags: u32) -> Result<(), Errno> {
    // Direct I/O reads and writes whole blocks, of a size that every disk supports.
    let block_size = if flags & DIRECT_IO == 0 { 0 } else { 4096 };
    let config =
        Config { fd: image.as_raw_fd().unsigned_abs(), block_size, info: Info::new(flags), reserved: [0; 8] };
    // SAFETY: the structure has the kernel's layout, is complete and outlives the call, which only reads it.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

/// Returns the attributes that all mounts of files have: `nosuid` and `nodev`.
fn attributes(without: Without) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::empty();
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !without.has(Wall::LayerNosuid));
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !without.has(Wall::LayerNodev));
    attributes
}

/// Option of a file system; one without a value is a flag.
type MountOption = (&'static CStr, Option<&'static CStr>);

const READ_ONLY_OPTIONS: [MountOption; 1] = [(c"ro", None)];

/// The inode tables of a new file are zero already, so they need no initialization.
const VOLUME_OPTIONS: [MountOption; 2] = [(c"errors", Some(c"remount-ro")), (c"noinit_itable", None)];

const MOUNT: &str = "mount the file";

fn mount(
    device: &CStr,
    kind: &CStr,
    options: &[MountOption],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Failed> {
    let at = failed(MOUNT);
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(&at)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), c"source", device).map_err(&at)?;
    for (name, value) in options {
        match value {
            Some(value) => rustix::mount::fsconfig_set_string(context.as_fd(), *name, *value),
            None => rustix::mount::fsconfig_set_flag(context.as_fd(), *name),
        }
        .map_err(&at)?;
    }
    rustix::mount::fsconfig_create(context.as_fd()).map_err(&at)?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(&at)
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_size() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }

    #[test]
    fn device_numbers_are_decoded_as_by_the_kernel() {
        // 7:3, 254:0, and one whose parts both need their upper bits.
        for (encoded, parts) in [(0x0703, (7, 3)), (0xfe00, (254, 0)), (0x1234_5678, (0x456, 0x1_2378))] {
            assert_eq!(decode_device_number(encoded), parts);
        }
    }
}
