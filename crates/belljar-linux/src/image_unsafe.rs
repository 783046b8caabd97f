//! Mounts a file that contains a file system through its own loop device, so that it has its own superblock and shares no page
//! cache with mounts of the same file through another device.
//!
//! The device clears itself when it is no longer used, and this module attaches no mount: both disappear with the last
//! descriptor and the last mount namespace, even if the process that made them was killed.

#![expect(unsafe_code, reason = "the ioctls of loop devices; the blocks say why they are sound")]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::plan::{Wall, Without};

/// Attempts to get a free loop device, each of which can lose a race with another process.
const MAX_ATTEMPTS: usize = 64;

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

/// Why a file could not be mounted.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct ImageError {
    /// The step that failed, such as `open /dev/loop-control`.
    pub step: String,
    /// The kernel's reason.
    #[source]
    pub errno: std::io::Error,
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
        let (device, open) = attach(image)?;
        let kind = CString::new(kind).unwrap_or_default();
        let attributes = attributes(without);
        let keep = mount(&device, &kind, attributes)?;
        // From here on the mount holds the device.
        drop(open);
        Ok(Self { device, kind, attributes, _keep: keep })
    }

    /// Makes another mount of the same superblock, attached nowhere: read-only, `nodev` and `nosuid`.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn mount(&self) -> Result<OwnedFd, ImageError> {
        mount(&self.device, &self.kind, self.attributes)
    }

    /// Returns the loop device's path.
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
    for _ in 0..MAX_ATTEMPTS {
        // SAFETY: the ioctl takes no argument and returns a number.
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
            Err(errno) => return Err(failed(format!("attach the image to {path}"))(errno)),
        }
    }
    Err(failed("find a free loop device that no other process takes")(Errno::BUSY))
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
    // SAFETY: the structure has the kernel's layout, is complete and outlives the call, which only reads it.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

/// Returns the attributes of an image's mounts: read-only, `nosuid` and `nodev`.
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
    fn structures_have_the_kernels_size() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }
}
