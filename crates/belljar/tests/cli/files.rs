//! Input and output files of a run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;

use crate::host::{Done, Host};

#[test]
fn run_gets_standard_input_and_a_file() {
    let host = Host::new();
    host.write("data.csv", "a,1\nb,2\n");
    host.write(
        "analyse.py",
        "import sys\nprint(sum(int(l.split(',')[1]) for l in open('data.csv')), sys.stdin.read())",
    );
    host.run_with_stdin(&["run", "-f", "data.csv", "analyse.py"], b"piped").check(0, "3 piped\n", "");
}

#[test]
fn files_round_trip() {
    let host = Host::new();
    let content: Vec<u8> =
        (0..3_000_000u32).map(|index| index.wrapping_mul(40_503).to_be_bytes()[2]).collect();
    let raw = OsString::from_vec(b"a b\xff\n.bin".to_vec());
    std::fs::write(host.path().join(&raw), &content).unwrap();
    let pair = |from: &OsStr, to: &str| {
        let mut pair = from.to_owned();
        pair.push(":");
        pair.push(to);
        pair
    };
    let word = OsString::from;
    // In and out under its own name, then under others, with a colon in one of them.
    host.write("with:colon", "x");
    let args = [
        word("run"),
        word("-f"),
        raw.clone(),
        word("-f"),
        pair(&raw, "deep/er/copy"),
        word("-f"),
        word("with:colon:"),
        word("-o"),
        pair(&raw, "out 1"),
        word("-o"),
        word("deep/er/copy:out 2"),
        word("-o"),
        word("deep/er/copy"),
        word("-o"),
        word("with:colon:colon"),
        word("-l"),
        word("sh"),
        word("-c"),
        word("ls with:colon deep/er"),
    ];
    host.run(&args).check(0, "with:colon\n\ndeep/er:\ncopy\n", "");
    for name in ["out 1", "out 2", "copy"] {
        assert!(host.read(name) == content, "{name}");
    }
    assert_eq!(host.read("colon"), b"x");
}

#[test]
fn directory_is_copied_in_recursively() {
    let host = Host::new();
    std::fs::create_dir_all(host.path().join("tree/sub/empty")).unwrap();
    host.write("tree/a", "1");
    host.write("tree/sub/run.sh", "#!/bin/sh\necho ran");
    let script = host.path().join("tree/sub/run.sh");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
    let code = "find $1 | sort; $1/sub/run.sh";
    let lines = |name: &str| {
        let paths = ["", "/a", "/sub", "/sub/empty", "/sub/run.sh"].map(|path| format!("{name}{path}\n"));
        paths.concat() + "ran\n"
    };
    host.run(&["run", "-f", "tree", "-l", "sh", "-c", code, "tree"]).check(0, &lines("tree"), "");
    host.run(&["run", "-f", "tree:x/y", "-l", "sh", "-c", code, "x/y"]).check(0, &lines("x/y"), "");
}

#[test]
fn output_replaces_only_a_regular_file() {
    let host = Host::new();
    host.write("old", "old");
    std::fs::create_dir(host.path().join("dir")).unwrap();
    let code = "echo new > old; mkdir d; echo inner > d/file";
    host.run(&["run", "-o", "old", "-o", "d/file:dir", "-l", "sh", "-c", code]).check(0, "", "");
    assert_eq!(host.read("old"), b"new\n");
    assert_eq!(host.read("dir/file"), b"inner\n");
    assert_eq!(host.names(), ["dir", "old"]);
}

#[test]
fn only_regular_files_are_copied_out() {
    let host = Host::new();
    host.write("x", "kept");
    for (make, source, message) in [
        (
            "ln -s /etc/hostname x",
            "x",
            "out: \"x\" is a symbolic link in the sandbox; only regular files and directories come out",
        ),
        ("mkfifo x", "x", "out: \"x\" is a FIFO in the sandbox; only regular files and directories come out"),
        (
            "mkdir x",
            "x",
            "out: cannot bring out \"x\": \"x\" is not a directory; name another place for \"x\"",
        ),
        (
            "echo > y",
            "y/.",
            "out: \"y\" is not a directory in the sandbox; only regular files and directories come out",
        ),
        (
            ":",
            "/dev/null:x",
            "out: \"/dev/null\" is a device in the sandbox; only regular files and directories come out",
        ),
        (":", "x", "output file \"x\" was not created"),
        (
            "truncate -s 2g x",
            "x",
            "out: \"x\" has 2147483648 bytes; at most 503316480 come out, the size of the sandbox's disk",
        ),
    ] {
        let code = format!("{make}; echo output");
        let done = host.run(&["run", "-o", source, "-l", "sh", "-c", &code]);
        done.check(125, "output\n", &format!("belljar: {message}\n"));
        assert_eq!(host.names(), ["x"]);
        assert_eq!(host.read("x"), b"kept");
    }
}

#[test]
fn missing_output_of_a_failed_program_is_a_warning() {
    let host = Host::new();
    host.run(&["run", "-o", "x", "-l", "sh", "-c", "exit 9"]).check(
        9,
        "",
        "belljar: warning: output file \"x\" was not created\n",
    );
    host.run(&["run", "-o", "x", "-l", "sh", "-c", "echo partial > x; exit 9"]).check(9, "", "");
    assert_eq!(host.read("x"), b"partial\n");
}

#[test]
fn non_utf8_file_name_is_preserved() {
    let host = Host::new();
    let name = OsStr::from_bytes(b"\xfe\xff");
    std::fs::write(host.path().join(name), "x").unwrap();
    let args = [
        OsStr::new("run"),
        OsStr::new("-f"),
        name,
        OsStr::new("-c"),
        OsStr::new("import os; print(os.listdir(b'.'))"),
    ];
    let done = host.run(&args);
    assert!(done.text().contains("b'\\xfe\\xff'"), "{done:?}");
}

#[test]
fn links_in_a_directory_stay_links_and_stay_inside() {
    use std::os::unix::fs::symlink;
    let host = Host::new();
    std::fs::create_dir_all(host.path().join("venv/bin")).unwrap();
    std::fs::create_dir_all(host.path().join("node_modules/.bin")).unwrap();
    host.write("node_modules/tool.sh", "echo tool");
    host.write("secret", "of this machine\n");
    let long = "d/".repeat(120) + "end";
    for (target, link) in [
        ("/usr/bin/python3", "venv/bin/python"),
        ("../tool.sh", "node_modules/.bin/tool"),
        ("nowhere", "venv/dangling"),
        (&host.path().join("secret").to_string_lossy(), "venv/outside"),
        (&long, "venv/long"),
    ] {
        symlink(target, host.path().join(link)).unwrap();
    }
    symlink("bin", host.path().join("venv/dir")).unwrap();
    let code = "venv/bin/python -c 'print(1)'; sh node_modules/.bin/tool; readlink venv/dangling venv/dir; \
                readlink venv/long | wc -c; cat venv/outside 2>&1 | grep -o 'No such file'";
    let expected = format!("1\ntool\nnowhere\nbin\n{}\nNo such file\n", long.len() + 1);
    for tree in [&["-f", "venv", "-f", "node_modules"][..], &["-f", "."]] {
        let args = [&["run"], tree, &["-l", "sh", "-c", code]].concat();
        host.run(&args).check(0, &expected, "");
    }
}

#[test]
fn dot_copies_the_content_of_a_directory() {
    let host = Host::new();
    std::fs::create_dir_all(host.path().join("tree/sub")).unwrap();
    host.write("tree/sub/a", "1");
    host.write("tree/main.py", "import os; print(sorted(os.listdir('.')), os.listdir('sub'))");
    // The script is in the directory as well, and is copied once.
    let mut command = host.belljar(&["run", "-f", ".", "main.py"]);
    Done::of(command.current_dir(host.path().join("tree"))).check(0, "['main.py', 'sub'] ['a']\n", "");
    host.run(&["run", "-f", "tree/.", "tree/main.py"]).check(0, "['main.py', 'sub'] ['a']\n", "");
    host.run(&["run", "-f", "tree/.:x/y", "-l", "sh", "-c", "ls x/y"]).check(0, "main.py\nsub\n", "");
    host.run(&["run", "-f", "tree/sub/a:x/", "-l", "sh", "-c", "cat x/a"]).check(0, "1", "");
}

#[test]
fn directories_are_copied_out_like_cp() {
    let host = Host::new();
    std::fs::create_dir(host.path().join("here")).unwrap();
    std::fs::create_dir(host.path().join("merged")).unwrap();
    host.write("merged/old", "old");
    let code =
        "for d in d merged; do mkdir -p $d/sub; echo inner > $d/sub/file; ln -s sub/file $d/link; done";
    let args = ["-o", "d", "-o", "d:here", "-o", "d:new", "-o", "d/sub/.:content", "-o", "merged"];
    host.run(&[&["run"], &args[..], &["-l", "sh", "-c", code]].concat()).check(0, "", "");
    for file in ["d/sub/file", "d/link", "here/d/sub/file", "new/sub/file", "content/file", "merged/sub/file"]
    {
        assert_eq!(host.read(file), b"inner\n", "{file}");
    }
    assert!(host.path().join("d/link").is_symlink());
    assert_eq!(host.read("merged/old"), b"old");
    assert_eq!(host.names(), ["content", "d", "here", "merged", "new"]);
    // A link that leads out of the tree is refused.
    let done = host.run(&["run", "-o", "trap", "-l", "sh", "-c", "mkdir trap; ln -s /etc trap/etc"]);
    assert_eq!((done.status, done.text()), (125, ""), "{done:?}");
    assert!(done.stderr.contains("out: cannot bring out \"trap\""), "{done:?}");
    assert!(!host.path().join("trap").exists());
}

#[test]
fn link_is_copied_in_as_a_file_under_its_own_name() {
    let host = Host::new();
    host.write("real", "content\n");
    std::os::unix::fs::symlink("real", host.path().join("link")).unwrap();
    let code = "test -f link && test ! -L link && cat link";
    host.run(&["run", "-f", "link", "-l", "sh", "-c", code]).check(0, "content\n", "");
}

#[test]
fn file_that_does_not_fit_is_named() {
    let host = Host::new();
    host.write("big", vec![b'x'; 4 << 20]);
    let done = host.run(&["run", "--disk", "1m", "-f", "big", "-c", "print(1)"]);
    assert_eq!((done.status, done.text()), (125, ""));
    assert!(done.stderr.contains("big"), "{done:?}");
}
