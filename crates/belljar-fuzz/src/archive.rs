//! Archives from untrusted sources, and patterns.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belljar_engine::v1;
use belljar_guest::fuzzing as guest;
use tar::{EntryType, Header};

use crate::data::{Input, check_text};

/// Limits of unpacking, in bytes and entries.
const MAX_BYTES: u64 = 1 << 20;
const MAX_ENTRIES: u64 = 100;

/// Checks a tar: a byte of switches, then a raw tar, or the parts of one with valid checksums.
pub(crate) fn archive_tar(data: &[u8]) {
    let mut input = Input(data);
    let switches = input.byte();
    if switches & 1 == 0 {
        return unpack(switches, v1::ArchiveFormat::ARCHIVE_FORMAT_TAR, input.0);
    }
    let mut archive = Vec::new();
    while !input.is_empty() {
        append(&mut archive, &mut input);
    }
    archive.resize(archive.len() + 1024, 0);
    unpack(switches, v1::ArchiveFormat::ARCHIVE_FORMAT_TAR, &archive);
}

/// Appends an entry: its kind, switches, name, target, content, and possibly false sizes.
fn append(archive: &mut Vec<u8>, input: &mut Input<'_>) {
    let (kind, lies) = (input.byte(), input.byte());
    let [name, target, content] = [(); 3].map(|()| input.piece());
    let mut header = if lies & 1 == 0 { Header::new_gnu() } else { Header::new_ustar() };
    header.set_entry_type(EntryType::new(kind));
    header.set_size(if lies & 2 == 0 { content.len() as u64 } else { input.number() });
    header.set_mode(u32::from(lies) << 6 | 0o600);
    header.set_mtime(u64::from(lies));
    header.set_uid(0);
    header.set_gid(0);
    let old = header.as_old_mut();
    for (field, text) in [(&mut old.name, name), (&mut old.linkname, target)] {
        let length = text.len().min(field.len());
        field[..length].copy_from_slice(&text[..length]);
    }
    if let Some(gnu) = header.as_gnu_mut().filter(|_| lies & 4 != 0) {
        gnu.set_real_size(input.number());
        for place in &mut gnu.sparse {
            place.set_offset(u64::from(input.byte()));
            place.set_length(u64::from(input.byte()));
        }
        gnu.set_is_extended(lies & 8 != 0);
    }
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

/// Checks a zip or a tar.gz: a byte of switches, then the archive.
pub(crate) fn archive_zip(data: &[u8]) {
    let mut input = Input(data);
    let switches = input.byte();
    let format = match switches & 1 {
        0 => v1::ArchiveFormat::ARCHIVE_FORMAT_ZIP,
        _ => v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP,
    };
    unpack(switches, format, input.0);
}

fn unpack(switches: u8, format: v1::ArchiveFormat, archive: &[u8]) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let target = dir.path().join("target");
    std::fs::create_dir_all(target.join("there")).unwrap();
    std::os::unix::fs::symlink("..", target.join("out")).unwrap();
    std::fs::write(dir.path().join("canary"), "canary").unwrap();
    let limits = v1::UnpackLimits {
        max_bytes: MAX_BYTES,
        max_entries: MAX_ENTRIES,
        max_ratio: 100,
        ..Default::default()
    };
    let open = v1::UnpackOpen {
        path: bytes::Bytes::from_static(b"target"),
        format: format.into(),
        strip_components: u32::from(switches >> 1 & 1),
        overwrite: switches & 4 != 0,
        limits: limits.into(),
        ..Default::default()
    };
    let unpacked = guest::unpack(dir.path(), &open, archive);
    // Nothing beside the target was touched, and a failure leaves nothing behind.
    assert_eq!(names(dir.path()), ["canary", "target"]);
    assert_eq!(std::fs::read(dir.path().join("canary")).unwrap(), b"canary");
    match unpacked {
        Ok(response) => {
            assert!(response.bytes <= MAX_BYTES && response.entries <= MAX_ENTRIES, "{response:?}");
        }
        Err(message) => {
            check_text(&message);
            assert_eq!(names(&target), ["out", "there"], "after {message}");
            assert!(names(&target.join("there")).is_empty(), "after {message}");
        }
    }
    check_tree(&target, &target);
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Checks that no link except the original one leads out, and that no file has a set-ID or sticky bit.
fn check_tree(root: &Path, dir: &Path) {
    // The archive may have removed permissions of its directories.
    let _ = std::fs::set_permissions(dir, PermissionsExt::from_mode(0o700));
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stat = path.symlink_metadata().unwrap();
        if stat.is_symlink() {
            let leads_out = path.canonicalize().is_ok_and(|target| !target.starts_with(root));
            let is_original =
                std::fs::read_link(&path).unwrap() == Path::new("..") && path == root.join("out");
            assert!(!leads_out || is_original, "{} leads out", path.display());
        } else {
            assert!(stat.is_file() || stat.is_dir());
            assert_eq!(stat.permissions().mode() & 0o7000, 0, "{}", path.display());
            if stat.is_dir() {
                check_tree(root, &path);
            }
        }
    }
}

/// Checks a pattern, prefixed by its length, and a path.
pub(crate) fn glob(data: &[u8]) {
    let mut input = Input(data);
    let pattern = input.piece();
    let path = input.0;
    let Some(matches) = guest::glob_matches(pattern, path) else { return };
    // A pattern without special characters matches only itself.
    let is_plain = !pattern.iter().any(|byte| b"*?[\\/".contains(byte));
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if is_plain {
        assert_eq!(matches, name == pattern);
    }
    if pattern == b"*" || pattern == b"**" || pattern == b"**/*" {
        assert!(matches);
    }
    // A prefix of `**/` does not change whether a name matches.
    if !pattern.contains(&b'/') && matches {
        let anywhere = [b"**/", pattern].concat();
        assert_eq!(guest::glob_matches(&anywhere, path), Some(true));
    }
}
