//! Steps, their cache and their failures.

use belljar_engine::Engine as _;
use belljar_image::{BuildError, BuildEvent, BuildInput, Builder, BundleHeader};
use belljar_local::CreateRequest;
use belljar_model::{LimitsGrade, TreeBase};
use bytes::Bytes;

use crate::fixture::{Case, Fixture};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    vec![
        ("template_on_the_host_tree_is_built_and_used", |fixture| Box::pin(on_host(fixture))),
        ("steps_are_cached_by_their_inputs", |fixture| Box::pin(cache(fixture))),
        ("results_of_steps_are_each_tenants_own", |fixture| Box::pin(others(fixture))),
        ("steps_see_the_mirror_only_to_install_from_it", |fixture| Box::pin(hidden_mirror(fixture))),
        ("failed_step_is_named_in_the_error", |fixture| Box::pin(failing(fixture))),
        ("full_disk_is_named_in_the_error", |fixture| Box::pin(full_disk(fixture))),
        ("missing_inputs_are_reported_before_the_build", |fixture| Box::pin(missing(fixture))),
        ("owners_do_not_share_superblocks_and_none_is_left", |fixture| Box::pin(owners(fixture))),
        ("bundle_round_trip", |fixture| Box::pin(bundle(fixture))),
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

async fn on_host(fixture: Fixture) {
    let built = fixture.build_ok(HOST, &with_file("first\n")).await;
    assert_eq!(built.base, TreeBase::Host);
    let output = fixture.sh(&built, "cd /opt/template; cat made second; stat -c %a made; touch x").await;
    assert_ne!(output.code, 0, "{output:?}");
    assert!(output.text.contains("built by 0\nfirst\nhello\n755\n"), "{output:?}");
    assert!(output.text.contains("Read-only file system"), "{output:?}");
    assert_eq!(output.isolation.tree, "host");
}

fn cached(events: &[BuildEvent]) -> Vec<bool> {
    let steps = events.iter().filter_map(|event| match event {
        BuildEvent::Step { kind, cached, .. } if *kind != "env" => Some(*cached),
        _ => None,
    });
    steps.collect()
}

async fn cache(fixture: Fixture) {
    let (first, events) = fixture.build(HOST, &with_file("first\n")).await;
    assert_eq!(cached(&events), [false, false, false]);
    let (again, events) = fixture.build(HOST, &with_file("first\n")).await;
    assert_eq!(cached(&events), [true, true, true]);
    let first = first.unwrap();
    assert_eq!(again.unwrap(), first);
    let (other, events) = fixture.build(HOST, &with_file("other\n")).await;
    assert_eq!(cached(&events), [true, false, false]);
    assert_ne!(other.unwrap().layers, first.layers);
    // The same steps produce the same bytes when they run again.
    let fresh = BuildInput { fresh: true, ..with_file("first\n") };
    let (anew, events) = fixture.build(HOST, &fresh).await;
    assert_eq!(cached(&events), [false, false, false]);
    assert_eq!(anew.unwrap().layers, first.layers);
}

async fn others(fixture: Fixture) {
    let input = with_file("first\n");
    for owner in ["me", "other"] {
        let (_, events) = fixture.build_for(owner, HOST, &input).await;
        assert_eq!(cached(&events), [false, false, false], "{owner}");
    }
    for owner in ["me", "other"] {
        let (_, events) = fixture.build_for(owner, HOST, &input).await;
        assert_eq!(cached(&events), [true, true, true], "{owner}");
    }
}

async fn hidden_mirror(fixture: Fixture) {
    let mirror = fixture.path().join("packages");
    std::fs::create_dir_all(mirror.join("pip")).unwrap();
    let input = BuildInput { mirror: Some(mirror), ..BuildInput::default() };
    let look = "name = \"a\"\nbase = \"host\"\n[[step]]\nrun = \"ls -A /home/user > /opt/template/seen\"";
    let built = fixture.build_ok(look, &input).await;
    assert_eq!(fixture.sh(&built, "cat /opt/template/seen").await.text, "");
}

async fn failing(fixture: Fixture) {
    let text =
        "name = \"a\"\nbase = \"host\"\n[[step]]\nrun = \"true\"\n[[step]]\nrun = \"echo why; exit 7\"";
    let (built, _) = fixture.build(text, &BuildInput::default()).await;
    let error = built.unwrap_err();
    let BuildError::Step { number: 2, total: 2, kind: "run", code: Some(7), last_lines, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(last_lines, &["why"]);
    assert!(error.to_string().starts_with("step 2 of 2 (run): echo why; exit 7: it ended with exit code 7"));
    fixture.wait_for_no_loops().await;
}

async fn full_disk(fixture: Fixture) {
    let text = "name = \"a\"\nbase = \"host\"\n[build]\ndisk = \"8m\"\n[[step]]\nrun = \"head -c 100m /dev/zero > big\"";
    let (built, _) = fixture.build(text, &BuildInput::default()).await;
    let text = built.unwrap_err().to_string();
    assert!(text.contains("step 1 of 1 (run)") && text.contains("the disk of the build is full"), "{text}");
}

async fn missing(fixture: Fixture) {
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
        let (built, events) = fixture.build(&format!("name = \"a\"\n{text}"), &BuildInput::default()).await;
        let error = built.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(events, []);
    }
    let empty = BuildInput { mirror: Some(fixture.path().to_owned()), ..BuildInput::default() };
    let (built, _) =
        fixture.build("name = \"a\"\nbase = \"host\"\n[[step]]\npip = [\"numpy\"]", &empty).await;
    assert!(built.unwrap_err().to_string().contains("the mirror has no folder pip"));
}

async fn owners(fixture: Fixture) {
    let built = fixture.build_ok(HOST, &with_file("first\n")).await;
    fixture.wait_for_no_loops().await;
    let layers = &built.layers;
    assert_eq!(layers.len(), 3);
    let start = async |owner| {
        fixture.engine.create(CreateRequest::run(&fixture.spec(built.base, layers, owner))).await.unwrap()
    };
    let first = start("a").await;
    assert_eq!(fixture.loops(), 3);
    let second = start("a").await;
    assert_eq!(fixture.loops(), 3, "sandboxes of one owner share a superblock");
    let other = start("b").await;
    assert_eq!(fixture.loops(), 6, "sandboxes of another owner do not");
    first.stop().await.unwrap();
    drop(first);
    assert_eq!(fixture.loops(), 6);
    second.stop().await.unwrap();
    other.stop().await.unwrap();
    drop((second, other));
    fixture.wait_for_no_loops().await;
}

async fn bundle(fixture: Fixture) {
    let built = fixture.build_ok(HOST, &with_file("first\n")).await;
    assert_eq!(built.layers.len(), 3);
    let content: Vec<u8> = built
        .layers
        .iter()
        .flat_map(|layer| std::fs::read(fixture.layers.path(&layer.digest)).unwrap())
        .collect();
    let header = BundleHeader {
        name: "one".to_owned(),
        description: String::new(),
        base: built.base,
        layers: built.layers.clone(),
        spec: built.spec.clone(),
        start: None,
        ready: None,
        workdir: None,
        warm: Vec::new(),
    };
    let import = async |header: &BundleHeader, content: Vec<u8>| {
        let mut tell = |_| {};
        let builder = Builder {
            engine: &fixture.engine,
            layers: &fixture.layers,
            owner: "me",
            grade: LimitsGrade::default(),
            tell: &mut tell,
        };
        builder.import(header, std::io::Cursor::new(content)).await
    };
    let back = import(&header, content.clone()).await.unwrap();
    assert_eq!(back, built.layers, "the repacked layers are identical");
    let mut changed = content.clone();
    changed[200] ^= 1;
    let mut longer = content.clone();
    longer.push(0);
    for bad in [changed, content[..content.len() / 2].to_vec(), longer] {
        let error = import(&header, bad).await.unwrap_err().to_string();
        assert!(error.starts_with("bundle: "), "{error}");
    }
}
