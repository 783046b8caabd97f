use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use belljar_proto::v1;
use belljar_proto::{ConnectError, ErrorCode};
use belljar_testing::archives::{Tar, gzip, hostile_archives, make_tree, snapshot_tree};
use flate2::Compression;
use tar::EntryType;

use crate::files::tests::{Client, bytes, make_deep, make_fifo, names, start, start_in};

/// A packed archive with its summary.
struct Packed {
    data: Vec<u8>,
    summary: v1::PackSummary,
}

async fn pack(client: &Client, request: v1::PackRequest) -> Result<Packed, ConnectError> {
    pack_with(client, request, || {}).await
}

/// Packs a tree, and runs `meanwhile` after the first message.
async fn pack_with(
    client: &Client,
    request: v1::PackRequest,
    meanwhile: impl FnOnce(),
) -> Result<Packed, ConnectError> {
    let mut stream = client.pack(request).await?;
    let mut data = Vec::new();
    let mut summary = None;
    let mut meanwhile = Some(meanwhile);
    while let Some(message) = stream.message::<v1::PackResponse>().await? {
        let message = message.to_owned_message();
        assert!(summary.is_none() && message.data.len() <= 256 * 1024);
        data.extend_from_slice(&message.data);
        summary = message.summary.into_option();
        if let Some(meanwhile) = meanwhile.take() {
            meanwhile();
        }
    }
    match stream.error() {
        Some(error) => Err(error.clone()),
        None => Ok(Packed { data, summary: summary.expect("a whole archive has a summary") }),
    }
}

async fn unpack(
    client: &Client,
    open: v1::UnpackOpen,
    archive: &[u8],
) -> Result<v1::UnpackResponse, ConnectError> {
    let first = v1::UnpackRequest { open: open.into(), ..Default::default() };
    let pieces =
        archive.chunks(100_000).map(|data| v1::UnpackRequest { data: bytes(data), ..Default::default() });
    let requests: Vec<_> = std::iter::once(first).chain(pieces).collect();
    Ok(client.unpack(futures::stream::iter(requests)).await?.into_owned())
}

fn into(path: &str) -> v1::UnpackOpen {
    v1::UnpackOpen { path: bytes(path), ..Default::default() }
}

#[tokio::test]
async fn archive_round_trip() {
    let (home, client) = start();
    make_tree(&home.path().join("tree"));
    make_fifo(&home.path().join("tree/fifo"));
    let before = snapshot_tree(&home.path().join("tree"));
    for format in [v1::ArchiveFormat::ARCHIVE_FORMAT_TAR, v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP] {
        let request = v1::PackRequest { base: bytes("tree"), format: format.into(), ..Default::default() };
        let packed = pack(&client, request).await.unwrap();
        assert_eq!(
            (packed.summary.entries, packed.summary.skipped, packed.summary.changed),
            (before.len() as u64 - 1, 1, 0)
        );
        let (other, other_client) = start();
        let response = unpack(&other_client, into("new/place"), &packed.data).await.unwrap();
        assert_eq!((response.entries, response.skipped), (packed.summary.entries, 0));
        assert_eq!(response.bytes, packed.summary.bytes);
        let mut after = snapshot_tree(&other.path().join("new/place"));
        after.insert(b"fifo".to_vec(), before[b"fifo".as_slice()].clone());
        for (path, value) in &before {
            let times = value.2 == 1_000_000_000;
            let got = &after[path];
            assert_eq!((value.0, value.1, &value.3), (got.0, got.1, &got.3), "{}", path.escape_ascii());
            assert!(!times || got.2 == value.2, "the time of {}", path.escape_ascii());
        }
        assert_eq!(before.len(), after.len());
        let inode = |path: &str| other.path().join("new/place").join(path).metadata().unwrap().ino();
        assert_eq!(inode("file"), inode("dir/same"), "hard links are kept");
        std::fs::set_permissions(other.path().join("new/place/dir/sub"), PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    std::fs::set_permissions(home.path().join("tree/dir/sub"), PermissionsExt::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn pack_selects_paths_and_refuses_invalid_requests() {
    let (home, client) = start();
    for path in ["a/x.py", "a/x.pyc", "a/b/y.py", "node_modules/big", "a/node_modules/z", "c/w"] {
        std::fs::create_dir_all(home.path().join(path).parent().unwrap()).unwrap();
        std::fs::write(home.path().join(path), path).unwrap();
    }
    let list = |data: &[u8]| {
        let mut archive = tar::Archive::new(data);
        let mut found: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| String::from_utf8(entry.unwrap().path_bytes().into_owned()).unwrap())
            .collect();
        found.sort_unstable();
        found
    };
    let request = |paths: &[&str], exclude: &[&str]| v1::PackRequest {
        paths: paths.iter().map(bytes).collect(),
        exclude: exclude.iter().map(bytes).collect(),
        ..Default::default()
    };
    let packed = pack(&client, request(&["a", "c/w", "a"], &["*.pyc", "node_modules"])).await.unwrap();
    assert_eq!(list(&packed.data), ["a/", "a/b/", "a/b/y.py", "a/x.py", "c/w"]);
    let absolute = home.path().join("c");
    let packed = pack(&client, request(&[absolute.to_str().unwrap()], &[])).await.unwrap();
    assert_eq!(list(&packed.data), ["c/", "c/w"]);
    let packed = pack(&client, request(&[], &["a/**", "/c"])).await.unwrap();
    assert_eq!(list(&packed.data), ["a/", "node_modules/", "node_modules/big"]);

    for (request, code) in [
        (request(&["missing"], &[]), ErrorCode::NotFound),
        (request(&["/etc"], &[]), ErrorCode::InvalidArgument),
        (request(&["../x"], &[]), ErrorCode::InvalidArgument),
        (request(&["a"], &["["]), ErrorCode::InvalidArgument),
        (
            v1::PackRequest { format: v1::ArchiveFormat::ARCHIVE_FORMAT_ZIP.into(), ..Default::default() },
            ErrorCode::InvalidArgument,
        ),
        (v1::PackRequest { base: bytes("missing"), ..Default::default() }, ErrorCode::NotFound),
    ] {
        assert_eq!(pack(&client, request).await.err().unwrap().code, code);
    }
}

#[tokio::test]
async fn sparse_files_stay_sparse() {
    let (home, client) = start_in(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
    let file = std::fs::File::create(home.path().join("huge")).unwrap();
    let huge = (1u64 << 62) + 1;
    // Not every file system supports a file this large.
    let size = if file.set_len(huge).is_ok() { huge } else { 1 << 40 };
    file.set_len(size).unwrap();
    for part in 0..50u64 {
        file.write_all_at(&[u8::try_from(part).unwrap() + 1; 4096], part << 24).unwrap();
    }
    let packed = pack(&client, v1::PackRequest::default()).await.unwrap();
    assert!(packed.data.len() < 1 << 20, "{} bytes", packed.data.len());
    assert_eq!(packed.summary.bytes, 50 * 4096);
    unpack(&client, into("copy"), &packed.data).await.unwrap();
    let copy = std::fs::File::open(home.path().join("copy/huge")).unwrap();
    let stat = copy.metadata().unwrap();
    assert_eq!(stat.size(), size);
    assert!(stat.blocks() * 512 < 1 << 20);
    for part in 0..50u64 {
        let mut content = [0; 4097];
        copy.read_exact_at(&mut content, part << 24).unwrap();
        assert!(content[..4096].iter().all(|byte| u64::from(*byte) == part + 1) && content[4096] == 0);
    }
}

#[tokio::test]
async fn changing_file_keeps_its_announced_length() {
    const SIZE: usize = 32 << 20;
    let (home, client) = start();
    std::fs::write(home.path().join("a"), vec![b'x'; SIZE]).unwrap();
    let file = home.path().join("a");
    type Change<'a> = Box<dyn Fn() + 'a>;
    let changes: [(&str, Change<'_>); 3] = [
        (
            "shorter",
            Box::new(|| std::fs::File::options().write(true).open(&file).unwrap().set_len(10).unwrap()),
        ),
        (
            "longer",
            Box::new(|| {
                std::fs::File::options().append(true).open(&file).unwrap().write_all(b"more").unwrap()
            }),
        ),
        (
            "another",
            Box::new(|| {
                std::fs::write(home.path().join("b"), vec![b'y'; SIZE]).unwrap();
                std::fs::rename(home.path().join("b"), &file).unwrap();
            }),
        ),
    ];
    for (what, change) in changes {
        std::fs::write(&file, vec![b'x'; SIZE]).unwrap();
        let packed =
            pack_with(&client, v1::PackRequest { paths: vec![bytes("a")], ..Default::default() }, change)
                .await
                .unwrap();
        // A replaced file is still the one that was opened; its link count has changed.
        assert_eq!(packed.summary.changed, 1, "{what}");
        assert_eq!(packed.data.len() % 512, 0);
        let mut archive = tar::Archive::new(packed.data.as_slice());
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        assert_eq!(content.len(), SIZE, "{what}");
        assert!(content.iter().all(|byte| *byte == b'x' || (what == "shorter" && *byte == 0)), "{what}");
    }
}

#[tokio::test]
async fn deep_tree_round_trip() {
    let (home, client) = start_in(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
    std::fs::create_dir(home.path().join("deep")).unwrap();
    make_deep(&home.path().join("deep"), 10_000);
    let format = v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP.into();
    let request = v1::PackRequest { paths: vec![bytes("deep")], format, ..Default::default() };
    let packed =
        tokio::time::timeout(Duration::from_secs(60), pack(&client, request)).await.unwrap().unwrap();
    assert_eq!((packed.summary.skipped, packed.summary.changed), (0, 0));
    assert!(packed.summary.entries > 20_000, "{}", packed.summary.entries);
    let limits = v1::UnpackLimits { max_ratio: 1000, ..Default::default() };
    let open = v1::UnpackOpen { limits: limits.into(), ..into("copy") };
    let unpacked = tokio::time::timeout(Duration::from_secs(60), unpack(&client, open, &packed.data))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(unpacked.entries, packed.summary.entries);
    for name in ["deep", "copy"] {
        let remove = v1::RemoveRequest { path: bytes(name), recursive: true, ..Default::default() };
        client.remove(remove).await.unwrap();
    }
}

#[tokio::test]
async fn hostile_archives_are_refused_and_leave_nothing() {
    let (home, client) = start();
    std::fs::create_dir(home.path().join("outside")).unwrap();
    std::fs::write(home.path().join("outside/kept"), "kept").unwrap();
    let target = home.path().join("t");
    std::fs::create_dir(&target).unwrap();
    std::fs::create_dir(target.join("own")).unwrap();
    symlink("../outside", target.join("out")).unwrap();
    std::fs::write(target.join("existing"), "existing").unwrap();
    let before = snapshot_tree(home.path());
    for (what, archive, why) in hostile_archives() {
        let error =
            unpack(&client, into("t"), &archive).await.err().unwrap_or_else(|| panic!("{what} was unpacked"));
        let message = error.message.unwrap_or_default();
        assert!(message.contains(why), "{what}: {message}");
        assert_eq!(
            snapshot_tree(home.path()).keys().collect::<Vec<_>>(),
            before.keys().collect::<Vec<_>>(),
            "{what} left something"
        );
        assert_eq!(std::fs::read(target.join("existing")).unwrap(), b"existing", "{what}");
    }
    // A directory created for the archive is removed as well.
    let invalid = Tar::default().file("../x", "").end();
    unpack(&client, into("new/deep/place"), &invalid).await.unwrap_err();
    assert!(!home.path().join("new").exists());
}

#[tokio::test]
async fn valid_archives_similar_to_hostile_ones_are_unpacked() {
    use EntryType as E;
    let (home, client) = start();
    std::fs::create_dir_all(home.path().join("t/d")).unwrap();
    std::fs::write(home.path().join("t/d/existing"), "old").unwrap();
    symlink("existing", home.path().join("t/d/link")).unwrap();
    let archive = Tar::default()
        .add(E::Directory, "./", "", b"")
        .file("./d/existing", "new")
        .file("d/link", "no link any more")
        .file("twice", "first")
        .file("twice", "second")
        .file("early", "file")
        .add(E::Symlink, "early", "twice", b"")
        .add(E::Symlink, "late", "d", b"")
        .file("late", "file")
        .add(E::Link, "hard", "twice", b"")
        .file("twice", "third")
        .add(E::Fifo, "fifo", "", b"")
        .add(E::Char, "whiteout", "", b"")
        .pax(&[("SCHILY.xattr.security.capability", "x"), ("mtime", "1.5"), ("path", "with\nnewline")])
        .file("short", "pax")
        .end();
    let error = unpack(&client, into("t"), &archive).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AlreadyExists);
    let open = v1::UnpackOpen { overwrite: true, mode_mask: 0o755, ..into("t") };
    let response = unpack(&client, open, &archive).await.unwrap();
    assert_eq!(response.skipped, 2);
    let read = |path: &str| std::fs::read_to_string(home.path().join("t").join(path)).unwrap();
    assert_eq!(
        (read("d/existing"), read("d/link"), read("twice"), read("early"), read("late"), read("hard")),
        (
            "new".into(),
            "no link any more".into(),
            "third".into(),
            "third".into(),
            "file".into(),
            "second".into()
        )
    );
    assert!(home.path().join("t/early").is_symlink() && !home.path().join("t/d/link").is_symlink());
    let stat = home.path().join("t/with\nnewline").metadata().unwrap();
    assert_eq!(
        (stat.mtime(), stat.mtime_nsec(), stat.mode() & 0o7777),
        (1, 500_000_000, 0o755),
        "no set-user-ID, masked"
    );
    let count = names(&home.path().join("t")).len();
    assert_eq!(count, 6, "the FIFO and the whiteout are skipped, and no temporary file remains");

    let open = v1::UnpackOpen { strip_components: 1, links_may_lead_out: true, ..into("stripped") };
    let archive = Tar::default()
        .file("top/a", "a")
        .file("top", "gone")
        .add(E::Link, "top/b/c", "top/a", b"")
        .add(E::Symlink, "top/python", "/usr/bin/python3", b"")
        .end();
    let response = unpack(&client, open, &gzip(&archive)).await.unwrap();
    assert_eq!(response.entries, 3);
    assert_eq!(std::fs::read(home.path().join("stripped/b/c")).unwrap(), b"a");
    assert_eq!(
        std::fs::read_link(home.path().join("stripped/python")).unwrap(),
        Path::new("/usr/bin/python3")
    );
}

#[tokio::test]
async fn archive_bombs_are_refused_by_a_named_limit() {
    let (home, client) = start();
    let many = |count: usize| {
        (0..count).fold(Tar::default(), |tar, index| tar.file(&format!("f{index}"), "x")).end()
    };
    let zeros = Tar::default().add(EntryType::Regular, "zeros", "", &vec![0; 40 << 20]).end();
    let after_end = [Tar::default().file("a", "x").end(), vec![0; 64 << 20]].concat();
    let zip_of_zeros = zip(&[("zeros", 8, &vec![0; 40 << 20], 0o100_644)]);
    let limits = |max_bytes, max_entries, max_ratio| v1::UnpackLimits {
        max_bytes,
        max_entries,
        max_ratio,
        ..Default::default()
    };
    let cases = [
        ("entries", many(101), limits(0, 100, 0), "max_entries"),
        ("bytes", many(101), limits(100, 0, 0), "max_bytes"),
        ("ratio", gzip(&zeros), limits(0, 0, 0), "max_ratio"),
        ("ratio behind the end", gzip(&after_end), limits(0, 0, 0), "max_ratio"),
        ("zip's ratio", zip_of_zeros.clone(), limits(0, 0, 0), "max_ratio"),
        ("zip's bytes", zip_of_zeros.clone(), limits(1 << 20, 0, 5000), "max_bytes"),
        ("zip's own length", zip(&[("a", 0, &[7; 5000], 0o100_644)]), limits(1000, 0, 0), "max_bytes"),
        ("zip's entries", zip(&[("a", 0, b"", 0), ("b", 0, b"", 0)]), limits(0, 1, 0), "max_entries"),
    ];
    for (what, archive, limits, word) in cases {
        let open = v1::UnpackOpen { limits: limits.into(), ..into("t") };
        let error = unpack(&client, open, &archive).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::ResourceExhausted, "{what}: {error:?}");
        assert!(error.message.unwrap().contains(word), "{what}");
        assert!(names(home.path()).is_empty(), "{what} left something");
    }
    for (archive, limits) in [
        (many(100), limits(100, 100, 1)),
        (gzip(&zeros), limits(0, 0, 2000)),
        (zip_of_zeros, limits(0, 0, 2000)),
    ] {
        let open = v1::UnpackOpen { limits: limits.into(), overwrite: true, ..into("t") };
        unpack(&client, open, &archive).await.unwrap();
    }
}

#[tokio::test]
async fn aborted_upload_leaves_nothing() {
    let (home, client) = start();
    let archive = Tar::default().file("a/b", "x").file("c", &"x".repeat(4000)).end();
    let first = v1::UnpackRequest {
        open: into("new/place").into(),
        data: bytes(&archive[..2000]),
        ..Default::default()
    };
    let (sender, receiver) = tokio::sync::mpsc::channel::<v1::UnpackRequest>(1);
    let requests =
        futures::stream::unfold(
            receiver,
            |mut receiver| async move { Some((receiver.recv().await?, receiver)) },
        );
    let call = tokio::spawn(async move { client.unpack(Box::pin(requests)).await.map(drop) });
    sender.send(first).await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !home.path().join("new/place").exists() {
        assert!(std::time::Instant::now() < deadline, "the unpacking did not start");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    call.abort();
    while home.path().join("new").exists() {
        assert!(std::time::Instant::now() < deadline, "leftovers: {:?}", snapshot_tree(home.path()).keys());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Builds a zip from entries of name, method, content and mode.
fn zip(entries: &[(&str, u16, &[u8], u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut list = Vec::new();
    for (name, method, content, mode) in entries {
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let packed = if *method == 8 {
            let mut out = flate2::write::DeflateEncoder::new(Vec::new(), Compression::best());
            out.write_all(content).unwrap();
            out.finish().unwrap()
        } else {
            content.to_vec()
        };
        let offset = u32::try_from(out.len()).unwrap();
        let sizes = [crc.sum(), u32::try_from(packed.len()).unwrap(), u32::try_from(content.len()).unwrap()];
        let mut common = Vec::new();
        common.extend_from_slice(&20u16.to_le_bytes());
        common.extend_from_slice(&0u16.to_le_bytes());
        common.extend_from_slice(&method.to_le_bytes());
        common.extend_from_slice(&[0, 0, 0x21, 0]);
        common.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        common.extend_from_slice(&u16::try_from(name.len()).unwrap().to_le_bytes());
        common.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(b"PK\x03\x04");
        out.extend_from_slice(&common);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&packed);
        list.extend_from_slice(b"PK\x01\x02\x14\x03");
        list.extend_from_slice(&common);
        list.extend_from_slice(&[0; 6]);
        list.extend_from_slice(&(mode << 16).to_le_bytes());
        list.extend_from_slice(&offset.to_le_bytes());
        list.extend_from_slice(name.as_bytes());
    }
    let begin = u32::try_from(out.len()).unwrap();
    let count = u16::try_from(entries.len()).unwrap().to_le_bytes();
    out.extend_from_slice(&list);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    out.extend_from_slice(&[count, count].concat());
    out.extend_from_slice(&u32::try_from(list.len()).unwrap().to_le_bytes());
    out.extend_from_slice(&begin.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out
}

#[tokio::test]
async fn zips_are_unpacked_or_refused() {
    let (home, client) = start();
    let large: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let good = zip(&[
        ("dir/", 0, b"", 0o040_755),
        ("dir/stored", 0, b"stored", 0o104_755),
        ("dir/deflated", 8, &large, 0o100_600),
        ("empty", 8, b"", 0),
        ("link", 0, b"dir/stored", 0o120_777),
    ]);
    let response = unpack(&client, into("t"), &good).await.unwrap();
    assert_eq!((response.entries, response.bytes), (5, 6 + large.len() as u64));
    assert_eq!(std::fs::read(home.path().join("t/link")).unwrap(), b"stored");
    assert_eq!(std::fs::read(home.path().join("t/dir/deflated")).unwrap(), large);
    assert_eq!(home.path().join("t/dir/stored").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(home.path().join("t/empty").metadata().unwrap().mode() & 0o7777, 0o644);
    unpack(&client, into("none"), &zip(&[])).await.unwrap();

    let before = snapshot_tree(home.path());
    let change = |archive: &[u8], from: &[u8], by: &[u8], nth: usize| {
        let mut archive = archive.to_vec();
        let at = (0..archive.len()).filter(|at| archive[*at..].starts_with(from)).nth(nth).unwrap();
        archive[at..at + by.len()].copy_from_slice(by);
        archive
    };
    let one = zip(&[("name", 0, b"CONTENT", 0o100_644)]);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("up", zip(&[("../x", 0, b"x", 0)]), "leads upwards"),
        ("absolute", zip(&[("/x", 0, b"x", 0)]), "absolute"),
        ("link out", zip(&[("l", 0, b"/etc", 0o120_777)]), "is absolute"),
        ("link then write", zip(&[("l", 0, b"d", 0o120_777), ("l/x", 0, b"x", 0)]), "as something else"),
        ("device", zip(&[("null", 0, b"", 0o020_666)]), "is a device"),
        ("other method", zip(&[("a", 14, b"x", 0)]), "method 14"),
        ("content", change(&one, b"CONTENT", b"c", 0), "is corrupt"),
        ("other name", change(&one, b"name", b"nbme", 1), "differ"),
        ("directory's signature", change(&one, b"PK\x01\x02", b"PX", 0), "inconsistent"),
        ("header's signature", change(&one, b"PK\x03\x04", b"PX", 0), "end mark"),
        ("cut", one[..one.len() - 1].to_vec(), "inconsistent"),
        ("more behind", [one.as_slice(), b"x"].concat(), "inconsistent"),
        ("more before", [b"PK\x03\x04", one.as_slice()].concat(), "inconsistent"),
        (
            "deflate",
            {
                let archive = zip(&[("a", 8, &large, 0)]);
                let length = archive.len();
                let mut archive = archive;
                archive[40..length / 2].fill(0xff);
                archive
            },
            "is corrupt",
        ),
        ("no end", b"PK\x03\x04 and no more".to_vec(), "inconsistent"),
    ];
    for (what, archive, why) in cases {
        let error =
            unpack(&client, into("u"), &archive).await.err().unwrap_or_else(|| panic!("{what} was unpacked"));
        let message = error.message.unwrap_or_default();
        assert!(message.contains(why), "{what}: {message}");
        assert_eq!(snapshot_tree(home.path()), before, "{what} left something");
    }
    // Two directory entries that share one content.
    let two = zip(&[("aaaa", 0, &[1; 60], 0), ("bbbb", 0, &[1; 60], 0)]);
    let list = two.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let mut shared = two[two.windows(4).rposition(|bytes| bytes == b"PK\x03\x04").unwrap()..].to_vec();
    let removed = two.len() - shared.len();
    let end = shared.len() - 22;
    let begin = u32::try_from(list - removed).unwrap();
    shared[end + 16..end + 20].copy_from_slice(&begin.to_le_bytes());
    for at in [list - removed, list - removed + 50] {
        shared[at + 42..at + 46].fill(0);
        shared[at + 46..at + 50].copy_from_slice(b"bbbb");
    }
    let error = unpack(&client, into("u"), &shared).await.unwrap_err();
    assert!(error.message.as_deref().unwrap().contains("overlap"), "{error:?}");
    assert_eq!(snapshot_tree(home.path()), before);
}
