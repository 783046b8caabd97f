use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;

use tar::EntryType;

use belljar_testing::archives::{Tar, header, hostile_archives, make_tree, snapshot_tree};

use super::{CreatedDirs, Format, PackOptions, Packer, UnpackOptions, UnpackSummary, Unpacker};
use crate::error::{ErrorKind, FileError};

/// Options with which the host unpacks archives from a sandbox.
const OPTIONS: UnpackOptions = UnpackOptions {
    format: Some(Format::Tar),
    strip: 0,
    mode_mask: 0o755,
    overwrite: true,
    links_may_lead_out: false,
    is_host_target: true,
    has_room: None,
    max_bytes: 4 << 20,
    max_entries: 1000,
    max_ratio: 200,
};

async fn unpack(target: &Path, options: &UnpackOptions, archive: &[u8]) -> Result<UnpackSummary, FileError> {
    let target = OwnedFd::from(std::fs::File::open(target).unwrap());
    let mut unpacker = Unpacker::begin(target, CreatedDirs::default(), options).unwrap();
    for piece in archive.chunks(700) {
        if let Err(error) = unpacker.take(piece).await {
            unpacker.discard().await;
            return Err(error);
        }
    }
    unpacker.finish().await
}

async fn pack(tree: &Path) -> (Vec<u8>, u64) {
    let mut packer = Packer::begin(tree, &PackOptions::default()).unwrap();
    let mut archive = Vec::new();
    while let Some(piece) = packer.next().await {
        archive.extend_from_slice(&piece);
    }
    (archive, packer.summary().skipped)
}

#[tokio::test]
async fn archive_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, copy) = (dir.path().join("tree"), dir.path().join("copy"));
    make_tree(&tree);
    std::fs::create_dir(&copy).unwrap();
    let (archive, skipped) = pack(&tree).await;
    let options = UnpackOptions { mode_mask: 0o777, ..OPTIONS };
    let unpacked = unpack(&copy, &options, &archive).await.unwrap();
    assert_eq!((unpacked.skipped, skipped), (0, 0));
    assert_eq!(snapshot_tree(&copy), snapshot_tree(&tree));
}

#[tokio::test]
async fn hostile_archives_leave_the_host_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("outside")).unwrap();
    std::fs::write(dir.path().join("outside/kept"), "kept").unwrap();
    let target = dir.path().join("t");
    std::fs::create_dir(&target).unwrap();
    std::fs::create_dir(target.join("own")).unwrap();
    symlink("../outside", target.join("out")).unwrap();
    std::fs::write(target.join("existing"), "existing").unwrap();
    let before = snapshot_tree(dir.path());
    let names = || {
        snapshot_tree(dir.path())
            .into_iter()
            .map(|(name, (kind, mode, _, content))| (name, kind, mode, content))
    };
    let untouched: Vec<_> = names().collect();
    for (what, archive, why) in hostile_archives() {
        // With these options files are replaced, and only tar is read.
        if what == "file exists" {
            continue;
        }
        let error =
            unpack(&target, &OPTIONS, &archive).await.err().unwrap_or_else(|| panic!("{what} was unpacked"));
        let error_is_of_a_tar = !["zstd", "xz", "cut gzip"].contains(&what);
        assert!(!error_is_of_a_tar || error.to_string().contains(why), "{what}: {error}");
        let outward = ["leads out", "is absolute", "may lead out"].contains(&why) && what.contains("link");
        assert_eq!(error.kind() == ErrorKind::OutwardLink, outward, "{what}: {error}");
        assert_eq!(names().collect::<Vec<_>>(), untouched, "{what} left something");
    }
    assert_eq!(snapshot_tree(dir.path()).len(), before.len());
}

#[tokio::test]
async fn archives_over_a_limit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let many =
        (0..=OPTIONS.max_entries).fold(Tar::default(), |tar, number| tar.file(&format!("f{number}"), ""));
    let holes = Tar::default().raw(&{
        let mut header = header(EntryType::GNUSparse, "holes", "", 0);
        header.as_gnu_mut().unwrap().set_real_size(1 << 40);
        header.set_cksum();
        header
    });
    let large = Tar::default().raw(&header(EntryType::Regular, "large", "", OPTIONS.max_bytes + 1));
    for (archive, why) in
        [(many.end(), "1000 entries"), (holes.end(), "at most 4194304"), (large.end(), "max_bytes")]
    {
        let error = unpack(dir.path(), &OPTIONS, &archive).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(snapshot_tree(dir.path()).len(), 0);
    }
}

#[tokio::test]
async fn outward_links_are_created_on_request_and_never_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (target, outside) = (dir.path().join("t"), dir.path().join("outside"));
    std::fs::create_dir(&target).unwrap();
    std::fs::create_dir(&outside).unwrap();
    let outside_path = outside.to_str().unwrap();
    let options = UnpackOptions { links_may_lead_out: true, ..OPTIONS };
    let link = || {
        Tar::default().add(EntryType::Symlink, "l", "../outside", b"").add(EntryType::Symlink, "m", "/", b"")
    };
    unpack(&target, &options, &link().end()).await.unwrap();
    assert_eq!(std::fs::read_link(target.join("m")).unwrap(), Path::new("/"));
    // In one archive, and in a second one into the same directory.
    for tar in [link(), Tar::default()] {
        let error = unpack(&target, &options, &tar.file("l/x", "x").end()).await.unwrap_err();
        assert!(error.to_string().contains("directory"), "{error}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "{outside_path}");
    }
}

#[tokio::test]
async fn existing_directories_keep_their_modes_and_new_ones_get_masked_modes() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700)).unwrap();
    let archive = Tar::default()
        .add(EntryType::Directory, "own/", "", b"")
        .add(EntryType::Directory, "own/new/", "", b"")
        .file("own/new/file", "x")
        .end();
    // Each entry in the archive has mode 6777.
    unpack(dir.path(), &OPTIONS, &archive).await.unwrap();
    let mode = |name: &str| dir.path().join(name).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("own"), mode("own/new"), mode("own/new/file")), (0o700, 0o755, 0o755));
}

#[tokio::test]
async fn discarded_archive_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut unpacker =
        Unpacker::begin(std::fs::File::open(dir.path()).unwrap().into(), CreatedDirs::default(), &OPTIONS)
            .unwrap();
    unpacker.take(&Tar::default().file("a", "x").end()[..1024]).await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    unpacker.discard().await;
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(Packer::begin(&dir.path().join("missing"), &PackOptions::default()).is_err());
}

/// Returns the entries of what an overlay has changed, as `tar` sees them: type and name.
async fn changes(upper: &Path, lower: &Path) -> Vec<String> {
    let options = PackOptions { lower: Some(lower.to_owned()), ..PackOptions::default() };
    let mut packer = Packer::begin(upper, &options).unwrap();
    let mut archive = Vec::new();
    while let Some(piece) = packer.next().await {
        archive.extend_from_slice(&piece);
    }
    assert_eq!(packer.summary().skipped, 0);
    let mut archive = tar::Archive::new(archive.as_slice());
    let entries = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let header = entry.header();
        let is_device = header.entry_type() == EntryType::Char;
        if is_device {
            let number = (header.device_major().unwrap(), header.device_minor().unwrap());
            assert_eq!(number, (Some(0), Some(0)));
        }
        format!("{}{}", if is_device { "-" } else { "+" }, entry.path().unwrap().display())
    });
    let mut entries: Vec<String> = entries.collect();
    entries.sort();
    entries
}

#[tokio::test]
async fn what_an_overlay_removes_is_packed_as_whiteouts() {
    let dir = tempfile::tempdir().unwrap();
    let (lower, upper) = (dir.path().join("lower"), dir.path().join("upper"));
    let file = |path: std::path::PathBuf| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    };
    // Longer than a path that the kernel takes at once.
    let part = format!("{}/", "d".repeat(200));
    let deep = part.repeat(30);
    for name in ["gone", "new/kept", "new/hidden", "new/sub/old", "merged/old", "was_a_dir/old", "elsewhere"]
    {
        file(lower.join(name));
    }
    symlink("new", lower.join("link")).unwrap();
    for name in
        ["new/kept", "new/sub/young", "merged/young", "was_a_dir", "link/young", "elsewhere/young", "fresh/a"]
    {
        file(upper.join(name));
    }
    for tree in [&lower, &upper] {
        let mut at = OwnedFd::from(std::fs::File::open(tree).unwrap());
        for name in deep.split_terminator('/') {
            let _ = rustix::fs::mkdirat(&at, name, rustix::fs::Mode::from_raw_mode(0o755));
            at = crate::dir::open_dir(std::os::fd::AsFd::as_fd(&at), name, false).unwrap();
        }
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let name = if tree == &lower { "old" } else { "young" };
        rustix::fs::openat(&at, name, flags, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
    }
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, upper.join("gone"), kind, rustix::fs::Mode::empty(), 0).unwrap();
    for name in ["new", "link", "elsewhere", "fresh", part.as_str()] {
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(upper.join(name), c"user.overlay.opaque", b"y", flags);
        if set == Err(rustix::io::Errno::OPNOTSUPP) {
            // This file system, of a kernel before 6.6, has no opaque directories.
            return;
        }
        set.unwrap();
    }
    let mut expected: Vec<String> =
        ["-gone", "+new/", "+new/kept", "-new/hidden", "+new/sub/", "-new/sub/old"]
            .iter()
            .chain(&["+new/sub/young", "+merged/", "+merged/young", "+was_a_dir", "+link/", "+link/young"])
            .chain(&["+elsewhere/", "+elsewhere/young", "+fresh/", "+fresh/a"])
            .map(ToString::to_string)
            .collect();
    expected.extend((1..=30).map(|depth| format!("+{}", part.repeat(depth))));
    expected.extend([format!("-{deep}old"), format!("+{deep}young")]);
    expected.sort();
    assert_eq!(changes(&upper, &lower).await, expected);
}
