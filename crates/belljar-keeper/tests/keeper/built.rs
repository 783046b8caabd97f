//! Built templates, and sandboxes of them.

use std::time::{Duration, Instant};

use belljar_keeper::{
    BuildEvent, BuildPlan, BuildProgress, BuildState, BuildStatus, BuildTemplate, Caller, CreateSandbox,
    FilesHash, ForkRequest, KeeperConfig, KeeperError, Labels, LogLevel, NewBuild, NewKey, PlanStep, Quotas,
    SnapshotRequest, TaggedName, TemplateBuild, TemplateInfo, TemplateKind,
};
use belljar_model::{Approval, LimitsFile, Role};
use belljar_testing::wait::DEADLINE;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::fixture::{Fixture, plain, text, user};

const ONE: &str = r#"
name = "one"
base = "host"
start = "echo started >> /home/user/log; sleep 1000"
ready = "test -e /home/user/log"
[[step]]
run = "echo made > /opt/template/made"
[[step]]
env = { GREETING = "hello" }
"#;

/// Returns a caller who may build templates.
fn admin(tenant: &str) -> Caller {
    Caller { role: Role::Admin, ..user(tenant) }
}

/// The error of a build.
#[derive(Debug)]
struct Failure {
    code: &'static str,
    text: String,
}

impl Failure {
    fn of(error: &KeeperError) -> Self {
        Self { code: error.code(), text: error.to_string() }
    }
}

async fn build(fixture: &Fixture, caller: &Caller, definition: &str) -> Result<TemplateInfo, Failure> {
    let building = start(fixture, caller, definition).await.map_err(|error| Failure::of(&error))?;
    finish(building).await
}

async fn start(fixture: &Fixture, caller: &Caller, definition: &str) -> Result<TemplateBuild, KeeperError> {
    let request = BuildTemplate { definition: definition.to_owned(), ..BuildTemplate::default() };
    fixture.keeper.build_template(caller, request).await
}

/// Waits for the end of a build.
async fn finish(mut building: TemplateBuild) -> Result<TemplateInfo, Failure> {
    while let Some(progress) = building.next().await {
        if let BuildProgress::Done(result) = progress {
            return result.as_ref().as_ref().cloned().map_err(Failure::of);
        }
    }
    panic!("a build has no end");
}

fn request_for(template: &str) -> CreateSandbox {
    CreateSandbox { template: Some(template.to_owned()), ..plain() }
}

/// A sandbox has the template's files, environment and service, as have its forks and those of its snapshot.
pub(crate) async fn template_lifecycle(fixture: Fixture) {
    let caller = admin("acme");
    let info = build(&fixture, &caller, ONE).await.unwrap();
    assert_eq!((info.kind, info.base, info.digest.len()), (TemplateKind::Built, "host", 64));
    let made = fixture.keeper.create(&caller, request_for("one")).await.unwrap().info;
    let look = "cat /opt/template/made ~/log; echo $GREETING; ls ~";
    let said = fixture.sh(&caller, made.id.as_str(), look).await;
    assert!(text(&said).starts_with("made\nstarted\nhello\n"), "{said:?}");
    fixture.sh(&caller, made.id.as_str(), "echo mine > ~/mine").await;
    let fork = ForkRequest { count: 1, timeout: None, labels: Labels::default(), env: Default::default() };
    let copies = fixture.keeper.fork(&caller, made.id.as_str(), fork).await.unwrap().all().await;
    let copy = copies.into_iter().next().unwrap().unwrap();
    let twice = format!("until [ $(grep -c started ~/log) = 2 ]; do sleep 0.05; done; {look}");
    let said = fixture.sh(&caller, copy.id.as_str(), &twice).await;
    // The copy has the file that the service has written to, and its own service has appended to it.
    assert!(
        text(&said).starts_with("made\nstarted\nstarted\nhello\n") && text(&said).contains("mine"),
        "{said:?}"
    );
    let request = SnapshotRequest { name: Some("kept".parse().unwrap()), note: None };
    fixture.keeper.snapshot(&caller, made.id.as_str(), request).await.unwrap();
    let again = fixture.keeper.create(&caller, request_for("kept")).await.unwrap().info;
    let said = fixture.sh(&caller, again.id.as_str(), &twice).await;
    assert!(text(&said).starts_with("made\nstarted\nstarted\n") && text(&said).contains("mine"), "{said:?}");
    // A new build takes over the name; running sandboxes are unaffected, and the layer in use is kept.
    let newer = build(&fixture, &caller, &ONE.replace("echo made", "echo newer")).await.unwrap();
    assert_ne!(newer.id, info.id);
    assert!(text(&fixture.sh(&caller, made.id.as_str(), look).await).starts_with("made\n"));
    // Only a caller who may build can remove a built template.
    let refused = fixture.keeper.remove_template(&user("acme"), "one").await.unwrap_err();
    assert_eq!(refused.code(), "forbidden", "{refused}");
    let other = Caller { key: "key_other".to_owned(), ..user("acme") };
    let refused = fixture.keeper.remove_template(&other, "kept").await.unwrap_err();
    assert!(
        matches!(&refused, KeeperError::Policy { field: "template", reason } if reason.contains("made by the key")),
        "{refused}"
    );
    fixture.keeper.remove_template(&caller, "kept").await.unwrap();
    fixture.keeper.remove_template(&caller, "one").await.unwrap();
    assert!(text(&fixture.sh(&caller, made.id.as_str(), look).await).starts_with("made\n"));
    check_unused_steps_are_collected(&fixture, &newer.digest).await;
    assert!(text(&fixture.sh(&caller, made.id.as_str(), look).await).starts_with("made\n"));
}

/// A template inherits from its base what it does not define itself.
pub(crate) async fn template_based_on_another_inherits_from_it(fixture: Fixture) {
    let caller = admin("acme");
    let one = ONE.replacen(
        "[[step]]",
        "warm = [\"json\"]\n[limits]\npids = 77\n[[step]]\nworkdir = \"/tmp\"\n[[step]]",
        1,
    );
    build(&fixture, &caller, &one).await.unwrap();
    let two = "name = \"two\"\nbase = \"template:one\"\nwarm = [\"csv\", \"json\"]\n[[step]]\nrun = \"pwd > /opt/template/where\"\n";
    let info = build(&fixture, &caller, two).await.unwrap();
    assert_eq!(info.warm, ["json", "csv"]);
    let made = fixture.keeper.create(&caller, request_for("two")).await.unwrap().info;
    assert_eq!(made.spec.limits.pids.to_string(), "77");
    let look = "cat /opt/template/made /opt/template/where ~/log; echo $GREETING";
    let said = fixture.sh(&caller, made.id.as_str(), look).await;
    assert_eq!(text(&said), "made\n/tmp\nstarted\nhello\n", "{said:?}");
    let three = "name = \"three\"\nbase = \"template:two\"\nstart = \"echo mine > ~/log; sleep 1000\"\nready = \"test -s ~/log\"\n";
    build(&fixture, &caller, three).await.unwrap();
    let made = fixture.keeper.create(&caller, request_for("three")).await.unwrap().info;
    let said = fixture.sh(&caller, made.id.as_str(), "cat ~/log").await;
    assert_eq!(text(&said), "mine\n", "{said:?}");
}

/// A key for sandboxes can build on an administrator's template, whose tree is kept for as long as it is needed.
pub(crate) async fn template_is_built_step_by_step(fixture: Fixture) {
    build(&fixture, &admin("acme"), ONE).await.unwrap();
    let caller = user("acme");
    let new = NewBuild {
        name: "two:v1".parse().unwrap(),
        tags: vec!["v2".to_owned()],
        limits: LimitsFile { memory: Some("300m".parse().unwrap()), ..LimitsFile::default() },
    };
    let requested = fixture.keeper.request_build(&caller, new).await.unwrap();
    let plan = BuildPlan {
        base: "one".to_owned(),
        steps: vec![
            PlanStep::Workdir("work".to_owned()),
            PlanStep::Env(vec![("BOTH".to_owned(), "$GREETING you".to_owned())]),
            PlanStep::Run {
                line: "cat /opt/template/made > copied; echo $BOTH >> copied".to_owned(),
                user: None,
            },
        ],
        start: None,
        ready: None,
        network: None,
    };
    let name: TaggedName = "two".parse().unwrap();
    check_uploads_are_of_one_key(&fixture, &caller, &name).await;
    fixture.keeper.start_build(&caller, &name, &requested.id, Ok(plan)).unwrap();
    let part = (0, 100, LogLevel::Debug);
    let until = Instant::now() + DEADLINE;
    let report = loop {
        let report = fixture.keeper.build_report(&caller, &name, &requested.id, part).await.unwrap();
        if !matches!(report.status, BuildStatus::Waiting | BuildStatus::Building) {
            break report;
        }
        assert!(Instant::now() < until, "{report:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((report.status, report.failure), (BuildStatus::Ready, None));
    // The build's sandbox has ended, and no longer counts against the quotas.
    assert!(fixture.keeper.is_empty());
    // Who may not replace it is told so before any step runs.
    let other = Caller { key: "key_other".to_owned(), ..caller.clone() };
    let again = || NewBuild { name: "two:v2".parse().unwrap(), tags: Vec::new(), limits: Default::default() };
    let refused = fixture.keeper.request_build(&other, again()).await.unwrap_err();
    assert!(refused.to_string().contains("made by the key"), "{refused}");
    fixture.keeper.request_build(&caller, again()).await.unwrap();
    let foreign = fixture.keeper.build_report(&user("other"), &name, &requested.id, part).await;
    assert_eq!(foreign.unwrap_err().code(), "not_found");
    // The layer is removed with the last template that uses it.
    fixture.keeper.remove_template(&admin("acme"), "one").await.unwrap();
    for template in ["two:v1", "two:v2"] {
        let made = fixture.keeper.create(&caller, request_for(template)).await.unwrap().info;
        assert_eq!(made.spec.limits.memory.to_string(), "300 MiB");
        let said =
            fixture.sh(&caller, made.id.as_str(), "cat /opt/template/made work/copied; echo $BOTH").await;
        assert_eq!(text(&said), "made\nmade\nhello you\nhello you\n", "{said:?}");
        fixture.keeper.kill(&caller, made.id.as_str()).await.unwrap();
    }
    assert!(fixture.keeper.remove_tagged(&caller, &name).await.unwrap());
    assert!(!fixture.keeper.remove_tagged(&caller, &name).await.unwrap());
    let archives = std::fs::read_dir(fixture.config.state_dir.join("templates")).unwrap();
    assert_eq!(archives.filter(|entry| entry.as_ref().unwrap().path().is_file()).count(), 0);
}

/// Files that a key has uploaded are not what another key of the tenant builds with.
async fn check_uploads_are_of_one_key(fixture: &Fixture, caller: &Caller, name: &TaggedName) {
    let admin = Caller::operator("test", "r");
    let new = |name: &str| NewKey {
        name: name.to_owned(),
        role: Role::User,
        tenant: caller.tenant.clone(),
        expires: None,
        quotas: Quotas::default(),
        owner: None,
        approval: Approval::Never,
    };
    let one = fixture.keeper.create_key(&admin, new("one")).await.unwrap();
    let two = fixture.keeper.create_key(&admin, new("two")).await.unwrap();
    let one = fixture.keeper.authenticate(&one.key, "c", "r").await.unwrap();
    let two = fixture.keeper.authenticate(&two.key, "c", "r").await.unwrap();
    let hash: FilesHash = "a".repeat(64).parse().unwrap();
    let link = fixture.keeper.upload_link(&one, name, &hash).unwrap();
    let upload = fixture.keeper.open_upload(&link.token, "c", "r").await.unwrap();
    let content = futures::stream::iter([Ok(Bytes::from_static(b"planted"))]);
    fixture.keeper.receive_upload(&upload, None, content).await.unwrap();
    assert!(fixture.keeper.upload_link(&one, name, &hash).unwrap().present);
    assert!(!fixture.keeper.upload_link(&two, name, &hash).unwrap().present);
}

/// Unused steps become leftovers, with the layers that nothing else uses.
async fn check_unused_steps_are_collected(fixture: &Fixture, digest: &str) {
    let admin = Caller::operator("test", "collect");
    let layers = fixture.config.state_dir.join("templates/layers");
    assert!(layers.join(digest).exists());
    assert_eq!(fixture.keeper.collect(&admin, false).await.unwrap(), []);
    fixture.keeper.reconfigure(KeeperConfig { keep_steps: Duration::ZERO, ..fixture.config.clone() });
    let left = fixture.keeper.collect(&admin, true).await.unwrap();
    let steps: u64 = left.iter().filter(|one| one.kind == "step").map(|one| one.count).sum();
    let files: Vec<_> =
        left.iter().filter(|one| one.kind == "layer").filter_map(|one| one.path.clone()).collect();
    // The running sandboxes use the other layer.
    assert_eq!((steps, files), (2, vec![layers.join(digest)]), "{left:?}");
    assert!(layers.join(digest).exists());
    assert_eq!(fixture.keeper.collect(&admin, false).await.unwrap(), left);
    assert!(!layers.join(digest).exists());
    assert_eq!(fixture.keeper.collect(&admin, true).await.unwrap(), []);
}

/// Invalid builds are refused with the name of the field.
pub(crate) async fn invalid_builds_are_refused(fixture: Fixture) {
    let caller = admin("acme");
    for (definition, code, said) in [
        ("name = \"a\"\nbase = \"template:a\"", "invalid_field", "start from itself"),
        ("name = \"a\"\nbase = \"template:b\"", "invalid_field", "built template b not found"),
        ("name = \"a\"\nbase = \"host\"\nmore = 1", "invalid_field", "line 3, column 1: more"),
        ("name = \"a\"\nbase = \"host\"\n[[step]]\nrun = \"exit 3\"", "build_failed", "step 1 of 1 (run)"),
    ] {
        let error = build(&fixture, &caller, definition).await.unwrap_err();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.text.contains(said), "{error:?}");
    }
    let with = |path: &str| BuildTemplate {
        definition: "name = \"a\"\nbase = \"host\"".to_owned(),
        mirror: Some(path.into()),
        ..BuildTemplate::default()
    };
    let error = fixture.keeper.build_template(&caller, with("relative")).await.err().unwrap();
    assert_eq!(error.code(), "invalid_field", "{error}");
    // The kernel parses the result, so not every key may build.
    for role in [Role::Read, Role::User] {
        let caller = Caller { role, ..user("acme") };
        assert_eq!(build(&fixture, &caller, ONE).await.unwrap_err().code, "forbidden");
        let source = std::io::Cursor::new(Vec::new());
        let error = fixture.keeper.import_template(&caller, None, source).await.unwrap_err();
        assert_eq!(error.code(), "forbidden", "{error}");
    }
    // Only its tenant can use it.
    build(&fixture, &caller, ONE).await.unwrap();
    let error = fixture.keeper.create(&admin("other"), request_for("one")).await.unwrap_err();
    assert_eq!(error.code(), "template_not_found", "{error}");
    let error = fixture.keeper.export_template(&admin("other"), "one").await.unwrap_err();
    assert_eq!(error.code(), "template_not_found", "{error}");
}

/// A template that was exported to a file and imported again is the same.
pub(crate) async fn template_round_trips_through_a_file(fixture: Fixture) {
    let caller = admin("acme");
    let info = build(&fixture, &caller, ONE).await.unwrap();
    let exported = fixture.keeper.export_template(&caller, "one").await.unwrap();
    let mut whole = exported.head;
    for (mut file, _) in exported.layers {
        std::io::Read::read_to_end(&mut file, &mut whole).unwrap();
    }
    let other = admin("other");
    let source = std::io::Cursor::new(whole.clone());
    let back = fixture.keeper.import_template(&other, Some("two".parse().unwrap()), source).await.unwrap();
    assert_eq!((back.digest.as_str(), back.name.as_deref()), (info.digest.as_str(), Some("two")));
    let made = fixture.keeper.create(&other, request_for("two")).await.unwrap().info;
    let said = fixture.sh(&other, made.id.as_str(), "cat /opt/template/made; echo $GREETING").await;
    assert_eq!(text(&said), "made\nhello\n");
    for bad in [b"PK".to_vec(), whole[..whole.len() - 1].to_vec(), Vec::new()] {
        let source = std::io::Cursor::new(bad);
        let error = fixture.keeper.import_template(&other, None, source).await.unwrap_err();
        assert_eq!(error.code(), "invalid_field", "{error}");
    }
}

/// A tree in which no sandbox can start is refused when it comes, and not by each of its sandboxes.
pub(crate) async fn imported_trees_start_a_sandbox(fixture: Fixture) {
    let dir = tempfile::tempdir().unwrap();
    let (tree, file) = (dir.path().join("tree"), dir.path().join("layer"));
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    let args = [
        tree.as_os_str(),
        file.as_os_str(),
        "-quiet".as_ref(),
        "-no-progress".as_ref(),
        "-all-root".as_ref(),
    ];
    let packed = std::process::Command::new("mksquashfs").args(args).output().unwrap();
    assert!(packed.status.success(), "{packed:?}");
    let bytes = std::fs::read(&file).unwrap();
    let header = serde_json::json!({
        "name": "bare", "description": "", "base": "own", "start": null, "ready": null, "warm": [],
        "layers": [{"digest": hex::encode(Sha256::digest(&bytes)), "bytes": bytes.len()}],
        "spec": {},
    });
    let whole = [format!("belljar-template 1\n{header}\n").into_bytes(), bytes].concat();
    let caller = admin("acme");
    let source = std::io::Cursor::new(whole);
    let error = fixture.keeper.import_template(&caller, None, source).await.unwrap_err();
    let said = error.to_string();
    assert_eq!(error.code(), "invalid_field", "{said}");
    assert!(said.starts_with("bundle: no sandbox can start in its tree: "), "{said}");
    let error = fixture.keeper.create(&caller, request_for("bare")).await.unwrap_err();
    assert_eq!(error.code(), "template_not_found", "{error}");
}

/// A second build waits for the first, which can be followed and cancelled; what it had finished stays cached.
pub(crate) async fn builds_are_queued_followed_and_cancelled(fixture: Fixture) {
    let caller = admin("acme");
    let slow =
        "name = \"slow\"\nbase = \"host\"\n[[step]]\nrun = \"echo first\"\n[[step]]\nrun = \"sleep 1000\"\n";
    let mut first = start(&fixture, &caller, slow).await.unwrap();
    let id = first.id().to_owned();
    let step = async |building: &mut TemplateBuild, wanted: usize| {
        while let Some(progress) = building.next().await {
            if matches!(progress, BuildProgress::Event(BuildEvent::Step { number, .. }) if number == wanted) {
                return;
            }
        }
        panic!("the build has ended");
    };
    step(&mut first, 2).await;
    let mut second = start(&fixture, &caller, ONE).await.unwrap();
    assert!(matches!(second.next().await, Some(BuildProgress::Queued { ahead: 1 })));
    let builds = fixture.keeper.template_builds(&caller).unwrap();
    let states: Vec<_> = builds.iter().map(|build| (build.name.as_str(), build.state, build.ahead)).collect();
    assert_eq!(states, [("slow", BuildState::Running, None), ("one", BuildState::Queued, Some(1))]);
    assert_eq!(builds[0].step.as_ref().unwrap().number, 2);
    // One that waits ends with its key.
    let operator = Caller::operator("test", "r");
    let key = NewKey { role: Role::Admin, tenant: "acme".to_owned(), ..crate::policy::new_key("other") };
    let key = fixture.keeper.create_key(&operator, key).await.unwrap();
    let other = fixture.keeper.authenticate(&key.key, "c", "r").await.unwrap();
    let mut third = start(&fixture, &other, ONE).await.unwrap();
    assert!(matches!(third.next().await, Some(BuildProgress::Queued { ahead: 2 })));
    fixture.keeper.revoke_key(&operator, &other.key).await.unwrap();
    let ended = finish(third).await.unwrap_err();
    assert!(ended.code == "policy_refused" && ended.text.contains("before the call began"), "{}", ended.text);
    // Who follows it later gets all events; nobody else's tenant does.
    let mut late = fixture.keeper.follow_build(&caller, &id).unwrap();
    step(&mut late, 1).await;
    assert_eq!(fixture.keeper.follow_build(&admin("other"), &id).err().unwrap().code(), "not_found");
    assert_eq!(fixture.keeper.cancel_build(&admin("other"), &id).await.unwrap_err().code(), "not_found");
    assert_eq!(fixture.keeper.template_builds(&user("acme")).unwrap_err().code(), "forbidden");
    assert_eq!(fixture.keeper.template_builds(&admin("other")).unwrap().len(), 0);
    let ended = fixture.keeper.cancel_build(&caller, &id).await.unwrap();
    assert_eq!(ended.state, BuildState::Cancelled);
    assert!(ended.error.unwrap().contains("was cancelled"));
    for building in [first, late] {
        assert_eq!(finish(building).await.unwrap_err().code, "build_failed");
    }
    let info = finish(second).await.unwrap();
    let second = fixture.keeper.template_builds(&caller).unwrap().remove(1);
    assert_eq!((second.state, second.template), (BuildState::Done, Some(info.id)));
    let mut again = start(&fixture, &caller, slow).await.unwrap();
    loop {
        let Some(progress) = again.next().await else { panic!("the build has ended") };
        if let BuildProgress::Event(BuildEvent::Step { number: 1, cached, .. }) = progress {
            assert!(cached, "the step that had ended runs again");
            break;
        }
    }
    // A build that has been cancelled stays as it is.
    let id = again.id().to_owned();
    for _ in 0..2 {
        assert_eq!(fixture.keeper.cancel_build(&caller, &id).await.unwrap().state, BuildState::Cancelled);
    }
    drop(again);
    // A template knows what it is made of.
    let child = "name = \"child\"\nbase = \"template:one\"\n[limits]\nmemory = \"300m\"\n[[step]]\nrun = \"echo a > b\"\n";
    let child = build(&fixture, &caller, child).await.unwrap();
    assert_eq!((child.parent.as_deref(), child.steps.len()), (Some("one"), 1));
    assert_eq!((child.steps[0].kind.as_str(), child.steps[0].summary.as_str()), ("run", "echo a > b"));
    assert_eq!(child.env.get("GREETING").map(String::as_str), Some("hello"));
    assert_eq!(child.limits.get("memory").map(String::as_str), Some("300 MiB"));
}
