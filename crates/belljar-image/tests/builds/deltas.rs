//! Layers with only what a step has changed in those below.

use std::process::Command;

use belljar_image::{BuildEvent, BuildInput, Builder, BundleHeader, Definition};
use belljar_model::{LimitsGrade, MAX_TREE_LAYERS};
use bytes::Bytes;
use tar::EntryType;

use crate::fixture::{Case, Fixture};
use crate::images::{Entry, base_layer, layout};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    vec![
        ("step_costs_what_it_changes", |fixture| Box::pin(cost(fixture))),
        ("removed_and_replaced_files_are_gone_from_layers_above", |fixture| Box::pin(removed(fixture))),
        ("too_many_layers_become_one", |fixture| Box::pin(many(fixture))),
        ("modules_are_compiled_once", |fixture| Box::pin(compiled(fixture))),
        ("steps_do_not_share_temporary_files", |fixture| Box::pin(temporary(fixture))),
    ]
}

const OCI: &str = "name = \"tiny\"\nbase = \"oci\"\nimage = \"layout\"\n";
/// Size of the large file in the base, which cannot be compressed.
const LARGE_BYTES: usize = 48 << 20;
/// Size of the copied file, which cannot be compressed either.
const COPY_BYTES: usize = 220_000;

fn random(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9u32;
    let words = (0..length.div_ceil(4)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_ne_bytes()
    });
    words.take(length).collect()
}

/// Returns the sizes of the layers that a build has made, by the number of the step.
fn made(events: &[BuildEvent]) -> Vec<(usize, u64)> {
    let layers = events.iter().filter_map(|event| match event {
        BuildEvent::Layer { number, bytes, .. } => Some((*number, *bytes)),
        _ => None,
    });
    layers.collect()
}

async fn cost(fixture: Fixture) {
    let large = random(LARGE_BYTES);
    let root = layout(
        fixture.path(),
        &[base_layer(&[
            ("work/", EntryType::Directory, 0o755, b""),
            ("large", EntryType::Regular, 0o644, &large),
        ])],
    );
    let files = [("data".to_owned(), (0o644, Bytes::from(random(COPY_BYTES))))];
    let input = BuildInput { image: Some(root), files: files.into(), ..BuildInput::default() };
    let text = format!(
        "{OCI}[[step]]\nrun = \"echo hi\"\n[[step]]\ncopy = {{ from = \"data\", to = \"/srv/data\" }}\n\
         [[step]]\nrun = \"cat /large > /dev/null; echo hi > /small\"\n"
    );
    let (built, events) = fixture.build(&text, &input).await;
    let built = built.unwrap();
    let layers = made(&events);
    let [(0, base), (2, copied), (3, small)] = layers.as_slice() else { panic!("{layers:?}") };
    assert!(*base > LARGE_BYTES as u64, "{layers:?}");
    assert!((COPY_BYTES as u64..COPY_BYTES as u64 + 16_384).contains(copied), "{layers:?}");
    assert!(*small <= 8192, "{layers:?}");
    assert_eq!(built.layers.len(), 3);
    let packed = events.iter().filter_map(|event| match event {
        BuildEvent::Packing { number: 2, bytes } => Some(*bytes),
        _ => None,
    });
    assert!((COPY_BYTES as u64..COPY_BYTES as u64 + 65_536).contains(&packed.max().unwrap()));
    let output = fixture.sh(&built, "cat /small; stat -c %s /large /srv/data").await;
    assert_eq!(output.text, format!("hi\n{LARGE_BYTES}\n{COPY_BYTES}\n"), "{output:?}");
    fixture.wait_for_no_loops().await;
}

/// Prints the tree below /t: names, types, modes, contents, link targets, and which names are one file.
const LOOK: &str = "cd /t && ls -A1F . */ && cat */file */*/file 2>/dev/null; stat -c '%n %a %h' *; cat link/file; test one/file -ef two/other && echo same";

async fn removed(fixture: Fixture) {
    use EntryType::{Directory, Regular, Symlink};
    let entries: &[Entry<'_>] = &[
        ("work/", Directory, 0o755, b""),
        ("t/", Directory, 0o755, b""),
        ("t/one/", Directory, 0o755, b""),
        ("t/one/file", Regular, 0o644, b"one\n"),
        ("t/one/gone", Regular, 0o644, b"gone\n"),
        ("t/anew/", Directory, 0o755, b""),
        ("t/anew/old", Regular, 0o644, b"old\n"),
        ("t/anew/sub/", Directory, 0o755, b""),
        ("t/anew/sub/old", Regular, 0o644, b"old\n"),
        ("t/anew/kept", Regular, 0o644, b"old\n"),
        ("t/to_file/", Directory, 0o755, b""),
        ("t/to_file/old", Regular, 0o644, b"old\n"),
        ("t/to_dir", Regular, 0o644, b"old\n"),
        ("t/to_link/", Directory, 0o755, b""),
        ("t/to_link/old", Regular, 0o644, b"old\n"),
        ("t/link", Symlink, 0o777, b"one"),
        ("t/mode", Regular, 0o644, b""),
    ];
    let root = layout(fixture.path(), &[base_layer(entries)]);
    let input = BuildInput { image: Some(root), ..BuildInput::default() };
    // A file whose name is that of a whiteout in an image is none here.
    let first = "rm /t/one/gone; rm -r /t/anew; mkdir -p /t/anew/sub; echo new > /t/anew/sub/file; echo kept > /t/anew/kept; \
                 rm -r /t/to_file; echo file > /t/to_file; rm /t/to_dir; mkdir /t/to_dir; echo dir > /t/to_dir/file; \
                 rm -r /t/to_link; ln -s one /t/to_link; chmod 700 /t/mode; echo mine > /t/.wh.mine; \
                 mkdir /t/two; echo linked > /t/two/other; rm /t/one/file; ln /t/two/other /t/one/file";
    // Removes what the step before has made, and makes again what it has removed.
    let second = "rm -r /t/to_dir; echo again > /t/one/gone; rm /t/to_file; mkdir /t/to_file; echo deep > /t/to_file/file";
    let text = format!("{OCI}[[step]]\nrun = '''{first}'''\n[[step]]\nrun = '''{second}; ( {LOOK} )'''\n");
    let (built, events) = fixture.build(&text, &input).await;
    let built = built.unwrap_or_else(|error| panic!("{error} {events:?}"));
    assert_eq!(built.layers.len(), 3);
    let lines = events.iter().filter_map(|event| match event {
        BuildEvent::Log { number: 2, line } => Some(format!("{line}\n")),
        _ => None,
    });
    let in_step: String = lines.collect();
    let output = fixture.sh(&built, LOOK).await;
    assert_eq!(output.text.replace('\n', ""), in_step.replace('\n', ""), "the step sees what sandboxes see");
    for expected in [
        "same\n",
        "mode 755 1\n",
        "anew/:\nkept\nsub/\n",
        "deep\n",
        "link@\n",
        "to_link@\n",
        ".wh.mine\n",
        "one/:\nfile\ngone\n",
    ] {
        assert!(output.text.contains(expected), "{expected}: {output:?}");
    }
    assert!(!output.text.contains("old") && !output.text.contains("to_dir"), "{output:?}");
    let anew = BuildInput { fresh: true, ..input };
    assert_eq!(
        fixture.build_ok(&text, &anew).await.layers,
        built.layers,
        "the same steps give the same layers"
    );
    imported(&fixture, &built, &output.text).await;
    fixture.wait_for_no_loops().await;
}

/// Imports a template whose layers remove files.
async fn imported(fixture: &Fixture, built: &belljar_image::Built, expected: &str) {
    let content =
        built.layers.iter().flat_map(|layer| std::fs::read(fixture.layers.path(&layer.digest)).unwrap());
    let content: Vec<u8> = content.collect();
    let header = BundleHeader {
        name: "tiny".to_owned(),
        description: String::new(),
        base: built.base,
        layers: built.layers.clone(),
        spec: built.spec.clone(),
        start: None,
        ready: None,
        workdir: None,
        warm: Vec::new(),
    };
    let mut tell = |_| {};
    let builder = Builder {
        engine: &fixture.engine,
        layers: &fixture.layers,
        owner: "me",
        grade: LimitsGrade::default(),
        tell: &mut tell,
    };
    let layers = builder.import(&header, std::io::Cursor::new(content)).await.unwrap();
    let imported = belljar_image::Built { layers, ..built.clone() };
    assert_eq!(fixture.sh(&imported, LOOK).await.text, expected);
}

async fn many(fixture: Fixture) {
    let count = MAX_TREE_LAYERS + 2;
    let step = |number: usize| {
        format!(
            "[[step]]\nrun = \"echo {number} >> log; echo {number} > file-{number}; rm -f file-{}\"\n",
            number - 1
        )
    };
    let steps: String = (1..=count).map(step).collect();
    let text = format!("name = \"many\"\nbase = \"host\"\n{steps}");
    let built = fixture.build_ok(&text, &BuildInput::default()).await;
    // All layers became one when there was no room for another.
    assert_eq!(built.layers.len(), count - MAX_TREE_LAYERS);
    let output = fixture.sh(&built, "cd /opt/template; ls; cat log").await;
    let numbers: String = (1..=count).map(|number| format!("{number}\n")).collect();
    assert_eq!(output.text, format!("file-{count}\nlog\n{numbers}"));
    let cached = fixture.build_ok(&text, &BuildInput::default()).await;
    assert_eq!(cached, built);
    // A template can be based on one that has all layers.
    let full: String = (1..=MAX_TREE_LAYERS).map(step).collect();
    let full =
        fixture.build_ok(&format!("name = \"full\"\nbase = \"host\"\n{full}"), &BuildInput::default()).await;
    assert_eq!(full.layers.len(), MAX_TREE_LAYERS);
    let output = fixture.sh(&full, "cd /opt/template; ls").await;
    assert_eq!(output.text, format!("file-{MAX_TREE_LAYERS}\nlog\n"));
}

const COMPILE: &str = include_str!("../../src/scripts/compile.sh");

/// Runs the script as steps do, and returns which modules it has compiled.
fn compile(changes: &std::path::Path, tree: &std::path::Path) -> Vec<String> {
    let dir = tree.join("lib");
    let time = |path: &std::path::Path| std::fs::metadata(path).map(|found| found.modified().unwrap()).ok();
    let cached = || {
        let mut found = std::collections::BTreeMap::new();
        for name in ["lib/a", "lib/b", "lib/sub/c"] {
            let (parent, stem) = name.rsplit_once('/').unwrap();
            let entries =
                std::fs::read_dir(tree.join(parent).join("__pycache__")).into_iter().flatten().flatten();
            let file = entries
                .map(|entry| entry.path())
                .find(|path| path.display().to_string().contains(&format!("/{stem}.")));
            found.insert(name.to_owned(), file.and_then(|file| time(&file)));
        }
        found
    };
    let before = cached();
    let line = format!("set -- '{}' '{}' '{}'\n{COMPILE}", changes.display(), tree.display(), dir.display());
    assert!(Command::new("sh").arg("-c").arg(line).status().unwrap().success());
    cached().into_iter().filter(|(name, at)| before[name] != *at).map(|(name, _)| name).collect()
}

async fn compiled(fixture: Fixture) {
    let (tree, changes) = (fixture.path().join("tree"), fixture.path().join("changes"));
    for (dir, name) in [("lib", "a"), ("lib", "b"), ("lib/sub", "c")] {
        std::fs::create_dir_all(tree.join(dir)).unwrap();
        std::fs::write(tree.join(dir).join(name).with_extension("py"), "x = 1\n").unwrap();
    }
    if !Command::new("python3").arg("-c").arg("").status().is_ok_and(|status| status.success()) {
        return;
    }
    // Without layers below, all of it is new.
    assert_eq!(compile(&tree, &tree), ["lib/a", "lib/b", "lib/sub/c"]);
    std::fs::create_dir_all(changes.join("lib")).unwrap();
    assert_eq!(compile(&changes, &tree), Vec::<String>::new());
    // A changed module, whose bytecode claims to be valid for any file.
    std::fs::write(tree.join("lib/a.py"), "x = 2\n").unwrap();
    std::fs::copy(tree.join("lib/a.py"), changes.join("lib/a.py")).unwrap();
    assert_eq!(compile(&changes, &tree), ["lib/a"]);
    std::fs::remove_file(changes.join("lib/a.py")).unwrap();
    // Bytecode that is valid only for the time of the module's file.
    let status =
        Command::new("python3").args(["-m", "compileall", "-q", "-f"]).arg(tree.join("lib/sub")).status();
    assert!(status.unwrap().success());
    assert_eq!(compile(&changes, &tree), ["lib/sub/c"]);
    assert_eq!(compile(&changes, &tree), Vec::<String>::new());
}

/// Whether the steps before are cached makes no difference: what they leave outside of the tree is gone.
async fn temporary(fixture: Fixture) {
    let text = "name = \"a\"\nbase = \"host\"\n[[step]]\nrun = \"echo x > /tmp/left; echo x > /home/user/left; echo x > kept\"\n\
                [[step]]\nrun = \"ls /tmp /home/user; cat kept; test ! -e /tmp/left\"\n";
    Definition::parse(text).unwrap();
    let (built, events) = fixture.build(text, &BuildInput::default()).await;
    assert!(built.is_ok(), "{built:?} {events:?}");
    assert!(!events.iter().any(|event| matches!(event, BuildEvent::Log { line, .. } if line == "left")));
}
