//! A file that holds a file system, as a mount: through a loop device of its own, so that it is a superblock of its own, with a
//! page cache that nobody shares who mounts the same file through another device.
//!
//! The device clears itself when nothing uses it any more, and no mount is attached anywhere by this module: both go with the
//! last descriptor and the last mount namespace, also when whoever made them was killed.

#![expect(unsafe_code, reason = "the ioctls of loop devices; the blocks say why they are sound")]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::plan::{Wall, Without};

/// How often another process may take the device that was found free.
const TRIES: usize = 64;

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;

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

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// Why a file cannot be mounted.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct ImageError {
    /// What was being done, such as `open /dev/loop-control`.
    pub step: String,
    /// The kernel's reason.
    #[source]
    pub errno: std::io::Error,
}

/// A mounted image. The superblock lives as long as this, or anything that [`ImageMount::mount`] handed out.
#[derive(Debug)]
pub struct ImageMount {
    device: CString,
    kind: CString,
    attributes: MountAttrFlags,
    _keep: OwnedFd,
}

impl ImageMount {
    /// Puts `image`, a read-only descriptor of a file with a file system of the type `kind`, on a loop device and mounts it.
    /// `without` names walls that a test takes away.
    ///
    /// # Errors
    /// Where there are no loop devices or the caller may not use them, and when the file holds no such file system.
    pub fn new(image: BorrowedFd<'_>, kind: &str, without: Without) -> Result<Self, ImageError> {
        let (device, open) = attach(image)?;
        let kind = CString::new(kind).unwrap_or_default();
        let attributes = attributes(without);
        let keep = mount(&device, &kind, attributes)?;
        // From here on the mount holds the device.
        drop(open);
        Ok(Self { device, kind, attributes, _keep: keep })
    }

    /// Another mount of the same superblock, attached nowhere: read-only, without devices, and no program of it gains anything.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn mount(&self) -> Result<OwnedFd, ImageError> {
        mount(&self.device, &self.kind, self.attributes)
    }

    /// The loop device's path.
    #[must_use]
    pub fn device(&self) -> &std::ffi::CStr {
        &self.device
    }
}

fn failed(step: impl Into<String>) -> impl FnOnce(Errno) -> ImageError {
    move |errno| ImageError { step: step.into(), errno: errno.into() }
}

fn attach(image: BorrowedFd<'_>) -> Result<(CString, OwnedFd), ImageError> {
    let control = rustix::fs::open(c"/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("open /dev/loop-control"))?;
    for _ in 0..TRIES {
        // SAFETY: the ioctl takes no argument and hands back a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(failed("find a free loop device")(last()));
        }
        let path = format!("/dev/loop{number}");
        let device = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed(format!("open {path}")))?;
        match configure(device.as_fd(), image) {
            Ok(()) => return Ok((CString::new(path).unwrap_or_default(), device)),
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(failed(format!("put the image on {path}"))(errno)),
        }
    }
    Err(failed("get a loop device that nobody else takes")(Errno::BUSY))
}

fn configure(device: BorrowedFd<'_>, image: BorrowedFd<'_>) -> Result<(), Errno> {
    let config = Config {
        fd: image.as_raw_fd().unsigned_abs(),
        block_size: 0,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: READ_ONLY | AUTOCLEAR,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the structure is the kernel's own, complete and alive during the call, which only reads it.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

/// Read-only, without devices, and no program gains anything.
fn attributes(without: Without) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !without.has(Wall::LayerNosuid));
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !without.has(Wall::LayerNodev));
    attributes
}

fn mount(device: &CString, kind: &CString, attributes: MountAttrFlags) -> Result<OwnedFd, ImageError> {
    let at = || failed(format!("mount {} as {}", device.to_string_lossy(), kind.to_string_lossy()));
    let context = rustix::mount::fsopen(kind.as_c_str(), FsOpenFlags::FSOPEN_CLOEXEC).map_err(at())?;
    rustix::mount::fsconfig_set_string(context.as_fd(), c"source", device.as_c_str()).map_err(at())?;
    rustix::mount::fsconfig_set_flag(context.as_fd(), c"ro").map_err(at())?;
    rustix::mount::fsconfig_create(context.as_fd()).map_err(at())?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(at())
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }
}
