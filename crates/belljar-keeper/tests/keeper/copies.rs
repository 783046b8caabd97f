//! Snapshots and forks.

use std::collections::BTreeMap;

use belljar_keeper::{
    AuditFilter, Caller, CreateSandbox, ForkRequest, KeeperError, Labels, ListSandboxes, OnShutdown, Part,
    SnapshotRequest, TemplateKind,
};
use belljar_model::{Approval, Role, SandboxState, SpecFile, ToolFile};
use sha2::{Digest as _, Sha256};

use crate::approvals;
use crate::fixture::{Fixture, plain, shell, text, until, user};

pub(crate) async fn snapshot_creates_template(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    fixture
        .sh(
            &ann,
            &id,
            "mkdir -p d/e && echo deep > d/e/f && ln -s d/e/f link && chmod 750 d && echo t > /tmp/t",
        )
        .await;
    let named =
        |name: &str| SnapshotRequest { name: Some(name.parse().unwrap()), note: Some("kept".to_owned()) };
    let template = fixture.keeper.snapshot(&ann, &id, named("deep")).await.unwrap();
    assert!(template.bytes > 0 && template.digest.len() == 64 && template.kind == TemplateKind::Snapshot);
    assert_eq!(template.note.as_deref(), Some("kept"));
    // Earlier versions do not know these keys.
    let row = fixture.store.templates().get("ann", &template.id).await.unwrap().unwrap();
    assert!(!row.spec.contains("screening") && !row.spec.contains("approval"), "{}", row.spec);
    let clash = fixture.keeper.snapshot(&ann, &id, named("deep")).await.unwrap_err();
    assert!(matches!(clash, KeeperError::Field { field: "name", .. }), "{clash}");
    // The template does not depend on the original.
    fixture.keeper.kill(&ann, &id).await.unwrap();
    for reference in ["deep", template.id.as_str()] {
        let request = CreateSandbox { template: Some(reference.to_owned()), ..plain() };
        let made = fixture.keeper.create(&ann, request).await.unwrap().info;
        assert_eq!(made.template, "deep");
        let seen = fixture.sh(&ann, made.id.as_str(), "cat link; stat -c %a d; ls /tmp; ls -A").await;
        assert_eq!(text(&seen), "deep\n750\nd\nlink\n", "/tmp is not copied");
    }
    let bob = user("bob");
    for id in ["deep", template.id.as_str()] {
        assert_eq!(fixture.keeper.template(&bob, id).await.unwrap_err().code(), "template_not_found");
        let request = CreateSandbox { template: Some(id.to_owned()), ..plain() };
        assert_eq!(fixture.keeper.create(&bob, request).await.unwrap_err().code(), "template_not_found");
    }
    let names: Vec<_> = fixture
        .keeper
        .templates(&ann, &Part::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|one| one.name)
        .collect();
    assert_eq!(names, ["default", "deep"]);
    // Others of the tenant start from it, and tools do: only its maker, or an administrator, takes its name away.
    let other = Caller { key: "key_other".to_owned(), ..ann.clone() };
    let refused = fixture.keeper.remove_template(&other, "deep").await.unwrap_err();
    assert_eq!(refused.code(), "policy_refused", "{refused}");
    fixture.keeper.remove_template(&ann, "deep").await.unwrap();
    assert_eq!(fixture.keeper.template(&ann, "deep").await.unwrap_err().code(), "template_not_found");
    assert_eq!(std::fs::read_dir(fixture.config.state_dir.join("templates")).unwrap().count(), 0);
    assert_eq!(fixture.keeper.remove_template(&ann, "default").await.unwrap_err().code(), "policy_refused");
}

pub(crate) async fn default_template_is_the_operators_choice(fixture: Fixture) {
    let ann = user("ann");
    let keeper = fixture.reopen(|config| config.default_template = "Team/mine_1.0".to_owned()).await;
    let missing = keeper.create(&ann, plain()).await.unwrap_err();
    assert!(
        matches!(&missing, KeeperError::Field { field: "template", reason } if reason.contains("sandboxes.default_template")),
        "{missing}"
    );
    let machine = CreateSandbox { template: Some("default".to_owned()), ..plain() };
    let id = keeper.create(&ann, machine).await.unwrap().info.id.to_string();
    keeper.exec(&ann, &id, shell("echo kept > f")).await.unwrap();
    let named = SnapshotRequest { name: Some("Team/mine_1.0".parse().unwrap()), note: None };
    // What others start from without asking for it is an administrator's to give.
    let refused = keeper.snapshot(&ann, &id, named.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("sandboxes.default_template names it"), "{refused}");
    let admin = Caller { role: Role::Admin, ..ann.clone() };
    keeper.snapshot(&admin, &id, named).await.unwrap();
    let made = keeper.create(&ann, plain()).await.unwrap().info;
    assert_eq!(made.template, "Team/mine_1.0");
    let seen = keeper.exec(&ann, made.id.as_str(), shell("cat f")).await.unwrap();
    assert_eq!(text(&seen), "kept\n");
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn templates_belong_to_persons_and_names_to_tools(fixture: Fixture) {
    let key = async |role, owner| approvals::caller(&fixture, role, owner, Approval::Never).await;
    let (first, second) = (key(Role::User, Some("pia")).await, key(Role::User, Some("pia")).await);
    let (other, admin) = (key(Role::User, None).await, key(Role::Admin, None).await);
    let id = fixture.create(&first).await.id.to_string();
    let named = |name: &str| SnapshotRequest { name: Some(name.parse().unwrap()), note: None };
    // Another key of the same person, also when that of the template is revoked.
    fixture.keeper.snapshot(&first, &id, named("base")).await.unwrap();
    let refused = fixture.keeper.remove_template(&other, "base").await.unwrap_err();
    assert_eq!(refused.code(), "policy_refused", "{refused}");
    fixture.keeper.revoke_key(&Caller::operator("test", "request"), &first.key).await.unwrap();
    fixture.keeper.remove_template(&second, "base").await.unwrap();
    // What a tool starts from has a name that no user takes when it is free.
    fixture.keeper.snapshot(&admin, &id, named("shared")).await.unwrap();
    let tool = "[[tool]]\nname = 't'\ndescription = 'd'\nlanguages = ['bash']\ntemplate = 'shared'\n";
    let tool = ToolFile::list_from_toml(tool).unwrap().remove(0);
    fixture.keeper.create_tool(&admin, tool).await.unwrap();
    fixture.keeper.remove_template(&admin, "shared").await.unwrap();
    let refused = fixture.keeper.snapshot(&second, &id, named("shared")).await.unwrap_err();
    assert!(refused.to_string().contains("the tool t@1 starts from it"), "{refused}");
    fixture.keeper.snapshot(&admin, &id, named("shared")).await.unwrap();
    fixture.keeper.snapshot(&second, &id, named("unclaimed")).await.unwrap();
}

pub(crate) async fn snapshots_have_the_names_that_clients_make(_: Fixture) {
    let uuid = "my-sandbox-1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed";
    for good in [uuid, "A", "a_b", "a.b", "ns/name:tag", "Ns/Name.1:v1.0", &"a".repeat(128)] {
        assert!(good.parse::<belljar_keeper::SnapshotName>().is_ok(), "{good}");
    }
    let id = format!("tpl_{}", "0".repeat(20));
    for bad in [
        "",
        "-a",
        ".a",
        "a b",
        "a/",
        "/a",
        "a:",
        ":a",
        "a/b/c",
        "a:b:c",
        "..",
        "a/../b",
        "é",
        &id,
        &"a".repeat(129),
    ] {
        assert!(bad.parse::<belljar_keeper::SnapshotName>().is_err(), "{bad}");
    }
}

pub(crate) async fn fork_copies_files_only(fixture: Fixture) {
    let ann = user("ann");
    let labels = Labels::new(BTreeMap::from([("job".to_owned(), "1".to_owned())])).unwrap();
    let name = Some("origin".parse().unwrap());
    let original = fixture.keeper.create(&ann, CreateSandbox { labels, name, ..plain() }).await.unwrap().info;
    let id = original.id.to_string();
    fixture.sh(&ann, &id, "echo kept > f").await;
    fixture.keeper.publish_port(&ann, &id, 8000, true).await.unwrap();
    fixture.keeper.start(&ann, &id, shell("sleep 1000")).await.unwrap();
    let request = ForkRequest {
        count: 3,
        timeout: None,
        labels: Labels::new(BTreeMap::from([("fork".to_owned(), "yes".to_owned())])).unwrap(),
        env: BTreeMap::from([("WHO".to_owned(), "fork".to_owned())]),
    };
    let forks = fixture.keeper.fork(&ann, &id, request).await.unwrap().all().await;
    assert_eq!(forks.len(), 3);
    let mut seen = std::collections::BTreeSet::from([original.id.clone()]);
    for fork in forks {
        let fork = fork.unwrap();
        assert!(seen.insert(fork.id.clone()), "each fork has its own id");
        assert_eq!((fork.labels.len(), fork.name.as_deref(), fork.ports.len()), (2, None, 0));
        let result = fixture.sh(&ann, fork.id.as_str(), "cat f; echo $WHO; echo own > f").await;
        assert_eq!(text(&result), "kept\nfork\n");
        assert_eq!(fixture.running(&ann, fork.id.as_str()).await, 0);
    }
    assert_eq!(text(&fixture.sh(&ann, &id, "cat f").await), "kept\n");
    assert_eq!(fixture.running(&ann, &id).await, 1);
    assert_eq!(std::fs::read_dir(fixture.config.state_dir.join("templates")).unwrap().count(), 0);
    for count in [0, 21] {
        let request = ForkRequest { count, timeout: None, labels: Labels::default(), env: BTreeMap::new() };
        let refused = fixture.keeper.fork(&ann, &id, request).await.err().unwrap();
        assert!(matches!(refused, KeeperError::Field { field: "count", .. }), "{refused}");
    }
}

/// With one start at a time, the first fork can be used before the last one exists.
pub(crate) async fn forks_are_returned_as_they_become_ready(_: Fixture) {
    let fixture = Fixture::new(|config| config.max_starts = 1).await;
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    fixture.sh(&ann, &id, "seq 2000 | xargs touch").await;
    let request = ForkRequest { count: 6, timeout: None, labels: Labels::default(), env: BTreeMap::new() };
    let mut forks = fixture.keeper.fork(&ann, &id, request.clone()).await.unwrap();
    let first = forks.next().await.unwrap().unwrap();
    let list = || ListSandboxes { limit: 100, ..ListSandboxes::default() };
    let running = |info: &belljar_keeper::SandboxInfo| info.state == SandboxState::Running;
    let there = fixture.keeper.list(&ann, list()).await.unwrap().items;
    let ready = there.iter().filter(|info| running(info)).count();
    assert!((2..7).contains(&ready), "{ready} of 7 run when the first fork is returned");
    assert_eq!(text(&fixture.sh(&ann, first.id.as_str(), "ls | wc -l").await), "2000\n");
    // Dropping the stream does not cancel the remaining forks, as with a create.
    drop(forks);
    until("all forks exist", || async {
        let there = fixture.keeper.list(&ann, list()).await.unwrap().items;
        there.len() == 7 && there.iter().all(running)
    })
    .await;
    let operator = Caller::operator("test", "r");
    let records =
        fixture.keeper.audit_records(&operator, &AuditFilter::default(), Some(0), 100).await.unwrap();
    let forked = records.iter().filter(|record| record.action == "sandbox.fork").count();
    assert_eq!(forked, 6, "each fork is in the audit log");
    fixture.keeper.close(OnShutdown::Kill).await.unwrap();
}

/// Imports a template `box` without programs, whose sandboxes are machines.
async fn import_machine(fixture: &Fixture, admin: &Caller) {
    let dir = tempfile::tempdir().unwrap();
    let (tree, file) = (dir.path().join("tree"), dir.path().join("layer"));
    for path in ["proc", "dev", "sys", "tmp", "run", "home/user", "etc", "var", "root"] {
        std::fs::create_dir_all(tree.join(path)).unwrap();
    }
    for (name, text) in [
        ("hosts", ""),
        ("hostname", ""),
        ("resolv.conf", ""),
        ("passwd", "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"),
        ("group", "root:x:0:\nuser:x:1000:\n"),
    ] {
        std::fs::write(tree.join("etc").join(name), text).unwrap();
    }
    let packed = std::process::Command::new("mksquashfs").arg(&tree).arg(&file).arg("-quiet").output();
    assert!(packed.as_ref().unwrap().status.success(), "{packed:?}");
    let layer = std::fs::read(file).unwrap();
    let header = serde_json::json!({
        "name": "box", "description": "", "base": "own", "start": null, "ready": null, "warm": [],
        "layers": [{"digest": hex::encode(Sha256::digest(&layer)), "bytes": layer.len()}],
        "spec": {"machine": true},
    });
    let bundle = [format!("belljar-template 1\n{header}\n").as_bytes(), &layer].concat();
    fixture.keeper.import_template(admin, None, std::io::Cursor::new(bundle)).await.unwrap();
}

/// The disk of a machine is copied while it is paused, which it must not stay.
pub(crate) async fn forks_without_a_caller_leave_their_machine_running(fixture: Fixture) {
    let (keeper, ann) = (&fixture.keeper, Caller { role: Role::Admin, ..user("ann") });
    import_machine(&fixture, &ann).await;
    let spec = SpecFile::from_json(r#"{"limits":{"disk":"32m"}}"#).unwrap();
    let request = CreateSandbox { template: Some("box".to_owned()), spec, ..plain() };
    let id = keeper.create(&ann, request).await.unwrap().info.id.to_string();
    let state = async || keeper.get(&ann, &id).await.unwrap().state;
    let request = ForkRequest { count: 1, timeout: None, labels: Labels::default(), env: BTreeMap::new() };
    let mut fork = Box::pin(keeper.fork(&ann, &id, request));
    until("its disk is copied", async || {
        assert!(futures::poll!(&mut fork).is_pending());
        state().await == SandboxState::Paused
    })
    .await;
    drop(fork);
    until("it runs again", async || state().await == SandboxState::Running).await;
    keeper.pause(&ann, &id).await.unwrap();
}

pub(crate) async fn snapshot_of_odd_files(fixture: Fixture) {
    let operator = Caller::operator("test", "r");
    let id = fixture.create(&operator).await.id.to_string();
    let odd = r#"
import os
for name in [b"new\nline", b"\xff\xfe", b"-rf", b" sp ace ", "\u202e".encode(), b"x" * 255]:
    open(name, "wb").write(name)
os.mkfifo("fifo"); os.symlink("/etc/passwd", "out"); os.symlink("nowhere", "dangling")
with open("sparse", "wb") as file:
    file.truncate(8 << 40)
os.makedirs("/".join(["deep"] * 400))
"#;
    let write = format!("cat > odd.py << 'END'\n{odd}\nEND\npython3 odd.py && find . | sort | sha256sum");
    let before = fixture.sh(&operator, &id, &write).await;
    assert_eq!(before.exit_code, Some(0), "{before:?}");
    let request = SnapshotRequest { name: Some("odd".parse().unwrap()), note: None };
    let template = fixture.keeper.snapshot(&operator, &id, request).await.unwrap();
    assert!(template.bytes < 4 << 20, "a hole is not stored: {} bytes", template.bytes);
    let request = CreateSandbox { template: Some("odd".to_owned()), ..plain() };
    let copy = fixture.keeper.create(&operator, request).await.unwrap().info.id.to_string();
    // FIFOs are not copied; everything else keeps its name.
    let after =
        fixture.sh(&operator, &copy, "mkfifo fifo && find . | sort | sha256sum; stat -c %s sparse").await;
    assert_eq!(text(&after), format!("{}8796093022208\n", text(&before)));
}

pub(crate) async fn collect_ignores_snapshots_in_progress(fixture: Fixture) {
    let (ann, operator) = (user("ann"), Caller::operator("test", "collect"));
    let id = fixture.create(&ann).await.id.to_string();
    fixture.sh(&ann, &id, "head -c 8M /dev/urandom > large").await;
    let dir = fixture.config.state_dir.join("templates");
    let keeping = async {
        for number in 0..4 {
            let request = SnapshotRequest { name: Some(format!("n{number}").parse().unwrap()), note: None };
            fixture.keeper.snapshot(&ann, &id, request).await.unwrap();
            let request =
                ForkRequest { count: 2, timeout: None, labels: Labels::default(), env: BTreeMap::new() };
            for fork in fixture.keeper.fork(&ann, &id, request).await.unwrap().all().await {
                fixture.keeper.kill(&ann, fork.unwrap().id.as_str()).await.unwrap();
            }
        }
    };
    let collecting = async {
        loop {
            assert_eq!(fixture.keeper.collect(&operator, false).await.unwrap(), []);
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = keeping => {}
        () = collecting => {}
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 4);
    let request = CreateSandbox { template: Some("n3".to_owned()), ..plain() };
    let made = fixture.keeper.create(&ann, request).await.unwrap().info;
    assert_eq!(text(&fixture.sh(&ann, made.id.as_str(), "stat -c %s large").await), "8388608\n");
    // A file that is no longer being written is collected.
    std::fs::write(dir.join("tpl_left.tar"), "left").unwrap();
    let left = fixture.keeper.collect(&operator, true).await.unwrap();
    assert_eq!((left.len(), left[0].kind.as_ref(), left[0].bytes), (1, "archive", 4));
    assert_eq!(fixture.keeper.collect(&operator, false).await.unwrap(), left);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 4);
    assert_eq!(fixture.keeper.collect(&ann, true).await.unwrap_err().code(), "forbidden");
}
