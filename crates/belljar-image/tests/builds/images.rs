//! Separate trees: OCI images made by the cases, and Debian if a mirror is available.

use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_image::{BuildEvent, BuildInput};
use belljar_model::{MountMode, VolumeImage, VolumeMount};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::fixture::{Case, Fixture};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    vec![
        ("oci_image_becomes_a_separate_tree", |fixture| Box::pin(image(fixture))),
        ("volumes_are_mounted_in_a_separate_tree", |fixture| Box::pin(volumes(fixture))),
        ("only_steps_with_a_network_have_a_resolver", |fixture| Box::pin(resolver(fixture))),
        ("debian_is_built_from_a_mirror", |fixture| Box::pin(debian(fixture))),
        ("steps_that_break_their_tree_fail_by_name", |fixture| Box::pin(broken(fixture))),
        ("layer_with_a_wrong_digest_is_refused", |fixture| Box::pin(changed(fixture))),
        ("document_with_a_wrong_digest_is_refused", |fixture| Box::pin(replaced(fixture))),
        ("nothing_is_written_through_a_link_out_of_the_tree", |fixture| Box::pin(leading_out(fixture))),
        ("temporary_files_are_in_the_place_for_them", |fixture| Box::pin(temporary(fixture))),
        ("entries_that_tar_and_its_list_may_see_otherwise_are_refused", |fixture| {
            Box::pin(ambiguous(fixture))
        }),
        ("names_and_owners_of_an_image_are_nothing_else", |fixture| Box::pin(names(fixture))),
        ("layer_that_changes_while_it_is_unpacked_is_the_one_of_its_digest", |fixture| {
            Box::pin(swapped(fixture))
        }),
        ("links_devices_and_set_uid_files_of_an_image_are_harmless", |fixture| Box::pin(hostile(fixture))),
    ]
}

/// An entry of a layer: path, type, mode, and content or target.
pub(crate) type Entry<'a> = (&'a str, EntryType, u32, &'a [u8]);

/// Returns a gzipped layer.
fn layer(entries: &[Entry<'_>]) -> Vec<u8> {
    layer_of(entries, 0, "")
}

/// Returns a gzipped layer whose files have an owner, by number and by name.
fn layer_of(entries: &[Entry<'_>], owner: u64, user: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, kind, mode, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_username(user).unwrap();
        // Written directly, because the library refuses hostile paths.
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        let mut data: &[u8] = b"";
        match kind {
            EntryType::Symlink | EntryType::Link => {
                header.as_mut_bytes()[157..157 + content.len()].copy_from_slice(content);
            }
            EntryType::Block | EntryType::Char => {
                header.set_device_major(1).unwrap();
                header.set_device_minor(5).unwrap();
            }
            _ => data = content,
        }
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// Returns programs of this machine for a tiny image, with the libraries that they need.
fn programs(names: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut files = std::collections::BTreeMap::new();
    for name in names {
        let path = ["/usr/bin", "/bin"].map(|dir| format!("{dir}/{name}"));
        let path = path.iter().find(|path| Path::new(path).exists()).unwrap();
        files.insert(format!("bin/{name}"), std::fs::read(path).unwrap());
        let output = Command::new("ldd").arg(path).output().unwrap();
        for word in
            String::from_utf8_lossy(&output.stdout).split_whitespace().filter(|word| word.starts_with('/'))
        {
            files.insert(word.trim_start_matches('/').to_owned(), std::fs::read(word).unwrap());
        }
    }
    files.into_iter().collect()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes an image layout into `dir`, and returns its path.
pub(crate) fn layout(dir: &Path, layers: &[Vec<u8>]) -> PathBuf {
    let root = dir.join("layout");
    let blobs = root.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let blob = |bytes: &[u8]| {
        let digest = digest(bytes);
        std::fs::write(blobs.join(&digest), bytes).unwrap();
        format!("\"digest\":\"sha256:{digest}\",\"size\":{}", bytes.len())
    };
    let config =
        blob(br#"{"config":{"Env":["PATH=/bin","FROM_IMAGE=yes"],"WorkingDir":"/work","User":"app"}}"#);
    let layers: Vec<String> = layers
        .iter()
        .map(|layer| {
            format!(r#"{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip",{}}}"#, blob(layer))
        })
        .collect();
    let manifest = blob(format!(r#"{{"config":{{{config}}},"layers":[{}]}}"#, layers.join(",")).as_bytes());
    let index = format!(
        r#"{{"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json",{manifest}}}]}}"#
    );
    std::fs::write(root.join("index.json"), index).unwrap();
    root
}

/// Returns a layer with a shell, a few programs and the entries in `more`.
pub(crate) fn base_layer(more: &[Entry<'_>]) -> Vec<u8> {
    let files =
        programs(&["sh", "cat", "ls", "id", "mkdir", "rm", "ln", "grep", "test", "head", "stat", "chmod"]);
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for (path, content) in &files {
        entries.push((path, EntryType::Regular, 0o755, content));
    }
    entries.extend_from_slice(more);
    layer(&entries)
}

/// Whatever the image has in its place: code may write to where it leads.
async fn temporary(fixture: Fixture) {
    use EntryType::{Directory, Symlink};
    let var = ("var/", Directory, 0o755, &b""[..]);
    let kept = ("var/tmp", Symlink, 0o777, &b"../tmp"[..]);
    for (number, (entry, expected)) in [
        (("var/tmp", Symlink, 0o777, &b"/"[..]), "/tmp"),
        (("var/tmp", Symlink, 0o777, &b"../usr"[..]), "/tmp"),
        (("var/tmp", Symlink, 0o777, &b"missing"[..]), "/tmp"),
        (("var/tmp/", Directory, 0o755, &b""[..]), "/tmp"),
        (kept, "../tmp"),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = fixture.path().join(number.to_string());
        std::fs::create_dir(&dir).unwrap();
        let root = layout(&dir, &[base_layer(&[var, entry])]);
        let built = fixture.build_ok(OCI, &input(root)).await;
        let seen = fixture.sh(&built, "ls -l /var/tmp").await.text;
        assert!(seen.trim_end().ends_with(&format!("/var/tmp -> {expected}")), "{number}: {seen}");
    }
}

/// A step that removes what finishing the tree, or the next step, needs has failed itself.
async fn broken(fixture: Fixture) {
    let root = layout(fixture.path(), &[base_layer(&[("work/", EntryType::Directory, 0o755, b"")])]);
    for (steps, expected) in [
        (
            "[[step]]\nrun = \"echo a\"\n[[step]]\nrun = \"rm -rf /bin /lib /lib64; exit 0\"\n",
            "step 2 of 2 (run): rm -rf",
        ),
        ("[[step]]\ncopy = { from = \"a\", to = \"/bin\" }\n", "step 1 of 1 (copy)"),
    ] {
        let files = [("a".to_owned(), (0o644, bytes::Bytes::from_static(b"a")))].into();
        let input = BuildInput { files, ..input(root.clone()) };
        let (built, _) = fixture.build(&format!("{OCI}{steps}"), &input).await;
        let error = built.unwrap_err();
        assert!(matches!(error, belljar_image::BuildError::Step { .. }), "{error:?}");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    fixture.wait_for_no_loops().await;
}

const OCI: &str = "name = \"tiny\"\nbase = \"oci\"\nimage = \"layout\"\n";

fn input(image: PathBuf) -> BuildInput {
    BuildInput { image: Some(image), ..BuildInput::default() }
}

async fn image(fixture: Fixture) {
    use EntryType::{Directory, Regular};
    let lower = base_layer(&[
        ("work/", Directory, 0o755, b""),
        ("work/kept", Regular, 0o644, b"kept\n"),
        ("work/gone", Regular, 0o644, b"gone\n"),
        ("opaque/", Directory, 0o755, b""),
        ("opaque/old", Regular, 0o644, b"old\n"),
    ]);
    let upper = layer(&[
        ("work/.wh.gone", Regular, 0o644, b""),
        ("opaque/.wh..wh..opq", Regular, 0o644, b""),
        ("opaque/new", Regular, 0o644, b"new\n"),
    ]);
    let root = layout(fixture.path(), &[lower, upper]);
    let text = format!("{OCI}[[step]]\nrun = \"echo $FROM_IMAGE > made; mkdir /new\"\n");
    let built = fixture.build_ok(&text, &input(root.clone())).await;
    assert_eq!(built.start.workdir.as_deref(), Some("/work"));
    let output = fixture
        .sh(&built, "ls /work /opaque /; cat /work/made /etc/passwd /etc/hostname; echo $$; id -u")
        .await;
    for expected in
        ["kept", "made", "opaque:\nnew\n", "yes\n", "user:x:1000", "belljar\n", "\nnew\n", "1000\n"]
    {
        assert!(output.text.contains(expected), "{expected}: {output:?}");
    }
    assert!(!output.text.contains("gone") && !output.text.contains(".wh."), "{output:?}");
    assert_eq!(output.isolation.tree, "template");
    // The same image as a tar gives the same layer.
    let tar = fixture.path().join("image.tar");
    let packed = Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&root).arg(".").status().unwrap();
    assert!(packed.success());
    assert_eq!(fixture.build_ok(&text, &input(tar)).await.layers, built.layers);
    // No layer has the working directory.
    let dir = fixture.path().join("bare");
    std::fs::create_dir(&dir).unwrap();
    let text = format!("{OCI}[[step]]\nrun = \"echo there > made\"\n");
    let built = fixture.build_ok(&text, &input(layout(&dir, &[base_layer(&[])]))).await;
    let output = fixture.sh(&built, "cat /work/made").await;
    assert_eq!(output.text, "there\n", "{output:?}");
}

/// Tests of reachability are in `crates/belljar/tests/network`.
/// Mounts volumes at paths that the tree lacks, where it has a file, below a symbolic link, and on a disk.
async fn volumes(fixture: Fixture) {
    use EntryType::{Directory, Regular, Symlink};
    let base = base_layer(&[
        ("opt/", Directory, 0o755, b""),
        ("opt/kept", Regular, 0o644, b"kept\n"),
        ("srv", Symlink, 0o777, b"/etc"),
        ("data", Regular, 0o644, b"hidden\n"),
    ]);
    let built = fixture.build_ok(OCI, &input(layout(fixture.path(), &[base]))).await;
    let mut spec = fixture.spec(built.base, &built.layers, "me");
    for (index, path) in ["/mnt/a/b", "/data", "/srv/v", "/opt/v", "/home/user/v"].into_iter().enumerate() {
        let image = fixture.path().join(format!("volume{index}"));
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-t", "ext4", "-b", "4096", "-E", "root_owner=1000:1000"]).arg(&image).arg("16m");
        match mke2fs.status() {
            Err(error) => {
                return eprintln!("SKIPPED volumes_are_mounted_in_a_separate_tree: mke2fs: {error}");
            }
            Ok(status) => assert!(status.success()),
        }
        let id = format!("v{index:019}").parse().unwrap();
        spec.volumes.push(VolumeMount {
            name: format!("v{index}"),
            path: path.into(),
            mode: MountMode::ReadWrite,
            image: Some(VolumeImage { id, path: image }),
        });
    }
    let line = "for dir in /mnt/a/b /data /srv/v /opt/v /home/user/v; do echo $dir > $dir/file; done; \
                cat /mnt/a/b/file /data/file /srv/v/file /opt/v/file /home/user/v/file /opt/kept; \
                ls /srv; test -e /etc/v || echo apart; test -w /opt || echo read-only";
    let output = fixture.run_with_spec(&spec, line).await;
    let expected = "/mnt/a/b\n/data\n/srv/v\n/opt/v\n/home/user/v\nkept\nv\napart\nread-only\n";
    assert_eq!(output.text, expected, "{output:?}");
}

async fn resolver(fixture: Fixture) {
    let root = layout(fixture.path(), &[base_layer(&[("work/", EntryType::Directory, 0o755, b"")])]);
    let step = "[[step]]\nrun = \"cat /etc/resolv.conf; echo made > /made\"\n";
    let network = "network = { presets = [\"pip\"] }\n";
    let (built, events) = fixture.build(&format!("{OCI}{step}{network}"), &input(root.clone())).await;
    let has_nameserver = |events: &[BuildEvent]| {
        events.iter().any(
            |event| matches!(event, BuildEvent::Log { line, .. } if line.contains("nameserver 198.18.0.1")),
        )
    };
    assert!(has_nameserver(&events), "{built:?} {events:?}");
    // Neither the built template nor a step without a network has one.
    let built = built.unwrap();
    let output = fixture.sh(&built, "cat /made /etc/resolv.conf").await;
    assert_eq!(output.text, "made\n# The network of this sandbox is disabled.\n");
    let (built, events) = fixture.build(&format!("{OCI}{step}"), &input(root)).await;
    assert!(built.is_ok() && !has_nameserver(&events), "{events:?}");
}

/// Needs mmdebstrap, and a mirror filled by `templates/mirror.sh templates/base.toml DIR`.
async fn debian(fixture: Fixture) {
    let mirror = std::env::var_os("BELLJAR_TEST_MIRROR").map(PathBuf::from);
    let (Some(mirror), true) = (mirror, Path::new("/usr/bin/mmdebstrap").exists()) else {
        eprintln!("SKIPPED debian_is_built_from_a_mirror: set BELLJAR_TEST_MIRROR, and install mmdebstrap");
        return;
    };
    let text = "name = \"d\"\nbase = \"debian\"\n[[step]]\napt = [\"python3\"]\n";
    let input = BuildInput { mirror: Some(mirror), ..BuildInput::default() };
    let built = fixture.build_ok(text, &input).await;
    let output = fixture
        .sh(&built, "cat /etc/os-release; python3 -c 'print(6 * 7)'; dpkg -s python3 | grep ^Status")
        .await;
    for expected in ["ID=debian", "42\n", "Status: install ok installed"] {
        assert!(output.text.contains(expected), "{expected}: {output:?}");
    }
}

async fn changed(fixture: Fixture) {
    let root = layout(fixture.path(), &[base_layer(&[])]);
    let largest = std::fs::read_dir(root.join("blobs/sha256")).unwrap().map(Result::unwrap);
    let largest = largest.max_by_key(|entry| entry.metadata().unwrap().len()).unwrap();
    std::fs::write(largest.path(), b"something else").unwrap();
    let (built, _) = fixture.build(OCI, &input(root)).await;
    let error = built.unwrap_err().to_string();
    assert!(error.contains("unpacking the layer sha256:"), "{error}");
    fixture.wait_for_no_loops().await;
}

/// The tree is cached under the digest of the manifest, for whoever uses that image.
async fn replaced(fixture: Fixture) {
    let root = layout(fixture.path(), &[base_layer(&[])]);
    for blob in std::fs::read_dir(root.join("blobs/sha256")).unwrap().map(Result::unwrap) {
        let content = std::fs::read(blob.path()).unwrap();
        if !content.starts_with(b"{") {
            continue;
        }
        std::fs::write(blob.path(), [content.as_slice(), b" "].concat()).unwrap();
        let (built, _) = fixture.build(OCI, &input(root.clone())).await;
        let error = built.unwrap_err().to_string();
        let name = blob.file_name().into_string().unwrap();
        assert!(error.contains(&format!("{name} is not what its digest says")), "{error}");
        std::fs::write(blob.path(), content).unwrap();
    }
    fixture.build_ok(OCI, &input(root)).await;
    fixture.wait_for_no_loops().await;
}

/// Programs in the directories of the sandbox that unpacks an image would take part in packing it.
async fn leading_out(fixture: Fixture) {
    use EntryType::{Directory, Regular, Symlink};
    let lower = base_layer(&[
        ("work/", Directory, 0o755, b""),
        ("inside", Symlink, 0o777, b"work"),
        ("here", Symlink, 0o777, b"."),
        ("out", Symlink, 0o777, b"/home/user"),
        ("work/up", Symlink, 0o777, b"../../../../home/user"),
    ]);
    let program: &[u8] = b"#!/bin/sh\nprintf hsqs-planted >\"$2\"\n";
    for path in ["out/.local/bin/mksquashfs", "here/out/x", "./inside/up/x", "here/here/work/up/a/b"] {
        let upper = layer(&[(path, Regular, 0o755, program)]);
        let root = layout(fixture.path(), &[lower.clone(), upper]);
        let (built, events) = fixture.build(OCI, &input(root)).await;
        assert!(built.is_err(), "{path}");
        let is_said = |event: &BuildEvent| matches!(event, BuildEvent::Log { line, .. } if line.contains("leads out of the tree"));
        assert!(events.iter().any(is_said), "{path}: {events:?}");
    }
    // Links of the layer itself, a link that leads out only once a directory is there, and names that tar writes with escapes.
    let lower = base_layer(&[
        ("work/", Directory, 0o755, b""),
        ("evil", Symlink, 0o777, b"/home/user"),
        ("later", Symlink, 0o777, b"work/d/../../../../../home/user"),
        ("a", Symlink, 0o777, b"b"),
        ("b/", Directory, 0o755, b""),
        ("b/\u{f6} \n/", Directory, 0o755, b""),
        ("b/\u{f6} \n/evil", Symlink, 0o777, b"/home/user"),
    ]);
    let cases: [&[Entry<'_>]; 5] = [
        &[("w", Symlink, 0o777, b"evil"), ("w/.local/bin/mksquashfs", Regular, 0o755, program)],
        &[("w", EntryType::Link, 0o777, b"evil"), ("w/x", Regular, 0o755, program)],
        &[("work/d/", Directory, 0o755, b""), ("later/x", Regular, 0o755, program)],
        &[("a/\u{f6} \n/evil/x", Regular, 0o755, program)],
        &[("s", Symlink, 0o777, b"/tmp"), ("s/x", Regular, 0o755, program)],
    ];
    for case in cases {
        let root = layout(fixture.path(), &[lower.clone(), layer(case)]);
        let (built, events) = fixture.build(OCI, &input(root)).await;
        assert!(built.is_err(), "{case:?}");
        let is_said = |event: &BuildEvent| matches!(event, BuildEvent::Log { line, .. } if line.contains("leads out of the tree"));
        assert!(events.iter().any(is_said), "{case:?}: {events:?}");
    }
    // What leads to a place in the tree, and what takes the place of a link.
    let lower = base_layer(&[
        ("work/", Directory, 0o755, b""),
        ("inside", Symlink, 0o777, b"work"),
        ("out", Symlink, 0o777, b"/run"),
        ("o\u{f6}", Symlink, 0o777, b"./work/../work"),
    ]);
    let upper = layer(&[
        ("inside/file", Regular, 0o644, b"through"),
        ("o\u{f6}/other", Regular, 0o644, b" and through"),
        ("out/", Directory, 0o755, b""),
        ("out/file", Regular, 0o644, b", in place"),
    ]);
    let built = fixture.build_ok(OCI, &input(layout(fixture.path(), &[lower, upper]))).await;
    assert_eq!(
        fixture.sh(&built, "cat /work/file /work/other /out/file").await.text,
        "through and through, in place"
    );
    fixture.wait_for_no_loops().await;
}

/// Each puts a file behind a link that leads out, if the check takes an entry for another one than tar does.
async fn ambiguous(fixture: Fixture) {
    use EntryType::{Block, Char, Directory, Link, Regular, Symlink};
    let lower = base_layer(&[
        ("work/", Directory, 0o755, b""),
        ("evil", Symlink, 0o777, b"/home/user"),
        ("here", Symlink, 0o777, b"work"),
        ("work/evil", Symlink, 0o777, b"/home/user"),
        ("a\" -> \"b", Symlink, 0o777, b"/home/user"),
        ("a\nb", Symlink, 0o777, b"/home/user"),
    ]);
    let out = "leads out of the tree";
    let planted: Entry<'_> = ("evil/x", Regular, 0o644, b"x");
    let long = "./".repeat(49);
    let cases: [(&[Entry<'_>], &str, &str); 24] = [
        (&[planted], "\"work\" ", out),
        (&[("./././/evil//./x", Regular, 0o644, b"x")], "", out),
        (&[("/evil/x", Regular, 0o644, b"x")], "", out),
        (&[("a\" -> \"b/x", Regular, 0o644, b"x")], "", out),
        (&[("a\nb/x", Regular, 0o644, b"x")], "", out),
        (&[("w", Link, 0o644, b"./evil"), ("w/x", Regular, 0o644, b"x")], "", out),
        (&[("w", Link, 0o644, b"//evil"), ("w/x", Regular, 0o644, b"x")], "", out),
        (&[("w", Link, 0o644, b"evil/"), ("w/x", Regular, 0o644, b"x")], "", out),
        (&[("w", Link, 0o644, b"here/evil"), ("w/x", Regular, 0o644, b"x")], "", out),
        (&[("w", Link, 0o644, b"evil/x")], "", out),
        (&[("w", Link, 0o644, b"work/../evil"), ("w/x", Regular, 0o644, b"x")], "", out),
        (&[(".wh.b/../evil", Regular, 0o644, b""), planted], "", "leads upwards"),
        (&[("Cannot mknod/../evil", Regular, 0o644, b""), planted], "", "leads upwards"),
        (&[("../../home/user/x", Regular, 0o644, b"x")], "", "leads upwards"),
        (&[("evil", Char, 0o644, b""), planted], "", "the place of a link"),
        (&[("evil", Char, 0o644, b"")], "", "the place of a link"),
        (&[("here/evil", Block, 0o644, b"")], "", "the place of a link"),
        (&[("evil", EntryType::new(b'V'), 0o644, b""), planted], "", "a type that no image has"),
        (&[("evil", EntryType::new(b'M'), 0o644, b""), planted], "", "a type that no image has"),
        (&[("evil", EntryType::new(b'7'), 0o644, b""), planted], "", "a type that no image has"),
        (&[("evil", EntryType::new(b'Q'), 0o644, b""), planted], "", "a type that no image has"),
        (&[(".", Symlink, 0o777, b"/home/user"), ("x", Regular, 0o644, b"x")], "", "the place of the tree"),
        (&[(&long, Link, 0o777, b"evil"), ("x", Regular, 0o644, b"x")], "", "the place of the tree"),
        (&[("l", Symlink, 0o777, b"m"), ("m", Symlink, 0o777, b"l"), ("l/x", Regular, 0o644, b"x")], "", out),
    ];
    for (case, user, reason) in cases {
        let root = layout(fixture.path(), &[lower.clone(), layer_of(case, 0, user)]);
        let (built, events) = fixture.build(OCI, &input(root)).await;
        assert!(built.is_err(), "{case:?}");
        let is_said =
            |event: &BuildEvent| matches!(event, BuildEvent::Log { line, .. } if line.contains(reason));
        assert!(events.iter().any(is_said), "{case:?}: {events:?}");
    }
    // Links that lead through one another, and new ones that end what is known of them.
    let links: Vec<(String, String)> =
        (0..39).map(|at| (format!("l{}", at + 1), format!("l{at}/../{}l0", "work/../".repeat(10)))).collect();
    let files: Vec<(String, String)> = (0..4000).map(|at| (format!("n{at}"), format!("l39/f{at}"))).collect();
    let mut entries: Vec<Entry<'_>> = vec![("l0/", Directory, 0o755, b"")];
    entries.extend(links.iter().map(|(name, to)| -> Entry<'_> { (name, Symlink, 0o777, to.as_bytes()) }));
    for (link, file) in &files {
        entries.extend([(link.as_str(), Symlink, 0o777, b"x".as_slice()), (file, Regular, 0o644, b"")]);
    }
    let (built, events) =
        fixture.build(OCI, &input(layout(fixture.path(), &[lower.clone(), layer(&entries)]))).await;
    assert!(built.is_err());
    let is_said = |event: &BuildEvent| matches!(event, BuildEvent::Log { line, .. } if line.contains("too long to follow"));
    assert!(events.iter().any(is_said), "{events:?}");
    // What looks like them, and is harmless.
    let upper = layer_of(
        &[
            ("/absolute", Regular, 0o644, b"absolute, "),
            ("./././/dotted//./file", Regular, 0o644, b"dotted, "),
            ("hard", Link, 0o644, b"./absolute"),
            ("of-a-link", Link, 0o644, b"/evil"),
            ("null", Char, 0o666, b""),
            ("odd\"\n: Cannot mknod: x", Char, 0o666, b""),
            ("fifo", EntryType::Fifo, 0o644, b""),
            ("here/.wh.evil", Regular, 0o644, b""),
            ("here/there", Regular, 0o644, b"there"),
            ("work/.wh.evil", Regular, 0o644, b""),
            (".wh.", Regular, 0o644, b""),
            (".wh..", Regular, 0o644, b""),
            (".wh...", Regular, 0o644, b""),
        ],
        0,
        "\"work\" ",
    );
    let built = fixture.build_ok(OCI, &input(layout(fixture.path(), &[lower, upper]))).await;
    let line = "cat /hard /dotted/file /work/there; test -h /of-a-link && test -h /evil && ! test -h /work/evil && echo .";
    assert_eq!(fixture.sh(&built, line).await.text, "absolute, dotted, there.\n");
    fixture.wait_for_no_loops().await;
}

/// Owners are given to `mksquashfs` in lines that may also be commands.
async fn names(fixture: Fixture) {
    use EntryType::{Directory, Link, Regular, Symlink};
    let hostile = [
        "bin\nPWNED f 644 0 0 id\nbin",
        "bin\\040m\\040755\\0400\\0400\\nPWNED\\040f\\040644\\0400\\0400\\040id\\nbin",
        "PWNED f 644 0 0 id",
        "\"PWNED\" f 644 0 0 id",
        "#",
        "-rf",
        "$(id)",
        " lead",
    ];
    let mut entries: Vec<Entry<'_>> =
        hostile.iter().map(|name| -> Entry<'_> { (name, Regular, 0o644, b"") }).collect();
    entries.extend_from_slice(&[
        ("dir/", Directory, 0o700, b""),
        ("dir/suid", Regular, 0o4711, b"x"),
        ("back", Regular, 0o644, b""),
        ("link", Symlink, 0o777, b"dir"),
        ("link/through", Regular, 0o600, b"x"),
        ("hard", Link, 0o644, b"dir/suid"),
    ]);
    let again = layer(&[
        ("back", Regular, 0o644, b""),
        ("of-root", Regular, 0o6711, b"x"),
        ("shared/", Directory, 0o1777, b""),
    ]);
    let root = layout(fixture.path(), &[base_layer(&[]), layer_of(&entries, 7, ""), again]);
    let built = fixture.build_ok(OCI, &input(root)).await;
    let [layer] = built.layers.as_slice() else { panic!("{built:?}") };
    let listed = Command::new("unsquashfs").arg("-lln").arg(fixture.layers.path(&layer.digest)).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    for (name, expected) in [
        ("/dir", "drwxr-xr-x 7/7"),
        ("/dir/suid", "-rwsr-xr-x 7/7"),
        ("/dir/through", "-rw-r--r-- 7/7"),
        ("/back", "-rw-r--r-- 0/0"),
        ("/of-root", "-rwsr-sr-x 0/0"),
        ("/shared", "drwxrwxrwt 0/0"),
        ("/#", "-rw-r--r-- 0/0"),
        ("/$(id)", "-rw-r--r-- 0/0"),
        ("/PWNED f 644 0 0 id", "-rw-r--r-- 0/0"),
        ("/bin/sh", "-rwxr-xr-x 0/0"),
    ] {
        let line = listed.lines().find(|line| line.ends_with(&format!("squashfs-root{name}")));
        let line = line.unwrap_or_else(|| panic!("{name}: {listed}"));
        assert!(line.starts_with(expected), "{line}");
    }
    assert!(!listed.lines().any(|line| line.ends_with("/PWNED")), "{listed}");
    fixture.wait_for_no_loops().await;
}

/// The layer is what its digest says when it is first read, and another one from then on.
async fn swapped(fixture: Fixture) {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let honest = layer(&[("who", EntryType::Regular, 0o644, b"honest")]);
    let other = layer(&[("who", EntryType::Regular, 0o644, b"another")]);
    let root = layout(fixture.path(), &[base_layer(&[]), honest.clone()]);
    let path = root.join("blobs/sha256").join(digest(&honest));
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").args(["-m", "644"]).arg(&path).status().unwrap().success());
    let is_built = Arc::new(AtomicBool::new(false));
    let (ended, pipe) = (Arc::clone(&is_built), path.clone());
    let writing = std::thread::spawn(move || {
        // Without a reader, it cannot be opened at once.
        let open = || {
            let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
            std::fs::OpenOptions::new().write(true).custom_flags(flags).open(&pipe).ok()
        };
        let pause = || std::thread::sleep(std::time::Duration::from_millis(1));
        let mut content = &honest;
        while !ended.load(Ordering::Relaxed) {
            if let Some(mut pipe) = open() {
                pipe.write_all(content).unwrap();
                content = &other;
            }
            // Until its reader has closed it.
            while open().is_some() {
                pause();
            }
            pause();
        }
    });
    let built = fixture.build_ok(OCI, &input(root)).await;
    is_built.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    assert_eq!(fixture.sh(&built, "cat /who").await.text, "honest");
    fixture.wait_for_no_loops().await;
}

async fn hostile(fixture: Fixture) {
    use EntryType::{Block, Char, Directory, Link, Regular, Symlink};
    let canary = fixture.path().join("canary");
    std::fs::write(&canary, "untouched").unwrap();
    let target = canary.display().to_string();
    let up = format!("../../../../../../../..{target}");
    let lower = base_layer(&[
        ("absolute", Symlink, 0o777, target.as_bytes()),
        ("tmpdir", Symlink, 0o777, b"/tmp"),
        ("up", Symlink, 0o777, b"../../../../../../tmp"),
        ("suid", Regular, 0o6755, b"#!/bin/sh\nid -u\n"),
        ("null", Char, 0o666, b""),
        ("disk", Block, 0o666, b""),
        ("work/", Directory, 0o755, b""),
    ]);
    let upper = layer(&[
        ("absolute", Regular, 0o644, b"over"),
        ("tmpdir/planted-by-an-image", Regular, 0o644, b"planted"),
        ("up/planted-by-an-image", Regular, 0o644, b"planted"),
        ("up/.wh.planted-by-an-image", Regular, 0o644, b""),
    ]);
    let climbing = layer(&[(&up, Regular, 0o644, b"climbed"), ("hard", Link, 0o644, target.as_bytes())]);
    for layers in [vec![lower.clone(), upper], vec![lower, climbing]] {
        let root = layout(fixture.path(), &layers);
        // The build may fail or succeed, but must not touch the machine.
        let (built, _) = fixture.build(OCI, &input(root)).await;
        if let Ok(built) = built {
            let output = fixture
                .sh(&built, "ls -la / /suid; head -c 1 /null; head -c 1 /disk; stat -c %a /suid")
                .await;
            assert!(
                !output.text.contains("brw-") && !output.text.contains("crw-rw-rw- 1 nobody nogroup 1, 5"),
                "{output:?}"
            );
        }
        assert_eq!(std::fs::read_to_string(&canary).unwrap(), "untouched");
        assert!(!Path::new("/tmp/planted-by-an-image").exists());
    }
    fixture.wait_for_no_loops().await;
}
