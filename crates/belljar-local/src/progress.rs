//! Reports of a supervisor while it creates, holds and removes a sandbox.

use std::io;
use std::os::fd::OwnedFd;

use belljar_linux::{LaunchPhase, REPORT_LEN, Report};
use rustix::net::RecvFlags;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// Reports received from the supervisor so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    pub(crate) failed: Option<(belljar_linux::Step, u32, i32)>,
    pub(crate) ended: Option<i32>,
    /// Number of processes of the sandbox killed for lack of memory, once it has ended.
    pub(crate) oom_kills: u32,
    pub(crate) cleaned: Option<(u32, i32)>,
    /// End of each phase of the launch, by CLOCK_MONOTONIC in nanoseconds.
    pub(crate) phases: Vec<(&'static str, u64)>,
    /// Process id of the first process.
    pub(crate) first: Option<i32>,
    /// Whether the supervisor is gone.
    pub(crate) closed: bool,
}

impl Progress {
    /// Reports whether the first process has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_some() || self.closed
    }

    fn record(&mut self, report: Report) {
        match report {
            // Later failures are consequences of the first.
            Report::Failed { step, item, errno } => {
                self.failed.get_or_insert((step, item, errno));
            }
            Report::Ended { status, oom_kills } => {
                self.ended = Some(status);
                self.oom_kills = oom_kills;
            }
            Report::Cleaned { left, errno } => self.cleaned = Some((left, errno)),
            Report::Reached { phase, at_ns } => {
                let name = LaunchPhase::ALL.iter().find(|(known, _)| *known == phase).map(|(_, name)| *name);
                self.phases.extend(name.map(|name| (name, at_ns)));
            }
            Report::Started { pid } => self.first = Some(pid),
        }
    }
}

/// Registers a descriptor with tokio.
#[expect(
    deprecated,
    reason = "unsound only for types that can change their descriptor, which OwnedFd cannot"
)]
pub(crate) fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}

pub(crate) fn describe_end(progress: &Progress) -> String {
    match progress.ended {
        Some(status) if status < 0 => {
            let signal = belljar_model::signal_name(-status)
                .map_or_else(|| format!("signal {}", -status), str::to_owned);
            let ended = format!("its first process was ended by {signal}");
            match progress.oom_kills {
                0 => ended,
                _ => {
                    format!("{ended} after memory had run out; its files count against the limit memory, too")
                }
            }
        }
        Some(belljar_guest_config::GUEST_WITHOUT_LANDLOCK) => {
            "its first process could not create the Landlock domain of user code; \
             use a kernel with Landlock, and \"landlock\" in its lsm= list"
                .to_owned()
        }
        Some(belljar_guest_config::GUEST_WITHOUT_SETUP) => {
            "its first process could not set up its own isolation, such as being closed to inspection"
                .to_owned()
        }
        Some(status) => format!("its first process exited with status {status}"),
        None => "its supervisor is gone".to_owned(),
    }
}

pub(crate) async fn follow(reader: AsyncFd<OwnedFd>, sender: watch::Sender<Progress>) {
    let mut records = [0u8; 16 * REPORT_LEN];
    loop {
        let Ok(mut ready) = reader.readable().await else { break };
        // Records are written atomically, and the kernel keeps their boundaries (SOCK_SEQPACKET).
        match rustix::net::recv(&reader, &mut records, RecvFlags::DONTWAIT) {
            Ok((length @ 1.., _)) => sender.send_modify(|progress| {
                let (reports, _) = records[..length].as_chunks::<REPORT_LEN>();
                reports.iter().filter_map(Report::decode).for_each(|report| progress.record(report));
            }),
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            // A command that the supervisor did not read resets the connection when it exits. The kernel reports that once, before
            // the records that are still in the queue.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            Ok(_) | Err(_) => break,
        }
    }
    sender.send_modify(|progress| progress.closed = true);
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

    use super::*;

    /// A supervisor that exits with a command unread resets the connection. Its records must arrive nevertheless: without them the
    /// host removes control groups by name, which may be another sandbox's.
    #[tokio::test]
    async fn records_before_a_reset_are_read() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (host, supervisor) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let cleaned = Report::Cleaned { left: 0, errno: 0 };
        rustix::net::send(&supervisor, &cleaned.encode(), SendFlags::NOSIGNAL).unwrap();
        rustix::net::send(&host, b"c", SendFlags::NOSIGNAL).unwrap();
        drop(supervisor);
        let (sender, progress) = watch::channel(Progress::default());
        follow(async_fd(host).unwrap(), sender).await;
        let progress = progress.borrow();
        assert_eq!((progress.cleaned, progress.closed), (Some((0, 0)), true));
    }
}
