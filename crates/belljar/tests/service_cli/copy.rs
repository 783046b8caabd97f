//! Copies files and directories in and out. Content from a sandbox is hostile.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use crate::fixture::Home;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

#[test]
fn files_are_copied_in_and_out() {
    let home = Home::new();
    let id = home.create("");
    home.write("a.csv", "1,2\n");
    home.good(&format!("sandbox cp a.csv {id}:"));
    home.good(&format!("sandbox cp a.csv {id}:b.csv"));
    home.good(&format!("sandbox cp a.csv {id}:/tmp"));
    home.good(&format!("sandbox cp a.csv {id}:new/dir/"));
    assert_eq!(home.inside(&id, "cat a.csv b.csv /tmp/a.csv new/dir/a.csv"), "1,2\n".repeat(4));
    home.inside(&id, "printf 'x\\0y' > bytes; chmod 600 bytes");
    home.good(&format!("sandbox cp {id}:bytes ."));
    home.good(&format!("sandbox cp {id}:bytes other"));
    assert_eq!((home.read("bytes"), home.read("other")), ("x\0y".to_owned(), "x\0y".to_owned()));
    assert_eq!(home.good(&format!("sandbox cp {id}:bytes -")), "x\0y");
    home.feed(&format!("sandbox cp - {id}:from/stdin"), b"piped").good();
    assert_eq!(home.inside(&id, "cat from/stdin"), "piped");
    // Links in the sandbox are not followed when copying out.
    home.inside(&id, "ln -s /etc/passwd link");
    home.run(&format!("sandbox cp {id}:link .")).refused(125, &["a symbolic link"]);
    assert!(!home.file("link").exists());
}

#[test]
fn directories_are_copied_in_recursively() {
    let home = Home::new();
    let id = home.create("");
    home.write("tree/file", "content\n");
    home.write("tree/sub/deep", "deep\n");
    std::fs::create_dir(home.file("tree/empty")).unwrap();
    symlink("file", home.file("tree/link")).unwrap();
    symlink("/etc/passwd", home.file("tree/outward")).unwrap();
    set_mode(&home.file("tree/file"), 0o751);
    set_mode(&home.file("tree/sub"), 0o700);
    set_mode(&home.file("tree"), 0o710);
    home.good(&format!("sandbox cp tree {id}:"));
    let look = "find tree | sort | xargs stat -c '%n %a %F'";
    assert_eq!(
        home.inside(&id, look),
        "tree 710 directory\ntree/empty 755 directory\ntree/file 751 regular file\ntree/link 777 symbolic link\n\
         tree/outward 777 symbolic link\ntree/sub 700 directory\ntree/sub/deep 644 regular file\n"
    );
    // Under a new name, then into the now existing directory, then only the content.
    home.good(&format!("sandbox cp tree {id}:other"));
    home.good(&format!("sandbox cp tree {id}:other"));
    home.good(&format!("sandbox cp tree/. {id}:content"));
    assert_eq!(
        home.inside(&id, "cat other/file other/tree/sub/deep content/file"),
        "content\ndeep\ncontent\n"
    );
    // Existing files are replaced, and other files are kept.
    home.inside(&id, "echo old > content/file; echo mine > content/mine");
    home.good(&format!("sandbox cp tree/. {id}:content"));
    assert_eq!(home.inside(&id, "cat content/file content/mine"), "content\nmine\n");
    home.run(&format!("sandbox cp tree {id}:content/file")).refused(125, &["is not a directory"]);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        home.file("tree/fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    home.run(&format!("sandbox cp tree {id}:")).refused(1, &["1 left out: FIFOs, sockets"]);
}

#[test]
fn directories_are_copied_out_recursively() {
    let home = Home::new();
    let id = home.create("");
    let make = "mkdir -p out/sub out/empty; echo a > out/a; echo b > out/sub/b; ln -s a out/link; ln -s ../a out/sub/up; \
                chmod 4777 out/a; chmod 750 out/sub; touch -d @1000000000 out/a; ln out/a out/same";
    home.inside(&id, make);
    home.good(&format!("sandbox cp {id}:out ."));
    assert_eq!((home.read("out/a"), home.read("out/sub/up")), ("a\n".to_owned(), "a\n".to_owned()));
    assert_eq!(std::fs::read_link(home.file("out/link")).unwrap(), Path::new("a"));
    let metadata = home.file("out/a").metadata().unwrap();
    // The mode is masked by the umask, and never set-user-ID.
    assert_eq!((metadata.mode() & 0o7022, metadata.mtime(), metadata.nlink()), (0, 1_000_000_000, 2));
    assert_eq!(mode(&home.file("out/sub")) & 0o700, 0o700);
    assert!(home.file("out/empty").is_dir());
    home.good(&format!("sandbox cp {id}:out renamed"));
    home.good(&format!("sandbox cp {id}:out renamed"));
    home.good(&format!("sandbox cp {id}:out/. content"));
    for name in ["renamed/a", "renamed/out/sub/b", "content/a"] {
        assert!(home.file(name).is_file(), "{name}");
    }
    // Existing directories keep their modes.
    set_mode(&home.file("content/sub"), 0o700);
    home.write("content/mine", "mine");
    home.good(&format!("sandbox cp {id}:out/. content"));
    assert_eq!((mode(&home.file("content/sub")), home.read("content/mine").as_str()), (0o700, "mine"));
    // An archive round trip.
    let listed = std::process::Command::new("sh")
        .args(["-c", &format!("\"$0\" sandbox cp {id}:out - > out.tar && tar tf out.tar | sort")])
        .arg(home.belljar(&[]).get_program())
        .env("BELLJAR_HOME", home.path())
        .current_dir(home.dir.path())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout),
        "a\nempty/\nlink\nsame\nsub/\nsub/b\nsub/up\n",
        "{listed:?}"
    );
    let archive = std::fs::read(home.file("out.tar")).unwrap();
    home.feed(&format!("sandbox cp - {id}:unpacked/"), &archive).good();
    assert_eq!(home.inside(&id, "cat unpacked/sub/up"), "a\n");
}

#[test]
fn copies_out_stay_in_their_target() {
    let home = Home::new();
    let id = home.create("");
    home.write("secret", "secret");
    let cases: [(&str, &str); 4] = [
        ("ln -s /etc/passwd evil/link", "is absolute"),
        ("ln -s ../../secret evil/link", "leads out of the directory"),
        ("mkdir evil/d; ln -s .. evil/d/up; ln -s d/up/../../secret evil/link", "may lead out"),
        ("truncate -s 1T evil/holes", "at most"),
    ];
    for (number, (make, why)) in cases.iter().enumerate() {
        home.inside(&id, &format!("rm -rf evil; mkdir evil; echo good > evil/a; {make}"));
        let refused = home.run(&format!("sandbox cp {id}:evil out{number}"));
        refused.refused(125, &["cannot be copied out", why]);
        assert_eq!(refused.stderr.contains("--outward-links"), make.contains("ln -s"), "{refused:?}");
        assert!(!home.file(&format!("out{number}")).exists(), "{make} left something");
    }
    // On request such a link is created, and nothing is ever written through it, neither by this copy nor by a later one.
    std::fs::create_dir(home.file("outside")).unwrap();
    home.inside(&id, "rm -rf evil; mkdir evil; ln -s ../outside evil/d");
    home.good(&format!("sandbox cp --outward-links {id}:evil links"));
    assert_eq!(std::fs::read_link(home.file("links/d")).unwrap(), Path::new("../outside"));
    home.inside(&id, "rm evil/d; mkdir evil/d; echo x > evil/d/x");
    home.run(&format!("sandbox cp {id}:evil/. links")).refused(125, &["exists and is not a directory"]);
    assert_eq!(std::fs::read_dir(home.file("outside")).unwrap().count(), 0);
    // The target itself may be a link of the user, but not a path within it.
    symlink("outside", home.file("evil")).unwrap();
    home.run(&format!("sandbox cp {id}:evil .")).refused(125, &["is not a directory"]);
    assert_eq!(std::fs::read_dir(home.file("outside")).unwrap().count(), 0);
    // Devices, sockets and FIFOs are not copied out.
    home.inside(&id, "rm -rf evil; mkdir evil; mkfifo evil/fifo; echo a > evil/a");
    let left = home.run(&format!("sandbox cp {id}:evil left"));
    left.refused(1, &["1 left out"]);
    assert!(home.file("left/a").is_file() && !home.file("left/fifo").exists());
}

#[test]
fn odd_names_are_preserved_and_escaped_in_messages() {
    use std::os::unix::ffi::OsStrExt as _;
    let home = Home::new();
    let id = home.create("");
    let names = r#"'-rf' ' x ' "$(printf 'a\033[31m')" "$(printf 'new\nline')" "$(printf '\377')""#;
    home.inside(&id, &format!("mkdir odd; cd odd; for name in {names}; do echo 1 > ./\"$name\"; done"));
    home.good(&format!("sandbox cp {id}:odd ."));
    let mut names: Vec<_> = std::fs::read_dir(home.file("odd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    assert_eq!(names, [&b" x "[..], b"-rf", b"a\x1b[31m", b"new\nline", b"\xff"]);
    home.inside(&id, "cd odd; ln -s / \"$(printf 'l\\033[31m')\"");
    let refused = home.run(&format!("sandbox cp {id}:odd again"));
    assert!(refused.stderr.contains("l\\u{1b}[31m") && !refused.stderr.contains('\u{1b}'), "{refused:?}");
}
