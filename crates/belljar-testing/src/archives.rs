//! Well-formed and hostile trees and archives.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

/// Returns everything below a directory by path: type, mode, time, content or target.
pub fn snapshot_tree(root: &Path) -> BTreeMap<Vec<u8>, (char, u32, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let shown = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            let value = if stat.is_dir() {
                dirs.push(path);
                ('d', stat.mode() & 0o7777, stat.mtime(), Vec::new())
            } else if stat.is_symlink() {
                ('l', 0, 0, std::fs::read_link(path).unwrap().into_os_string().into_vec())
            } else if stat.is_file() {
                let content = if stat.size() < 1 << 24 { std::fs::read(path).unwrap() } else { Vec::new() };
                ('f', stat.mode() & 0o7777, stat.mtime(), content)
            } else {
                ('?', 0, 0, Vec::new())
            };
            found.insert(shown, value);
        }
    }
    found
}

/// Sets the times of a file to a day in 2001.
pub fn set_old(path: &Path) {
    let time = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
}

/// Creates a tree with entries of all types.
pub fn make_tree(root: &Path) {
    std::fs::create_dir_all(root.join("dir/sub")).unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    std::fs::write(root.join("file"), "content").unwrap();
    std::fs::write(root.join("none"), "").unwrap();
    std::fs::write(root.join("dir/large"), (0..300_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
        .unwrap();
    std::fs::hard_link(root.join("file"), root.join("dir/same")).unwrap();
    symlink("../file", root.join("dir/link")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    let mut odd: Vec<Vec<u8>> =
        [&b"new\nline"[..], b"\xff\xfe", b" space. ", b"-rf", b"\x01\x1b[31m", "\u{202e}x".as_bytes()]
            .map(<[u8]>::to_vec)
            .to_vec();
    odd.extend([vec![b'n'; 100], vec![b'n'; 101], vec![b'n'; 255]]);
    for name in odd {
        std::fs::write(root.join("dir/sub").join(std::ffi::OsStr::from_bytes(&name)), &name).unwrap();
    }
    symlink("t".repeat(300), root.join("long-target")).unwrap();
    std::fs::set_permissions(root.join("file"), PermissionsExt::from_mode(0o751)).unwrap();
    std::fs::set_permissions(root.join("dir/sub"), PermissionsExt::from_mode(0o555)).unwrap();
    for path in ["file", "dir/sub", "dir/large", "empty", "dir"] {
        set_old(&root.join(path));
    }
}

/// Builds a tar entry by entry.
#[derive(Default)]
pub struct Tar(Vec<u8>);

impl Tar {
    /// Adds an entry with content.
    #[must_use]
    pub fn add(mut self, kind: EntryType, name: &str, target: &str, content: &[u8]) -> Self {
        let header = header(kind, name, target, content.len() as u64);
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// Adds a file.
    #[must_use]
    pub fn file(self, name: &str, content: &str) -> Self {
        self.add(EntryType::Regular, name, "", content.as_bytes())
    }

    /// Adds a header as it is.
    #[must_use]
    pub fn raw(mut self, header: &Header) -> Self {
        self.0.extend_from_slice(header.as_bytes());
        self
    }

    /// Adds a PAX record for the next entry.
    #[must_use]
    pub fn pax(self, records: &[(&str, &str)]) -> Self {
        let content: String = records.iter().map(|(key, value)| pax(key, value)).collect();
        self.add(EntryType::XHeader, "pax", "", content.as_bytes())
    }

    /// Returns the archive with its end mark.
    #[must_use]
    pub fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// Returns a header in GNU's form with a correct checksum.
#[must_use]
pub fn header(kind: EntryType, name: &str, target: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o6777);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..name.len()].copy_from_slice(name.as_bytes());
    gnu.linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    header
}

/// Returns a PAX record.
#[must_use]
pub fn pax(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}")
}

/// Returns archives that must be refused, each with a part of the expected error. Some rely on the content of the
/// target: a directory `own`, a file `existing`, and a link `out` to a directory beside the target.
pub fn hostile_archives() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    use EntryType as E;
    let broken_sum = {
        let mut header = header(E::Regular, "a", "", 0);
        header.as_mut_bytes()[0] = b'b';
        header
    };
    let first = Tar::default().file("good", "good");
    vec![
        ("up", Tar::default().file("good", "x").file("../up", "x").end(), "leads upwards"),
        ("up in the middle", Tar::default().file("a/../../up", "x").end(), "leads upwards"),
        ("absolute", Tar::default().file("/tmp/x", "x").end(), "absolute"),
        ("absolute by PAX", Tar::default().pax(&[("path", "/tmp/x")]).file("a", "x").end(), "absolute"),
        ("link out", Tar::default().add(E::Symlink, "l", "../x", b"").end(), "leads out"),
        ("absolute link", Tar::default().add(E::Symlink, "l", "/etc", b"").end(), "is absolute"),
        (
            "link by way of a link",
            Tar::default().add(E::Symlink, "a/l", "..", b"").add(E::Symlink, "m", "a/l/../x", b"").end(),
            "may lead out",
        ),
        (
            "link then write",
            Tar::default().add(E::Symlink, "l", "d", b"").file("l/x", "x").end(),
            "as something else",
        ),
        ("write through an existing link", Tar::default().file("out/x", "x").end(), "not a directory"),
        (
            "link over a link",
            Tar::default()
                .add(E::Symlink, "l", "own", b"")
                .add(E::Directory, "l", "", b"")
                .file("l/x", "x")
                .end(),
            "as something else",
        ),
        ("hard link out", Tar::default().add(E::Link, "l", "../outside/kept", b"").end(), "leads upwards"),
        (
            "hard link to an existing file",
            Tar::default().add(E::Link, "l", "existing", b"").end(),
            "not an earlier file",
        ),
        (
            "hard link by a link",
            Tar::default().add(E::Link, "l", "out/kept", b"").end(),
            "not an earlier file",
        ),
        (
            "hard link to a link moved up",
            Tar::default().add(E::Symlink, "a/b/l", "../../x", b"").add(E::Link, "h", "a/b/l", b"").end(),
            "leads out",
        ),
        (
            "hard link to a directory",
            Tar::default().add(E::Directory, "d", "", b"").add(E::Link, "l", "d", b"").end(),
            "not an earlier file",
        ),
        (
            "device",
            Tar::default()
                .raw(&{
                    let mut header = header(E::Char, "null", "", 0);
                    header.set_device_major(1).unwrap();
                    header.set_device_minor(3).unwrap();
                    header.set_cksum();
                    header
                })
                .end(),
            "is a device",
        ),
        ("block device", Tar::default().add(E::Block, "sda", "", b"").end(), "is a device"),
        (
            "PAX key twice",
            Tar::default().pax(&[("path", "a"), ("path", "b")]).file("c", "x").end(),
            "given twice",
        ),
        (
            "PAX twice",
            Tar::default().pax(&[("path", "a")]).pax(&[("mtime", "1")]).file("c", "x").end(),
            "given twice",
        ),
        ("two sizes", Tar::default().pax(&[("size", "1024")]).file("c", "x").end(), "both 1 and 1024"),
        ("invalid size", Tar::default().pax(&[("size", "-1")]).file("c", "x").end(), "attribute size is"),
        ("broken PAX", Tar::default().add(E::XHeader, "p", "", b"5 a=b\n").file("c", "x").end(), "malformed"),
        (
            "global name",
            Tar::default().add(E::XGlobalHeader, "g", "", pax("path", "x").as_bytes()).end(),
            "for all entries",
        ),
        (
            "long name twice",
            Tar::default()
                .add(E::GNULongName, "L", "", b"a\0")
                .add(E::GNULongName, "L", "", b"b\0")
                .file("c", "x")
                .end(),
            "given twice",
        ),
        (
            "long name and PAX name",
            Tar::default().add(E::GNULongName, "L", "", b"a\0").pax(&[("path", "b")]).file("c", "x").end(),
            "given twice",
        ),
        ("record without an entry", Tar::default().pax(&[("path", "a")]).end(), "no entry after"),
        ("PAX holes", Tar::default().pax(&[("GNU.sparse.major", "1")]).file("c", "x").end(), "--format=gnu"),
        ("size of a directory", Tar::default().add(E::Directory, "d", "", b"x").end(), "has content"),
        ("size of a link", Tar::default().add(E::Symlink, "l", "a", b"x").end(), "has content"),
        ("huge size", Tar::default().raw(&header(E::Regular, "a", "", u64::MAX >> 1)).end(), "max_bytes"),
        (
            "larger than any file",
            Tar::default().raw(&header(E::Regular, "a", "", u64::MAX)).end(),
            "larger than any file",
        ),
        (
            "huge record",
            Tar::default().raw(&header(E::GNULongName, "a", "", 1 << 30)).end(),
            "record of names",
        ),
        (
            "holes that do not add up",
            Tar::default()
                .raw(&{
                    let mut header = header(E::GNUSparse, "a", "", 512);
                    header.as_gnu_mut().unwrap().set_real_size(512);
                    header.set_cksum();
                    header
                })
                .end(),
            "do not add up",
        ),
        ("other type", Tar::default().add(E::new(b'M'), "a", "", b"").end(), "type 'M'"),
        ("directory over a file", Tar::default().file("a", "x").file("a/b", "x").end(), "not a directory"),
        ("file over a directory", Tar::default().file("a/b", "x").file("a", "x").end(), "as something else"),
        ("checksum", first.raw(&broken_sum).end(), "checksum"),
        ("no end", Tar::default().file("a", "x").0, "end mark"),
        ("cut", Tar::default().file("a", &"x".repeat(2000)).0[..1000].to_vec(), "end mark"),
        ("empty", Vec::new(), "end mark"),
        (
            "one empty block",
            {
                let mut tar = Tar::default().file("a", "x");
                tar.0.resize(tar.0.len() + 512, 0);
                tar.file("b", "x").end()
            },
            "in the middle",
        ),
        ("text", b"This is no archive at all, only some text. ".repeat(20), "checksum"),
        ("zstd", b"\x28\xb5\x2f\xfd and more".to_vec(), "zstd"),
        ("xz", b"\xfd7zXZ\0 and more".to_vec(), "xz"),
        ("cut gzip", gzip(&Tar::default().file("a", "x").end())[..40].to_vec(), "corrupt gzip data"),
        ("file exists", Tar::default().file("new", "x").file("existing", "x").end(), "already exists"),
        (
            "directory exists",
            Tar::default().file("new", "x").file("own", "x").end(),
            "a directory with this name already exists",
        ),
    ]
}

/// Compresses with gzip.
#[must_use]
pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    out.write_all(data).unwrap();
    out.finish().unwrap()
}
