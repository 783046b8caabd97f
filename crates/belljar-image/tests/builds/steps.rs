//! Steps, their cache, and how they fail.

use belljar_engine::Engine as _;
use belljar_image::{BuildError, BuildEvent, BuildInput, Builder, BundleHeader, Layer};
use belljar_local::CreateRequest;
use belljar_model::TreeBase;
use bytes::Bytes;

use crate::world::{Case, World};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    vec![
        ("a_template_on_the_host_is_built_and_used", |world| Box::pin(on_host(world))),
        ("steps_are_known_again_by_what_goes_in", |world| Box::pin(cache(world))),
        ("a_failed_step_names_itself", |world| Box::pin(failing(world))),
        ("a_step_that_fills_the_disk_says_so", |world| Box::pin(full_disk(world))),
        ("what_is_missing_is_told_before_anything_starts", |world| Box::pin(missing(world))),
        ("owners_have_superblocks_of_their_own_and_nothing_is_left", |world| Box::pin(owners(world))),
        ("a_template_goes_out_and_comes_back", |world| Box::pin(bundle(world))),
    ]
}

const HOST: &str = r#"
name = "one"
base = "host"
[[step]]
run = "echo built by $(id -u) > /opt/template/made; chmod 4755 /opt/template/made"
[[step]]
copy = { from = "data", to = "/opt/template/data" }
[[step]]
env = { GREETING = "hello" }
[[step]]
run = "cat data/a > second; echo $GREETING >> second"
"#;

fn with_file(content: &'static str) -> BuildInput {
    let files = [("data/a".to_owned(), (0o644, Bytes::from_static(content.as_bytes())))];
    BuildInput { files: files.into(), ..BuildInput::default() }
}

async fn on_host(world: World) {
    let built = world.good(HOST, &with_file("first\n")).await;
    assert_eq!(built.base, TreeBase::Host);
    let said = world.sh(&built, "cd /opt/template; cat made second; stat -c %a made; touch x").await;
    assert_ne!(said.code, 0, "{said:?}");
    assert!(said.text.contains("built by 0\nfirst\nhello\n755\n"), "{said:?}");
    assert!(said.text.contains("Read-only file system"), "{said:?}");
    assert_eq!(said.isolation.tree, "host");
}

fn cached(told: &[BuildEvent]) -> Vec<bool> {
    let steps = told.iter().filter_map(|event| match event {
        BuildEvent::Step { kind, cached, .. } if *kind != "env" => Some(*cached),
        _ => None,
    });
    steps.collect()
}

async fn cache(world: World) {
    let (first, told) = world.build(HOST, &with_file("first\n")).await;
    assert_eq!(cached(&told), [false, false, false]);
    let (again, told) = world.build(HOST, &with_file("first\n")).await;
    assert_eq!(cached(&told), [true, true, true]);
    let first = first.unwrap();
    assert_eq!(again.unwrap(), first);
    let (other, told) = world.build(HOST, &with_file("other\n")).await;
    assert_eq!(cached(&told), [true, false, false]);
    assert_ne!(other.unwrap().layer, first.layer);
    // The same steps make the same bytes, also when they run anew.
    let fresh = BuildInput { fresh: true, ..with_file("first\n") };
    let (anew, told) = world.build(HOST, &fresh).await;
    assert_eq!(cached(&told), [false, false, false]);
    assert_eq!(anew.unwrap().layer, first.layer);
}

async fn failing(world: World) {
    let text =
        "name = \"a\"\nbase = \"host\"\n[[step]]\nrun = \"true\"\n[[step]]\nrun = \"echo why; exit 7\"";
    let (built, _) = world.build(text, &BuildInput::default()).await;
    let error = built.unwrap_err();
    let BuildError::Step { number: 2, total: 2, kind: "run", code: Some(7), last_lines, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(last_lines, &["why"]);
    assert!(error.to_string().starts_with("step 2 of 2 (run): echo why; exit 7: it ended with exit code 7"));
    world.until_no_loops().await;
}

async fn full_disk(world: World) {
    let text = "name = \"a\"\nbase = \"host\"\n[build]\ndisk = \"8m\"\n[[step]]\nrun = \"head -c 100m /dev/zero > big\"";
    let (built, _) = world.build(text, &BuildInput::default()).await;
    let text = built.unwrap_err().to_string();
    assert!(text.contains("step 1 of 1 (run)") && text.contains("the disk of the build is full"), "{text}");
}

async fn missing(world: World) {
    for (text, expected) in [
        ("base = \"debian\"", "base: a base has no network"),
        (
            "base = \"host\"\n[[step]]\npip = [\"numpy\"]",
            "step.1.pip: it has no network, so packages come from a directory",
        ),
        (
            "base = \"host\"\n[[step]]\ncopy = { from = \"a\", to = \"/opt/template/a\" }",
            "step.1.copy.from: ",
        ),
        ("base = \"oci\"\nimage = \"x\"", "image: "),
        ("base = \"template:other\"", "base: there is no template other"),
    ] {
        let (built, told) = world.build(&format!("name = \"a\"\n{text}"), &BuildInput::default()).await;
        let error = built.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(told, []);
    }
    let empty = BuildInput { mirror: Some(world.path().to_owned()), ..BuildInput::default() };
    let (built, _) = world.build("name = \"a\"\nbase = \"host\"\n[[step]]\npip = [\"numpy\"]", &empty).await;
    assert!(built.unwrap_err().to_string().contains("the mirror has no folder pip"));
}

async fn owners(world: World) {
    let built = world.good(HOST, &with_file("first\n")).await;
    world.until_no_loops().await;
    let layer = built.layer.as_ref();
    let start = async |owner| {
        world.engine.create(CreateRequest::run(&world.spec(built.base, layer, owner))).await.unwrap()
    };
    let first = start("a").await;
    assert_eq!(world.loops(), 1);
    let second = start("a").await;
    assert_eq!(world.loops(), 1, "sandboxes of one owner share a superblock");
    let other = start("b").await;
    assert_eq!(world.loops(), 2, "those of another do not");
    first.stop().await.unwrap();
    drop(first);
    assert_eq!(world.loops(), 2);
    second.stop().await.unwrap();
    other.stop().await.unwrap();
    drop((second, other));
    world.until_no_loops().await;
}

async fn bundle(world: World) {
    let built = world.good(HOST, &with_file("first\n")).await;
    let layer = built.layer.clone().unwrap();
    let content = std::fs::read(world.layers.path(&layer.digest)).unwrap();
    let header = |layer: Layer| BundleHeader {
        name: "one".to_owned(),
        description: String::new(),
        base: built.base,
        layer: Some(layer),
        spec: built.spec.clone(),
        start: None,
        ready: None,
        workdir: None,
        warm: Vec::new(),
    };
    let import = async |header: &BundleHeader, content: Vec<u8>| {
        let mut tell = |_| {};
        let builder = Builder { engine: &world.engine, layers: &world.layers, owner: "me", tell: &mut tell };
        builder.import(header, std::io::Cursor::new(content)).await
    };
    let back = import(&header(layer.clone()), content.clone()).await.unwrap();
    assert_eq!(back.as_ref(), Some(&layer), "what is packed anew is the same");
    let mut changed = content.clone();
    changed[200] ^= 1;
    let mut longer = content.clone();
    longer.push(0);
    for bad in [changed, content[..content.len() / 2].to_vec(), longer] {
        let error = import(&header(layer.clone()), bad).await.unwrap_err().to_string();
        assert!(error.starts_with("bundle: "), "{error}");
    }
}
