//! Process trees and their termination. `/proc` is written by the kernel, but the names in it are chosen by user code.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A process as described by `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) session: i32,
    pub(crate) threads: u32,
    pub(crate) user_ticks: u64,
    pub(crate) system_ticks: u64,
    pub(crate) resident_pages: u64,
    /// Start time in the kernel's ticks: together with the pid, it identifies a process uniquely.
    pub(crate) started_ticks: u64,
    pub(crate) zombie: bool,
    /// True if the process runs, or would if a processor or a disk were free.
    pub(crate) active: bool,
}

impl Stat {
    /// Parses a line of proc_pid_stat(5). The name is in parentheses and may contain anything, parentheses too. None for a process that is
    /// gone by the time its line is written: gVisor's kernel gives 0 for its number, which kill(2) takes for the group of the caller.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (").filter(|(pid, _)| *pid != "0")?;
        let (_, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let pid_at = |index: usize| fields.get(index)?.parse::<i32>().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            zombie: matches!(*fields.first()?, "Z" | "X"),
            active: matches!(*fields.first()?, "R" | "D"),
            started_ticks: number(19)?,
            parent: pid_at(1)?,
            session: pid_at(3)?,
            user_ticks: number(11)?,
            system_ticks: number(12)?,
            threads: u32::try_from(number(17)?).ok()?,
            resident_pages: number(21)?,
        })
    }
}

/// A `/proc` directory.
pub(crate) struct Proc {
    dir: OwnedFd,
    /// True if every process in it except this one belongs to the sandbox.
    pub(crate) whole_namespace: bool,
    /// True if processes that entered the namespace from outside are not the sandbox's: they connect the guest's host to it. User code
    /// starts none without a parent, as orphans become children of the guest.
    skips_entered: bool,
}

impl Proc {
    pub(crate) fn new(dir: OwnedFd, whole_namespace: bool, skips_entered: bool) -> Self {
        Self { dir, whole_namespace, skips_entered }
    }

    /// Returns all visible processes, without those that are skipped.
    ///
    /// # Errors
    /// Fails with the kernel's error if `/proc` cannot be listed, so that this is never mistaken for an empty list.
    pub(crate) fn all(&self) -> Result<Vec<Stat>, Errno> {
        let own = std::process::id().cast_signed();
        let is_skipped = |stat: &Stat| self.skips_entered && stat.parent == 0 && stat.pid != own;
        let mut found = Vec::new();
        // `dir` is a detached mount, whose descriptor cannot be listed itself.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, c".", flags, Mode::empty())?;
        let mut dir = rustix::fs::Dir::new(dir)?;
        while let Some(entry) = dir.read() {
            let entry = entry?;
            if entry.file_name().to_bytes().iter().all(u8::is_ascii_digit)
                && let Ok(name) = entry.file_name().to_str()
                && let Some(stat) = self.read(&format!("{name}/stat")).and_then(|line| Stat::parse(&line))
                && !is_skipped(&stat)
            {
                found.push(stat);
            }
        }
        Ok(found)
    }

    fn read(&self, path: &str) -> Option<String> {
        let file =
            rustix::fs::openat(&self.dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut buffer = [0; 1024];
        let length = rustix::io::read(&file, &mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// Returns the memory of all processes that no file on a disk backs, shared pages once, in bytes. gVisor's kernel counts files in memory,
    /// too, and knows only its own sandbox (`meminfoData` in pkg/sentry/fsimpl/proc/tasks_files.go). `None` if it cannot be read.
    pub(crate) fn anonymous_bytes(&self) -> Option<u64> {
        let text = self.read("meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("AnonPages:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    }

    /// Returns the processor time of a process and of the children that it has waited for, in microseconds; 0 if it has
    /// ended.
    pub(crate) fn cpu_us(&self, pid: i32) -> u64 {
        let line = self.read(&format!("{pid}/stat")).unwrap_or_default();
        // Fields 14 to 17 of proc_pid_stat(5), counted after the name, which may contain anything.
        let fields = line.rsplit_once(") ").map(|(_, rest)| rest.split_ascii_whitespace().skip(11).take(4));
        let ticks: u64 = fields.into_iter().flatten().filter_map(|field| field.parse::<u64>().ok()).sum();
        ticks.saturating_mul(1_000_000 / TICKS_PER_SECOND)
    }

    /// Returns the current time in the ticks of [`Stat::started_ticks`].
    pub(crate) fn ticks_now() -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let rest = u64::try_from(now.tv_nsec).unwrap_or(0) / (1_000_000_000 / TICKS_PER_SECOND);
        seconds.saturating_mul(TICKS_PER_SECOND).saturating_add(rest)
    }

    /// Returns the sandbox's processes without the guest itself.
    ///
    /// # Errors
    /// Fails as [`Self::all`] does.
    pub(crate) fn sandbox_processes(&self) -> Result<Vec<Stat>, Errno> {
        let own = std::process::id().cast_signed();
        let all = self.all()?;
        if self.whole_namespace {
            return Ok(all.into_iter().filter(|stat| stat.pid != own).collect());
        }
        let members = descendants(&all, Some(own), None);
        Ok(all.into_iter().filter(|stat| stat.pid != own && members.contains(&stat.pid)).collect())
    }

    /// Returns the number of threads under the guest's user id, inside the sandbox or not: what RLIMIT_NPROC counts.
    pub(crate) fn threads_of_user(&self) -> u64 {
        let own = rustix::process::geteuid().as_raw();
        let is_own = |stat: &&Stat| {
            let flags = rustix::fs::AtFlags::empty();
            rustix::fs::statat(&self.dir, stat.pid.to_string(), flags).is_ok_and(|found| found.st_uid == own)
        };
        let all = self.all().unwrap_or_default();
        all.iter().filter(is_own).map(|stat| u64::from(stat.threads)).sum()
    }

    /// Returns the number of the sandbox's running processes; `u32::MAX` if they cannot be counted.
    pub(crate) fn count_running(&self) -> u32 {
        let running =
            self.sandbox_processes().map(|members| members.iter().filter(|stat| !stat.zombie).count());
        running.map_or(u32::MAX, |count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Returns a process, its descendants and all members of its session. A reaped process is left out, and so are the
    /// children of another process that may have its pid by now: the pid stays reserved for the session as long as it
    /// has members.
    fn tree_of(&self, pid: i32, is_reaped: bool) -> Vec<i32> {
        let root = (!is_reaped).then_some(pid);
        match self.all() {
            Ok(all) => descendants_in_order(&all, root, Some(pid)),
            Err(_) => root.into_iter().collect(),
        }
    }

    /// Sends `signal` to the whole tree of `pid`, parents before their children, as [`Self::signal_found`] does; returns the number of
    /// processes.
    ///
    /// Before SIGKILL, the tree is stopped: otherwise a shell whose child was killed would continue with its command
    /// line until the shell itself is killed.
    pub(crate) fn signal_tree(&self, pid: i32, is_reaped: bool, signal: i32) -> u32 {
        if signal == SIGKILL {
            self.signal_found(SIGSTOP, || self.tree_of(pid, is_reaped));
        }
        self.signal_found(signal, || self.tree_of(pid, is_reaped))
    }

    /// Sends `signal` to the processes that `find` returns, without the guest; returns their number. Repeats until it returns no new ones,
    /// to catch those that fork meanwhile. What a process starts after it got a signal that it can handle is spared: that is how it
    /// handles it.
    fn signal_found(&self, signal: i32, mut find: impl FnMut() -> Vec<i32>) -> u32 {
        let own = std::process::id().cast_signed();
        let is_final = [SIGKILL, SIGSTOP].contains(&signal);
        let mut signalled = HashSet::new();
        for _ in 0..MAX_TREE_PASSES {
            let mut fresh = find();
            fresh.retain(|member| *member != own && !signalled.contains(member));
            fresh.retain(|member| is_final || self.parent(*member).is_none_or(|it| !signalled.contains(&it)));
            if fresh.is_empty() {
                break;
            }
            // Parents first, whose numbers are lower unless these have begun anew: a shell goes on after a child that was interrupted,
            // unless it was interrupted, too, before.
            fresh.sort_unstable();
            for member in &fresh {
                // Fails for a process that has ended meanwhile.
                let sent = belljar_linux::kill(*member, signal);
                if !is_final {
                    // Stopped processes handle a signal only once they continue.
                    let _ = sent.and(belljar_linux::kill(*member, SIGCONT));
                }
            }
            signalled.extend(fresh);
        }
        u32::try_from(signalled.len()).unwrap_or(u32::MAX)
    }

    fn parent(&self, pid: i32) -> Option<i32> {
        Some(Stat::parse(&self.read(&format!("{pid}/stat"))?)?.parent)
    }

    /// Adds to `members` all processes of the tree of `pid` and all below those that are members already, and returns the ones that still
    /// run. A process stays a member when its parent ends.
    pub(crate) fn extend(&self, pid: i32, is_reaped: bool, members: &mut HashSet<(i32, u64)>) -> Vec<i32> {
        let all = self.all().unwrap_or_default();
        let own = std::process::id().cast_signed();
        let known = all.iter().filter(|stat| members.contains(&(stat.pid, stat.started_ticks)));
        let heads = known.map(|stat| stat.pid).chain((!is_reaped).then_some(pid));
        let tree: HashSet<i32> = descendants_of(&all, heads.collect(), Some(pid)).into_iter().collect();
        let found = all.iter().filter(|stat| tree.contains(&stat.pid) && stat.pid != own);
        members.extend(found.map(|stat| (stat.pid, stat.started_ticks)));
        let is_alive = |stat: &&Stat| !stat.zombie && members.contains(&(stat.pid, stat.started_ticks));
        all.iter().filter(is_alive).map(|stat| stat.pid).collect()
    }

    /// Sends `signal` to the tree of `pid` and to all other `members`, as [`Self::signal_tree`] does; adds those that it finds.
    pub(crate) fn signal_members(
        &self,
        pid: i32,
        is_reaped: bool,
        members: &mut HashSet<(i32, u64)>,
        signal: i32,
    ) {
        if signal == SIGKILL {
            self.signal_found(SIGSTOP, || self.extend(pid, is_reaped, members));
        }
        self.signal_found(signal, || self.extend(pid, is_reaped, members));
    }

    /// Returns the pid and start time of all processes in the tree of a running process, without itself.
    pub(crate) fn below(&self, pid: i32) -> HashSet<(i32, u64)> {
        let all = self.all().unwrap_or_default();
        let members = descendants(&all, Some(pid), Some(pid));
        let own = std::process::id().cast_signed();
        let is_below = |stat: &&Stat| members.contains(&stat.pid) && stat.pid != pid && stat.pid != own;
        all.iter().filter(is_below).map(|stat| (stat.pid, stat.started_ticks)).collect()
    }

    /// Sends `signal` to all processes in the tree of a running process, without itself and those in `spared`, as [`Self::signal_found`] does;
    /// returns their number.
    pub(crate) fn signal_below(&self, pid: i32, spared: &HashSet<(i32, u64)>, signal: i32) -> u32 {
        self.signal_found(signal, || self.below(pid).difference(spared).map(|(member, _)| *member).collect())
    }

    /// Sends `signal` to every process of the sandbox except the guest.
    pub(crate) fn signal_all(&self, signal: i32) {
        if self.whole_namespace {
            let _ = belljar_linux::kill_all(signal);
            let _ = belljar_linux::kill_all(SIGCONT);
            return;
        }
        for _ in 0..MAX_TREE_PASSES {
            let members: Vec<_> = self
                .sandbox_processes()
                .unwrap_or_default()
                .into_iter()
                .filter(|stat| !stat.zombie)
                .collect();
            if members.is_empty() {
                return;
            }
            for stat in members {
                let _ = belljar_linux::kill(stat.pid, signal);
                let _ = belljar_linux::kill(stat.pid, SIGCONT);
            }
            if signal != SIGKILL {
                return;
            }
        }
    }
}

/// Unit of times in `/proc`: the kernel shows user space 100 ticks a second (time(7)).
const TICKS_PER_SECOND: u64 = 100;

pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Maximum number of passes over a tree that keeps growing while it is signalled.
const MAX_TREE_PASSES: u32 = 16;

fn descendants(all: &[Stat], root: Option<i32>, session: Option<i32>) -> HashSet<i32> {
    descendants_in_order(all, root, session).into_iter().collect()
}

/// Returns the same as [`descendants`], parents before their children.
fn descendants_in_order(all: &[Stat], root: Option<i32>, session: Option<i32>) -> Vec<i32> {
    descendants_of(all, root.into_iter().collect(), session)
}

/// Returns these processes, the members of a session, and all below them, parents before their children.
fn descendants_of(all: &[Stat], mut heads: HashSet<i32>, session: Option<i32>) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for stat in all {
        children.entry(stat.parent).or_default().push(stat.pid);
    }
    heads.extend(all.iter().filter(|stat| Some(stat.session) == session).map(|stat| stat.pid));
    // Members of the session are mostly descendants of each other.
    let is_below: HashSet<i32> =
        all.iter().filter(|stat| heads.contains(&stat.parent)).map(|stat| stat.pid).collect();
    let mut todo: VecDeque<i32> = heads.difference(&is_below).copied().collect();
    let (mut seen, mut members) = (HashSet::new(), Vec::new());
    while let Some(pid) = todo.pop_front() {
        if seen.insert(pid) {
            members.push(pid);
            todo.extend(children.get(&pid).into_iter().flatten());
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_cannot_forge_later_fields() {
        let line = "7 (a) R 1 1 (b) S 3 4 5 0 -1 0 0 0 0 0 11 12 0 0 20 0 9 0 100 4096 77 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.pid, stat.parent, stat.session), (7, 3, 5));
        assert_eq!((stat.user_ticks, stat.system_ticks, stat.threads, stat.resident_pages), (11, 12, 9, 77));
        assert_eq!(Stat::parse("garbage"), None);
        assert_eq!(Stat::parse(&line.replacen('7', "0", 1)), None);
        assert_eq!(Stat::parse("7 (x) R"), None);
        // Signal 0 does nothing but check.
        assert_eq!([0, -1].map(|group| belljar_linux::kill(group, 0)), [Err(Errno::SRCH); 2]);
    }

    /// The leader may end, and its children be adopted, between a look at the tree and the next signal.
    #[test]
    fn members_of_a_tree_are_known_after_its_leader_has_ended() {
        use std::io::BufRead as _;
        let proc = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let proc = Proc::new(proc, false, false);
        // A child in a session of its own, and its child.
        let mut leader = std::process::Command::new("/bin/sh")
            .args(["-c", "setsid sh -c 'sleep 60 & echo ready; wait' & wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(leader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (pid, mut members) = (leader.id().cast_signed(), HashSet::new());
        let alive = proc.extend(pid, false, &mut members).len();
        assert!(alive >= 3, "{alive}");
        leader.kill().unwrap();
        leader.wait().unwrap();
        assert_eq!(proc.extend(pid, true, &mut members).len(), alive - 1);
        assert_eq!(proc.extend(pid, true, &mut HashSet::new()).len(), 0);
        proc.signal_members(pid, true, &mut members, SIGKILL);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !proc.extend(pid, true, &mut members).is_empty() {
            assert!(std::time::Instant::now() < end, "they do not end");
            std::thread::yield_now();
        }
    }

    /// A shell that is killed with its tree must not see the death of its child: it would continue with its command line.
    #[test]
    fn shell_does_not_outlive_its_child_in_a_killed_tree() {
        let dir = tempfile::tempdir().unwrap();
        let proc = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let proc = Proc::new(proc, false, false);
        let continued = (0..300)
            .filter(|number| {
                let mark = dir.path().join(number.to_string());
                let mut shell = std::process::Command::new("/bin/sh")
                    .args(["-c", "sleep 60; : > \"$0\"; sleep 60"])
                    .arg(&mark)
                    .spawn()
                    .unwrap();
                let pid = shell.id().cast_signed();
                let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
                while proc.below(pid).is_empty() {
                    assert!(std::time::Instant::now() < end, "the shell starts nothing");
                    std::thread::yield_now();
                }
                assert!(proc.signal_tree(pid, false, SIGKILL) >= 2);
                shell.wait().unwrap();
                mark.exists()
            })
            .count();
        assert_eq!(continued, 0, "of 300 shells went on");
    }

    /// A shell's handler of SIGTERM that starts a program must not lose it to the same signal.
    #[test]
    fn programs_of_a_handler_are_spared() {
        use std::io::BufRead as _;
        let dir = tempfile::tempdir().unwrap();
        let proc = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let proc = Proc::new(proc, false, false);
        let lost = (0..300)
            .filter(|number| {
                let mark = dir.path().join(number.to_string());
                let mut shell = std::process::Command::new("/bin/sh")
                    .args(["-c", "trap '/bin/touch \"$0\"; exit' TERM; sleep 60 & echo ready; wait"])
                    .arg(&mark)
                    .stdout(std::process::Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut line = String::new();
                std::io::BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
                proc.signal_members(shell.id().cast_signed(), false, &mut HashSet::new(), SIGTERM);
                shell.wait().unwrap();
                !mark.exists()
            })
            .count();
        assert_eq!(lost, 0, "of 300 handlers lost their program");
    }

    #[test]
    fn tree_consists_of_descendants_and_session() {
        let stat = |pid, parent, session| Stat {
            pid,
            parent,
            session,
            threads: 1,
            user_ticks: 0,
            system_ticks: 0,
            resident_pages: 0,
            started_ticks: 0,
            zombie: false,
            active: false,
        };
        let all = [stat(1, 0, 1), stat(5, 1, 5), stat(6, 5, 5), stat(7, 6, 7), stat(8, 1, 5), stat(9, 1, 9)];
        let mut tree = descendants_in_order(&all, Some(5), Some(5));
        let position = |pid| tree.iter().position(|member| *member == pid);
        assert!(position(5) < position(6) && position(6) < position(7), "parents come first: {tree:?}");
        tree.sort_unstable();
        assert_eq!(tree, [5, 6, 7, 8], "8 was orphaned but is still in the session; 9 is unrelated");
    }
}
