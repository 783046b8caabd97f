//! Reports of the kernel and of a launch's processes, and requests of the host to the guest.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use belljar_guest::fuzzing as guest;
use belljar_guest_config::GuestConfig;
use belljar_linux::fuzzing as linux;
use belljar_linux::{CONTROLLERS, CgroupLimits, REPORT_LEN, Report};

use crate::data::{Input, check_text, text};

pub(crate) fn launch_report(data: &[u8]) {
    let (records, _) = data.as_chunks::<REPORT_LEN>();
    for record in records {
        if let Some(report) = Report::decode(record) {
            assert_eq!(report.encode(), *record, "{report:?} has more than one record");
        }
    }
}

/// Checks the layout of control groups: a byte of switches, the mount table, and after a NUL the groups.
pub(crate) fn cgroup_tables(data: &[u8]) {
    let mut input = Input(data);
    let switches = input.byte();
    let text = text(input.0);
    let (mounts, own) = text.split_once('\0').unwrap_or((&text, ""));
    let base = (switches & 1 != 0).then_some(Path::new("/base"));
    let is_writable = switches & 2 != 0;
    let layout = linux::cgroup_layout(mounts, own, base, switches & 4 != 0, is_writable);
    // Each controller is found exactly once, or missing with a reason.
    if layout.v2_limits {
        assert!(layout.v2.is_some() && layout.v1.is_empty() && layout.missing.is_empty());
    } else {
        for controller in CONTROLLERS {
            let found = layout.v1.iter().filter(|(name, _)| name == controller).count();
            let missing = layout.missing.iter().filter(|(name, _)| name == controller).count();
            assert_eq!(found + missing, 1, "{controller}: {layout:?}");
        }
    }
    assert_eq!(layout.is_complete(), layout.missing.is_empty());
    if !is_writable {
        assert!(layout.v2.is_none() && layout.v1.is_empty(), "{layout:?}");
    }
    let targets: Vec<_> = mounts.lines().filter_map(linux::cgroup_mount).map(|(_, target)| target).collect();
    for dir in
        layout.v2.iter().filter(|dir| *dir != Path::new("/base")).chain(layout.v1.iter().map(|(_, dir)| dir))
    {
        // The table's own paths come from the kernel; the part added to them must not leave them.
        let stays = |rest: &Path| !rest.components().any(|part| part == Component::ParentDir);
        let is_below = targets.iter().any(|target| dir.strip_prefix(target).is_ok_and(stays));
        assert!(is_below, "{dir:?} is outside of every hierarchy");
    }
    let limits = CgroupLimits { memory_bytes: 1 << 30, cpu_millis: 500, pids: 64 };
    let plans = layout.plan("a0000000000000000000", &limits);
    assert_eq!(plans.len(), usize::from(layout.v2.is_some()) + layout.v1.len());
    // Every limit is written somewhere if no controller is missing.
    if layout.is_complete() {
        assert!(plans.iter().map(|plan| plan.settings.len()).sum::<usize>() >= 3);
    }
    assert!(["v1", "v2", "v1 with v2 for kill", "none"].contains(&layout.describe()));
}

/// Checks a number: a name up to the first end of line, then the file.
pub(crate) fn cgroup_number(data: &[u8]) {
    let text = text(data);
    let (name, file) = text.split_once('\n').unwrap_or((&text, ""));
    if let Some(found) = linux::cgroup_number(file, Some(name)) {
        assert!(file.contains(&found.to_string()) || file.contains('0') || file.contains('+'));
        assert!(file.contains(name));
    }
    if let Some(number) = linux::cgroup_number(file, None) {
        assert_eq!(linux::cgroup_number(&format!("x 1\nname {number}\n"), Some("name")), Some(number));
    }
}

/// Checks a raw line, and a valid line with values and a process name from the input.
pub(crate) fn proc_stat(data: &[u8]) {
    let _ = guest::proc_stat(&text(data));
    // The name of a process must not affect the numbers.
    let mut input = Input(data);
    let (ppid, session) = (i32::from(input.byte()), i32::from(input.byte()));
    let (utime, pages) = (input.number(), input.number());
    let state = ["R", "S", "Z", "X"][usize::from(input.byte() % 4)];
    let name = text(input.take(64));
    let line = format!(
        "4242 ({name}) {state} {ppid} 1 {session} 0 -1 0 0 0 0 0 {utime} 12 0 0 20 0 9 0 100 4096 {pages} 0 0"
    );
    let stat = guest::proc_stat(&line).expect("a valid line");
    let expected = guest::Stat {
        pid: 4242,
        parent: ppid,
        session,
        threads: 9,
        user_ticks: utime,
        system_ticks: 12,
        resident_pages: pages,
        zombie: state == "Z" || state == "X",
    };
    assert_eq!(stat, expected, "{line:?}");
}

pub(crate) fn tcp_table(data: &[u8]) {
    for line in text(data).lines() {
        if guest::listening(line).is_some() {
            assert!(line.contains("0A"), "{line:?} does not listen");
        }
    }
    let mut input = Input(data);
    let port = u16::from(input.byte()) << 8 | u16::from(input.byte());
    let state = input.byte();
    let line =
        format!("   0: 00000000:{port:04X} 00000000:0000 {state:02X} 00000000:00000000 00:00000000 00000000");
    let expected = (state == 0x0a).then_some(port);
    assert_eq!(guest::listening(&line), expected);
}

pub(crate) fn stream_marks(data: &[u8]) {
    let mut input = Input(data);
    let mut pieces = Vec::new();
    while !input.is_empty() {
        pieces.push(match input.byte() % 4 {
            0 => format!("\x1e0123456789abcdef{:08x}", input.byte()).into_bytes(),
            1 => b"\x1e0123456789abcdef00"[..usize::from(input.byte() % 20)].to_vec(),
            _ => input.piece().to_vec(),
        });
    }
    let whole = pieces.concat();
    let output = guest::marked_output(&[&whole], false);
    assert!(output.len() <= whole.len());
    let length = usize::from(data.first().copied().unwrap_or_default()) + 1;
    let parts: Vec<&[u8]> = whole.chunks(length).collect();
    for parts in [vec![whole.as_slice()], parts] {
        for waits in [false, true] {
            assert_eq!(guest::marked_output(&parts, waits), output, "in parts of {length}, waits: {waits}");
        }
    }
}

pub(crate) fn guest_path(data: &[u8]) {
    let home = Path::new("/home/user");
    match guest::request_path(home, data) {
        Ok(path) => {
            assert!(path.is_absolute() && data.len() <= 4096 && !data.is_empty() && !data.contains(&0));
            let bytes = path.as_os_str().as_bytes();
            assert!(bytes == data || path.starts_with(home), "{path:?}");
            if let Some((parent, name)) = guest::split_path(bytes) {
                assert!(!name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/'));
                // Joining the two parts gives the same path.
                let joined =
                    Path::new(std::ffi::OsStr::from_bytes(parent)).join(std::ffi::OsStr::from_bytes(name));
                assert_eq!(joined, path.components().collect::<std::path::PathBuf>());
            }
        }
        Err(message) => {
            assert!(message.starts_with("path: "), "{message:?}");
            check_text(&message);
        }
    }
    let shown = guest::shown_path(data);
    check_text(&shown);
    let mut input = Input(data);
    let bits = u32::try_from(input.number() & 0xffff_ffff).unwrap();
    let mode = guest::request_mode(bits, 0o644);
    assert_eq!(mode, (bits <= 0o7777).then_some(if bits == 0 { 0o644 } else { bits }));
}

pub(crate) fn guest_config(data: &[u8]) {
    let Ok(config) = serde_json::from_str::<GuestConfig>(&text(data)) else { return };
    let json = serde_json::to_string(&config).expect("a configuration can be written");
    let again: GuestConfig = serde_json::from_str(&json).expect("a written configuration can be read");
    assert_eq!(serde_json::to_string(&again).unwrap(), json);
    assert_eq!(u128::from(config.grace_ms), config.grace().as_millis());
}
