//! Watches a directory, or a whole tree, with inotify.
//!
//! The kernel watches single directories, so a tree gets one watch per directory, and a new directory gets its own as
//! soon as its creation is seen. Files created in it before that are found by reading it, so a file can be reported as
//! created twice but is never missed. A renamed directory keeps its watches; only their paths change.

mod tree;

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_proto::{ConnectError, v1};
use futures::Stream;
use rustix::fs::inotify;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::files::failure;
use tree::{Event, MAX_WATCHES, Tree};

/// Maximum size of one read from the kernel's queue, in bytes. It bounds what is buffered here; the rest stays in the
/// kernel.
const READ_BYTES: usize = 16 * 1024;

/// Starts a watch. The first event of the stream is `READY`; `shown` is the path in errors.
pub(crate) async fn watch(
    path: &Path,
    shown: &[u8],
    recursive: bool,
) -> Result<impl Stream<Item = Result<v1::WatchEvent, ConnectError>> + use<>, ConnectError> {
    let fail = |errno| watch_failure(shown, errno);
    let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
    let fd = inotify::init(flags).map_err(fail)?;
    let mut tree = Tree::new(fd, path.as_os_str().as_bytes(), recursive).map_err(fail)?;
    while tree.scan_some().map_err(fail)? {
        tokio::task::yield_now().await;
    }
    tree.ready();
    let watching = Watching { tree, shown: shown.to_vec() };
    Ok(futures::stream::try_unfold(watching, next))
}

struct Watching {
    tree: Tree,
    shown: Vec<u8>,
}

async fn next(mut watching: Watching) -> Result<Option<(v1::WatchEvent, Watching)>, ConnectError> {
    let Watching { tree, shown } = &mut watching;
    let fail = |errno| watch_failure(shown, errno);
    loop {
        if let Some(event) = tree.next_event() {
            return Ok(Some((event, watching)));
        }
        if tree.has_ended() {
            return Ok(None);
        }
        if tree.scan_some().map_err(fail)? {
            tokio::task::yield_now().await;
            continue;
        }
        for event in read_events(&tree.inotify).await.map_err(fail)? {
            tree.handle(event).map_err(fail)?;
        }
    }
}

/// Waits for events and reads as many as fit into the buffer.
async fn read_events(fd: &AsyncFd<OwnedFd>) -> Result<Vec<Event>, Errno> {
    loop {
        let mut ready =
            fd.readable().await.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        match read_ready(fd.get_ref()) {
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

fn read_ready(fd: &OwnedFd) -> Result<Vec<Event>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
    let mut reader = inotify::Reader::new(fd, &mut buffer);
    let mut events = Vec::new();
    loop {
        let event = reader.next()?;
        events.push(Event {
            watch: event.wd(),
            flags: event.events(),
            cookie: event.cookie(),
            name: event.file_name().map(|name| name.to_bytes().to_vec()),
        });
        if reader.is_buffer_empty() {
            return Ok(events);
        }
    }
}

fn watch_failure(path: &[u8], errno: Errno) -> ConnectError {
    match errno {
        // The kernel also has a limit of its own on all watches of the user.
        Errno::NOSPC => ConnectError::resource_exhausted(format!(
            "cannot watch {}: too many directories below it; at most {MAX_WATCHES} can be watched",
            String::from_utf8_lossy(path).escape_debug()
        )),
        errno => failure("watch", path, errno),
    }
}

#[cfg(test)]
mod tests;
