//! The parent of pre-warmed interpreters: execs Python with the kernel's source (`kernels/python/src/parent.py`).
//!
//! It is not a guest: it serves no sandbox, and no user code runs in it. Over one socket, the host requests children
//! that move into sandboxes.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use belljar_guest_config::WarmParentConfig;
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;

use crate::guest::{GuestError, setup};

/// Execs Python as the parent. Returns only on failure, with the error.
#[must_use]
pub(crate) fn run_warm_parent() -> GuestError {
    match exec_python() {
        Err(error) => error,
        Ok(error) => setup("start python3")(error),
    }
}

fn exec_python() -> Result<io::Error, GuestError> {
    let config =
        belljar_linux::inherited_fd(belljar_linux::GUEST_CONFIG_FD).map_err(GuestError::Connection)?;
    let mut text = String::new();
    std::fs::File::from(config).read_to_string(&mut text).map_err(GuestError::Connection)?;
    let config: WarmParentConfig = serde_json::from_str(&text).map_err(GuestError::Config)?;
    let proc_dir =
        belljar_linux::inherited_fd(belljar_linux::GUEST_PROC_FD).map_err(setup("open its /proc"))?;
    // Its children inherit the mark of all sandboxed processes, and cannot set it themselves.
    belljar_linux::mark_for_oom(proc_dir.as_fd()).map_err(setup("mark itself for the OOM killer"))?;
    let socket =
        belljar_linux::inherited_fd(belljar_linux::GUEST_SOCKET_FD).map_err(GuestError::Connection)?;
    rustix::io::fcntl_setfd(&socket, FdFlags::empty()).map_err(setup("keep its connection"))?;
    // It has no /proc of its own; this descriptor keeps showing the status of the process after the exec.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
    let status = rustix::fs::openat(&proc_dir, c"self/status", flags, Mode::empty());
    let status = status.map_err(setup("open its own status"))?;
    let kernel = crate::interpreter::python_kernel().map_err(setup("hand over the kernel's source"))?;
    let start = serde_json::json!({
        "fd": belljar_linux::GUEST_SOCKET_FD,
        "status": status.as_raw_fd(),
        "imports": config.imports,
        "calls": belljar_linux::moving_calls().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "entry": config.native_entry.then(|| BASE64.encode(belljar_linux::entry_code())),
    });
    // Some signals are ignored by now, and Python cannot reset all of them.
    belljar_linux::reset_signals();
    let mut python = Command::new("python3");
    python.env_clear().envs(config.env).env("BELLJAR_WARM", start.to_string());
    python.stdin(Stdio::from(kernel)).current_dir("/");
    let error = python.exec();
    drop::<[OwnedFd; 2]>([socket, status]);
    Ok(error)
}
