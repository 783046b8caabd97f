//! Ends sandboxes whose TCP connections that no program accepts hold more memory than their limit.
//!
//! The kernel charges the receiving end of a connection to a control group only when a program accepts it (`inet_csk_accept`), so
//! those in a listener's queue count toward no limit. Each holds little, as its receive buffer is small and does not grow, but their
//! number has no bound: code opens as many listeners as files, and can close its own ends.
//!
//! One task counts for all sandboxes of this process. A sandbox whose limit is more than all sockets of the machine could hold is not
//! looked at. Of the others each is looked at at least once a second, unless those that have many sockets take the time ([`MAX_TIME`]):
//! a look costs two small files, and then the table of listeners. Growth of the machine's sockets is no sign: code that closes one for each that it leaves
//! waiting keeps their number.

use std::fs::File;
use std::io::BufReader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How such a sandbox ended.
pub const UNACCEPTED: &str =
    "connections that its code opened to itself and did not accept held more memory than its limit memory";

/// Interval between two counts. The loopback delivers some 30,000 connections a second, of some 40 KiB each.
const INTERVAL: Duration = Duration::from_millis(100);

/// Number of sandboxes that are looked at in each interval, if there are not more than in a second's intervals.
const EACH: usize = 64;

/// Number of intervals in which each sandbox is looked at.
const ROUND: usize = 10;

/// Time in an interval after which no further sandbox is looked at: the launcher does nothing else meanwhile.
const MAX_TIME: Duration = Duration::from_millis(10);

/// Number of listeners that are counted, which takes some 7 ms. A sandbox with more, and with more sockets than its memory allows, is ended
/// without a count.
const MAX_LISTENERS: usize = 4096;

/// Numbers of sockets: `TCP: inuse` counts those of the network namespace of the process, `alloc` those of the machine
/// (`sockstat_seq_show` in net/ipv4/proc.c).
const SOCKSTAT: &str = "net/sockstat";

/// State of a listening socket in `/proc/net/tcp` (`TCP_LISTEN` in include/net/tcp_states.h). They come first, and their `rx_queue` is the number of
/// connections that wait to be accepted.
const LISTENING: &str = "0A";

static COUNTED: Mutex<Vec<Box<dyn Counted>>> = Mutex::new(Vec::new());

/// Whether the task runs.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);

/// A sandbox whose connections are counted.
pub(crate) trait Counted: Send {
    /// Reports whether it has ended.
    fn is_over(&self) -> bool;

    /// Returns a process in its network namespace, once there is one.
    fn process(&self) -> Option<i32>;

    /// Returns its limit of memory in bytes, which can change.
    fn memory_bytes(&self) -> u64;

    /// Ends it, because its connections hold more than that.
    fn end(&self);
}

/// Counts the connections of a sandbox with a network namespace of its own until it ends.
pub(crate) fn count(sandbox: impl Counted + 'static) {
    COUNTED.lock().push(Box::new(sandbox));
    if !IS_COUNTING.swap(true, Ordering::AcqRel) {
        tokio::spawn(count_all(Counting));
    }
}

/// Held by the task.
struct Counting;

impl Drop for Counting {
    fn drop(&mut self) {
        IS_COUNTING.store(false, Ordering::Release);
    }
}

/// Counts until no sandbox is left.
async fn count_all(counting: Counting) {
    let each = belljar_linux::unaccepted_bytes();
    let mut next = 0;
    loop {
        tokio::time::sleep(INTERVAL).await;
        let mut counted = COUNTED.lock();
        counted.retain(|one| !one.is_over());
        if counted.is_empty() {
            // Before the lock is released: whoever adds the next one starts another task.
            drop(counting);
            return;
        }
        // Without the number of the machine, all are looked at.
        let machine = number("/proc/self", SOCKSTAT, "TCP:", "alloc").unwrap_or(u64::MAX);
        let looked_at = EACH.max(counted.len().div_ceil(ROUND)).min(counted.len());
        let start = Instant::now();
        for one in counted.iter().cycle().skip(next % counted.len()).take(looked_at) {
            if start.elapsed() > MAX_TIME {
                break;
            }
            next = (next + 1) % counted.len();
            let most = one.memory_bytes() / each;
            let Some(process) = one.process().filter(|_| machine > most) else { continue };
            let process = format!("/proc/{process}");
            if sockets(&process) > most && unaccepted(&process) > most {
                one.end();
            }
        }
    }
}

/// Returns the number of TCP sockets in the network namespace of the process with this directory in `/proc`.
fn sockets(process: &str) -> u64 {
    let files = [(SOCKSTAT, "TCP:"), ("net/sockstat6", "TCP6:")];
    files.iter().filter_map(|(file, line)| number(process, file, line, "inuse")).sum()
}

/// Returns the number that follows `name` in a line of a file of counters.
fn number(process: &str, file: &str, line: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("{process}/{file}")).ok()?;
    let words = text.lines().find_map(|one| one.strip_prefix(line))?.split_ascii_whitespace();
    words.skip_while(|word| *word != name).nth(1)?.parse().ok()
}

/// Returns the number of connections that wait to be accepted, or `u64::MAX` if there are more than [`MAX_LISTENERS`] listeners.
fn unaccepted(process: &str) -> u64 {
    let files =
        ["net/tcp", "net/tcp6"].iter().filter_map(|file| File::open(format!("{process}/{file}")).ok());
    files.map(|file| queued(BufReader::new(file))).fold(0, u64::saturating_add)
}

fn queued(table: impl std::io::BufRead) -> u64 {
    let lines = table.lines().map_while(Result::ok).skip(1);
    let listening = lines.map_while(|line| {
        let mut words = line.split_ascii_whitespace().skip(3);
        words.next().filter(|state| *state == LISTENING)?;
        let (_, received) = words.next()?.split_once(':')?;
        u64::from_str_radix(received, 16).ok()
    });
    let mut sum = 0_u64;
    for (listener, waiting) in listening.enumerate() {
        sum = if listener < MAX_LISTENERS { sum.saturating_add(waiting) } else { return u64::MAX };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_listeners_are_counted() {
        let header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let row = |state: &str, queues: &str| {
            format!(
                "   0: 0100007F:1F90 00000000:0000 {state} {queues} 00:00000000 00000000     0        0 1 1\n"
            )
        };
        let table = [
            header,
            &row("0A", "00000000:00001000"),
            &row("0A", "00000000:00000002"),
            &row("01", "00000000:00000100"),
        ];
        assert_eq!(queued(table.concat().as_bytes()), 0x1002);
        assert_eq!(queued(header.as_bytes()), 0);
        let idle = row("0A", "00000000:00000000");
        assert_eq!(queued((header.to_owned() + &idle.repeat(MAX_LISTENERS)).as_bytes()), 0);
        let more = header.to_owned() + &idle.repeat(MAX_LISTENERS + 1);
        assert_eq!(queued(more.as_bytes()), u64::MAX);
    }

    #[test]
    fn connections_in_a_queue_are_counted() {
        let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
        let ends = [0; 3].map(|_| std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        // Listeners of others are counted, too.
        assert!(unaccepted("/proc/self") >= 3);
        assert!(sockets("/proc/self") >= 7);
        drop(ends);
    }
}
