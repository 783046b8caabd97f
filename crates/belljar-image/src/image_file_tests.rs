use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::Header;

use super::*;

const LIMITS: ImageFileLimits = ImageFileLimits { max_bytes: 1 << 20, max_layers: 4 };

/// Parts of an image, by their names.
type Parts = BTreeMap<String, Vec<u8>>;

/// An entry of a tar: its name, and its content or where it leads.
type Entry<'a> = (&'a str, EntryType, &'a [u8]);

fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        // Written directly, because the library refuses hostile names.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        let mut data: &[u8] = content;
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            header.as_mut_bytes()[157..157 + content.len()].copy_from_slice(content);
            data = b"";
        }
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn files<'a>(all: &[(&'a str, &'a [u8])]) -> Vec<Entry<'a>> {
    all.iter().map(|(name, content)| (*name, EntryType::Regular, *content)).collect()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

fn hex_of(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// The parts of an image of `docker save`, by their names.
fn docker_parts(layer: &[u8], diff_id: &str) -> Parts {
    let config = format!(
        r#"{{"architecture":"{}","os":"linux","config":{{"Env":["A=1"]}},"rootfs":{{"type":"layers","diff_ids":["sha256:{diff_id}"]}}}}"#,
        crate::oci::architecture()
    );
    let name = format!("{}.json", hex_of(config.as_bytes()));
    let manifest =
        format!(r#"[{{"Config":"{name}","RepoTags":["app:1.0","app:latest"],"Layers":["abc/layer.tar"]}}]"#);
    BTreeMap::from([
        (name, config.into_bytes()),
        ("abc/layer.tar".to_owned(), layer.to_vec()),
        ("abc/VERSION".to_owned(), b"1.0".to_vec()),
        ("manifest.json".to_owned(), manifest.into_bytes()),
        ("repositories".to_owned(), b"{}".to_vec()),
    ])
}

/// The parts of an image layout of one layer.
fn layout_parts(layer: &[u8], names: &[&str]) -> Parts {
    let mut parts = BTreeMap::new();
    let mut blob = |content: &[u8]| {
        parts.insert(format!("blobs/sha256/{}", hex_of(content)), content.to_vec());
        format!(r#""digest":"sha256:{}","size":{}"#, hex_of(content), content.len())
    };
    let (config, layer) = (blob(b"{}"), blob(layer));
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{{{config}}},"layers":[{{"mediaType":"{LAYER_TYPE}",{layer}}}]}}"#
    );
    let manifest = blob(manifest.as_bytes());
    let entries: Vec<String> = names
        .iter()
        .map(|name| {
            format!(
                r#"{{"mediaType":"{MANIFEST_TYPE}",{manifest},"annotations":{{"io.containerd.image.name":"{name}"}}}}"#
            )
        })
        .collect();
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(","));
    parts.insert("index.json".to_owned(), index.into_bytes());
    parts.insert("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
    parts
}

fn tar_of(parts: &Parts) -> Vec<u8> {
    let entries: Vec<(&str, &[u8])> = parts.iter().map(|(name, content)| (&**name, &**content)).collect();
    tar(&files(&entries))
}

/// Reads a tar, and returns the image with the files of its layout.
fn read_named(source: &[u8], name: Option<&str>) -> Result<(ImageFile, Vec<String>), String> {
    let dir = tempfile::tempdir().unwrap();
    let name = name.map(|name| name.parse().unwrap());
    let read = read_image_file(source, dir.path(), name.as_ref(), LIMITS, &|_| true);
    let read = read.map_err(|error| error.to_string())?;
    let blobs = std::fs::read_dir(dir.path().join("blobs/sha256")).unwrap();
    let mut found: Vec<String> =
        blobs.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    for hex in &found {
        let content = std::fs::read(dir.path().join("blobs/sha256").join(hex)).unwrap();
        assert_eq!(hex_of(&content), *hex);
    }
    let index = std::fs::read(dir.path().join("index.json")).unwrap();
    let chosen = match oci::choose(&index, None).unwrap() {
        oci::Chosen::Manifest(one) => one,
        oci::Chosen::Index(_) => panic!("the layout has one manifest"),
    };
    assert_eq!(chosen.digest, read.digest);
    Ok((read, found))
}

fn read(source: &[u8]) -> Result<(ImageFile, Vec<String>), String> {
    read_named(source, None)
}

fn refused(source: &[u8]) -> String {
    read(source).unwrap_err()
}

#[test]
fn docker_save_becomes_a_layout() {
    let layer = tar(&files(&[("a", b"content")]));
    let plain = read(&tar_of(&docker_parts(&layer, &hex_of(&layer)))).unwrap();
    let names: Vec<String> = plain.0.names.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["docker.io/library/app:1.0", "docker.io/library/app:latest"]);
    assert_eq!(plain.1.len(), 3, "the manifest, the configuration and the layer");
    assert!(plain.1.contains(&hex_of(&layer)));
    // Compressed layers have the digest of their content, and the file itself may be compressed.
    let packed = gzip(&layer);
    let parts = docker_parts(&packed, &hex_of(&layer));
    let (image, blobs) = read(&gzip(&tar_of(&parts))).unwrap();
    assert!(blobs.contains(&hex_of(&packed)) && image.bytes > 0);
    // One layer may be a link to another: docker save writes equal ones once.
    let mut parts = docker_parts(&layer, &hex_of(&layer));
    let content = parts.remove("abc/layer.tar").unwrap();
    let mut entries: Vec<Entry<'_>> =
        parts.iter().map(|(name, content)| (&**name, EntryType::Regular, &**content)).collect();
    entries.push(("def/layer.tar", EntryType::Regular, &content));
    entries.push(("abc/layer.tar", EntryType::Symlink, b"../def/layer.tar"));
    assert_eq!(read(&tar(&entries)).unwrap().0.digest, plain.0.digest);
}

#[test]
fn image_layouts_are_read() {
    let layer = tar(&files(&[("a", b"content")]));
    let (image, blobs) = read(&tar_of(&layout_parts(&layer, &["ghcr.io/org/app:1"]))).unwrap();
    assert_eq!(image.names[0].to_string(), "ghcr.io/org/app:1");
    assert_eq!(blobs.len(), 3);
    // Names below `./`, as tar writes them, and entries of directories.
    let parts = layout_parts(&layer, &["1.0"]);
    let dotted: Vec<(String, &[u8])> =
        parts.iter().map(|(name, content)| (format!("./{name}"), &**content)).collect();
    let mut entries =
        vec![("./", EntryType::Directory, b"".as_slice()), ("./blobs/", EntryType::Directory, b"")];
    entries.extend(dotted.iter().map(|(name, content)| (&**name, EntryType::Regular, *content)));
    assert_eq!(read(&tar(&entries)).unwrap().1, blobs);
}

#[test]
fn one_of_several_images_is_named() {
    let layer = tar(&files(&[("a", b"content")]));
    let source = tar_of(&layout_parts(&layer, &["a.example/x:1", "a.example/y:1"]));
    let error = refused(&source);
    assert_eq!(error, "name: give that of one; the file has several images: a.example/x:1, a.example/y:1");
    let error = read_named(&source, Some("z")).unwrap_err();
    assert!(error.starts_with("name: docker.io/library/z:latest is not in the file"), "{error}");
    let (image, _) = read_named(&source, Some("a.example/y:1")).unwrap();
    assert_eq!(image.names[0].to_string(), "a.example/y:1");
}

#[test]
fn files_that_lie_are_refused() {
    let layer = tar(&files(&[("a", b"content")]));
    let docker = |diff_id: &str| docker_parts(&layer, diff_id);
    let right = hex_of(&layer);
    let layout = layout_parts(&layer, &["app:1"]);
    let changed = |parts: &Parts, change: &dyn Fn(&mut Parts)| {
        let mut parts = parts.clone();
        change(&mut parts);
        refused(&tar_of(&parts))
    };
    let layer_name = format!("blobs/sha256/{right}");
    let index = |from: &'static str, to: &'static str| {
        move |parts: &mut Parts| {
            let text = String::from_utf8(parts["index.json"].clone()).unwrap().replace(from, to);
            parts.insert("index.json".to_owned(), text.into_bytes());
        }
    };
    for (error, expected) in [
        (refused(b""), "it has neither index.json nor manifest.json"),
        (refused(&[7; 2048]), "it is neither a tar of docker save nor one of an OCI image layout"),
        (refused(b"print(1)\n"), "it is neither a tar of docker save nor one of an OCI image layout"),
        (refused(&tar_of(&docker(&"0".repeat(64)))), "the layer abc/layer.tar has the digest sha256:"),
        (
            changed(&docker(&right), &|parts| drop(parts.remove("abc/layer.tar"))),
            "abc/layer.tar is missing in it",
        ),
        (
            changed(&docker(&right), &|parts| drop(parts.insert("manifest.json".into(), b"{".to_vec()))),
            "its manifest.json is invalid",
        ),
        (
            changed(&layout, &|parts| drop(parts.insert(layer_name.clone(), b"other".to_vec()))),
            "has the digest sha256:",
        ),
        (changed(&layout, &|parts| drop(parts.remove(&layer_name))), "is missing in it"),
        (changed(&layout, &index("\"size\":", "\"size\":1")), "bytes, not 1"),
        (changed(&layout, &index("sha256:", "sha256:../")), "invalid digest"),
        (
            changed(
                &layout,
                &index(
                    "\"annotations\"",
                    "\"platform\":{\"os\":\"linux\",\"architecture\":\"s390x\"},\"annotations\"",
                ),
            ),
            "no image matches linux/",
        ),
        (
            refused(&tar(&[("../index.json", EntryType::Regular, b"{}")])),
            "\"../index.json\" is not a name in an image",
        ),
        (refused(&tar(&[("/index.json", EntryType::Regular, b"{}")])), "is not a name in an image"),
        (refused(&tar(&[("a/../b", EntryType::Directory, b"")])), "is not a name in an image"),
        (
            refused(&tar(&[("index.json", EntryType::Symlink, b"/etc/passwd")])),
            "the link index.json leads out of it",
        ),
        (refused(&tar(&[("a/b", EntryType::Symlink, b"../../etc/passwd")])), "the link a/b leads out of it"),
        (refused(&tar(&[("index.json", EntryType::Link, b"../x")])), "is not a name in an image"),
        (refused(&tar(&[("index.json", EntryType::Symlink, b"index.json")])), "it has neither"),
        (refused(&tar(&[("disk", EntryType::Block, b"")])), "disk is neither a file, a directory nor a link"),
        (refused(&tar(&[("fifo", EntryType::Fifo, b"")])), "fifo is neither"),
        (refused(&tar(&files(&[("a", b"1"), ("a", b"2")]))), "a is in it twice"),
        (refused(&tar(&files(&[("a", &[0; 2 << 20])]))), "its files have more than 1048576 bytes"),
        (refused(&[tar(&files(&[("a", b"1")])), vec![1; 2 << 20]].concat()), "follow the end of the tar"),
    ] {
        assert!(error.starts_with("image: ") && error.contains(expected), "{expected}: {error}");
    }
    let whole = tar_of(&docker(&right));
    let error = refused(&whole[..whole.len() / 2]);
    assert!(error.starts_with("image: "), "{error}");
}

#[test]
fn long_names_are_read_within_bounds() {
    let layer = tar(&files(&[("a", b"content")]));
    let parts = layout_parts(&layer, &["app:1"]);
    let long = "n".repeat(300);
    let record = format!("{} path=index.json\n", "path=index.json\n".len() + 3);
    let mut entries = vec![
        ("x", EntryType::XHeader, record.as_bytes()),
        ("shorter", EntryType::Regular, &*parts["index.json"]),
        ("././@LongLink", EntryType::GNULongName, long.as_bytes()),
        ("n", EntryType::Regular, b"left out"),
    ];
    entries.extend(
        parts
            .iter()
            .filter(|(name, _)| *name != "index.json")
            .map(|(name, content)| (&**name, EntryType::Regular, &**content)),
    );
    assert_eq!(read(&tar(&entries)).unwrap().1.len(), 3);
    let record = vec![b'n'; 100 << 10];
    let error = refused(&tar(&[("././@LongLink", EntryType::GNULongName, &record)]));
    assert!(error.contains("a name or its attributes have 102400 bytes"), "{error}");
    let error =
        refused(&tar(&[("x", EntryType::XHeader, b"12 size=123\n"), ("a", EntryType::Regular, b"1")]));
    assert!(error.contains("too large for the format"), "{error}");
}

#[test]
fn full_disks_are_asked_before_files_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let source = tar(&files(&[("a", b"1")]));
    let error = read_image_file(&*source, dir.path(), None, LIMITS, &|bytes| bytes == 0).unwrap_err();
    assert!(error.to_string().contains("there is no room"), "{error}");
    // Nothing is written while a layer is read, which ends as well when nobody waits for it any more.
    let layer = tar(&files(&[("a", b"content")]));
    let mut parts = docker_parts(&gzip(&layer), &hex_of(&layer));
    let source = tar_of(&parts);
    let stopped = tempfile::tempdir().unwrap();
    let error = read_image_file(&*source, stopped.path(), None, LIMITS, &|bytes| bytes > 0).unwrap_err();
    assert!(error.to_string().contains("reading it has been stopped"), "{error}");
    // Layers are counted before any is read, and all content counts.
    let manifest = String::from_utf8(parts["manifest.json"].clone()).unwrap();
    let names = ["\"abc/layer.tar\""; 5].join(",");
    let manifest = manifest.replace("\"abc/layer.tar\"", &names);
    parts.insert("manifest.json".to_owned(), manifest.into_bytes());
    let error = refused(&tar_of(&parts));
    assert!(error.contains("it has 5 layers; at most 4 are allowed"), "{error}");
    let error = refused(&tar(&[("d/", EntryType::Directory, &vec![0; 2 << 20])]));
    assert!(error.contains("its files have more than 1048576 bytes"), "{error}");
}
