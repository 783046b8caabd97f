use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use jiff::Timestamp;

use super::super::head::Head;
use super::super::record::NewRecord;
use super::super::writer::chain;
use super::*;

const SECRET: [u8; 32] = [7; 32];

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn database(&self) -> PathBuf {
        self.0.path().join("belljar.db")
    }

    fn open(&self) -> JournalFile {
        JournalFile::open(&self.database(), SECRET, Durability::Power).unwrap()
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("belljar.db.audit")
    }
}

/// Returns `count` records after `head`.
fn records(head: Head, count: usize) -> Vec<Chained> {
    let record = || Box::new(NewRecord::new(Timestamp::UNIX_EPOCH, "acme", "exec", "ok"));
    chain(head, &(0..count).map(|_| record()).collect::<Vec<_>>())
}

fn seqs(records: &[Chained]) -> Vec<i64> {
    records.iter().map(|(record, _)| record.seq).collect()
}

#[test]
fn records_are_read_back_until_cleared() {
    let dir = Dir::new();
    let mut journal = dir.open();
    assert_eq!(journal.read().unwrap(), []);
    assert!(journal.allocate().unwrap() && journal.is_allocated().unwrap());
    assert_eq!(journal.read().unwrap(), []);
    let written = records(Head::EMPTY, 5);
    journal.append(&written[..1]).unwrap();
    journal.append(&written[1..]).unwrap();
    drop(journal);
    assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let mut journal = dir.open();
    assert!(journal.is_allocated().unwrap());
    assert_eq!(journal.read().unwrap(), written);
    journal.clear().unwrap();
    assert_eq!(journal.read().unwrap(), []);
}

#[test]
fn direct_writes_make_the_same_file_as_others() {
    let (dir, other_dir) = (Dir::new(), Dir::new());
    let (mut journal, mut other) = (dir.open(), other_dir.open());
    other.direct = None;
    for journal in [&mut journal, &mut other] {
        journal.allocate().unwrap();
    }
    let has_direct = journal.direct.is_some();
    let written = records(Head::EMPTY, 300);
    let mut rest = written.as_slice();
    // Some groups end in the block in which they begin, others span several.
    for len in [1, 1, 2, 40, 1, 7, 100, 1, 147] {
        let (group, after) = rest.split_at(len);
        journal.append(group).unwrap();
        other.append(group).unwrap();
        assert_eq!(fs::read(dir.path()).unwrap(), fs::read(other_dir.path()).unwrap());
        rest = after;
    }
    assert_eq!(journal.read().unwrap(), written);
    journal.switch();
    journal.append(&records(written[299].0.head(), 3)).unwrap();
    assert_eq!(journal.read().unwrap().len(), 303);
    assert_eq!(journal.direct.is_some(), has_direct, "no write was refused");
}

#[test]
fn refused_direct_write_is_made_as_others() {
    let dir = Dir::new();
    let mut journal = dir.open();
    journal.allocate().unwrap();
    let written = records(Head::EMPTY, 4);
    journal.append(&written[..2]).unwrap();
    // It fails with EINVAL, as on a file system with larger blocks: what is written there is no number.
    let refusing = OpenOptions::new().write(true).open("/proc/self/oom_score_adj");
    journal.direct = Some(refusing.unwrap());
    journal.append(&written[2..]).unwrap();
    assert!(journal.direct.is_none());
    assert_eq!(journal.read().unwrap(), written);
}

#[test]
fn reused_segment_hides_its_older_records() {
    let dir = Dir::new();
    let mut journal = dir.open();
    journal.allocate().unwrap();
    // Frames of the same length: the older ones after the new ones are well-formed.
    let written = records(Head { seq: 100, hash: [1; 32] }, 9);
    journal.append(&written[..4]).unwrap();
    journal.switch();
    journal.append(&written[4..7]).unwrap();
    assert_eq!(journal.read().unwrap(), written[..7]);
    journal.switch();
    journal.append(&written[7..]).unwrap();
    assert_eq!(seqs(&journal.read().unwrap()), [105, 106, 107, 108, 109]);
}

#[test]
fn torn_or_forged_frame_ends_the_segment() {
    let dir = Dir::new();
    let mut journal = dir.open();
    journal.allocate().unwrap();
    let written = records(Head::EMPTY, 3);
    let mut ends = Vec::new();
    for record in &written {
        journal.append(std::slice::from_ref(record)).unwrap();
        ends.push(usize::try_from(journal.offset).unwrap());
    }
    let whole = fs::read(dir.path()).unwrap();
    for place in ends[1]..ends[2] {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        fs::write(dir.path(), &bytes).unwrap();
        assert_eq!(seqs(&journal.read().unwrap()), [1, 2], "byte {place}");
    }
    for len in [0, 3, 40, ends[1] - 1] {
        fs::write(dir.path(), &whole[..len]).unwrap();
        let expected = usize::from(len == ends[1] - 1);
        assert_eq!(journal.read().unwrap().len(), expected, "{len} bytes");
        assert!(!journal.is_allocated().unwrap());
    }
    // A journal that was written with another secret.
    fs::write(dir.path(), &whole).unwrap();
    drop(journal);
    let other = JournalFile::open(&dir.database(), [8; 32], Durability::Power).unwrap();
    assert_eq!(other.read().unwrap(), []);
}

#[test]
fn segment_takes_what_fits() {
    let dir = Dir::new();
    let mut journal = dir.open();
    journal.allocate().unwrap();
    let written = records(Head::EMPTY, 4000);
    let count = journal.fitting(&written);
    assert!((1000..4000).contains(&count), "{count}");
    journal.append(&written[..count]).unwrap();
    assert_eq!(journal.fitting(&written[count..]), 0);
    journal.switch();
    journal.append(&written[count..count + 2]).unwrap();
    assert_eq!(journal.read().unwrap(), written[..count + 2]);
}

#[test]
fn journal_put_aside_keeps_its_records() {
    let dir = Dir::new();
    let mut journal = dir.open();
    journal.allocate().unwrap();
    let written = records(Head::EMPTY, 2);
    journal.append(&written).unwrap();
    let content = fs::read(dir.path()).unwrap();
    let aside = journal.put_aside().unwrap();
    assert_eq!(fs::read(aside).unwrap(), content);
    assert_eq!(journal.read().unwrap(), []);
}
