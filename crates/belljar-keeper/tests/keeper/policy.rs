//! Permissions, quotas, keys and the audit log.

use std::time::Duration;

use belljar_keeper::{
    ArchiveUntil, AuditFilter, Caller, CreateSandbox, CreatedKey, Denied, ExecRequest, FileOperation,
    Idempotency, Keeper, KeeperError, KeyChange, NewBuild, NewKey, OnShutdown, Part, Quotas, SandboxUpdate,
    TimeoutAction, Verification,
};
use belljar_model::{Approval, Role, SandboxId, SpecFile};
use belljar_store::{TemplateKind, TemplateRow};
use jiff::Timestamp;

use crate::approvals::refusal;
use crate::fixture::{Fixture, plain, shell, text, until, user};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) async fn foreign_and_missing_sandboxes_are_indistinguishable(fixture: Fixture) {
    let (ann, bob) = (user("ann"), user("bob"));
    let foreign = fixture.create(&ann).await.id.to_string();
    let missing = SandboxId::from_entropy([9; 20]).to_string();
    let errors = async |id: &str| {
        let keeper = &fixture.keeper;
        let errors = [
            keeper.get(&bob, id).await.unwrap_err(),
            keeper.kill(&bob, id).await.unwrap_err(),
            keeper.pause(&bob, id).await.unwrap_err(),
            keeper.resume(&bob, id, None).await.unwrap_err(),
            keeper.exec(&bob, id, shell("true")).await.unwrap_err(),
            keeper.metrics(&bob, id).await.unwrap_err(),
            keeper.publish_port(&bob, id, 80, true).await.unwrap_err(),
            keeper.sandbox_token(&bob, id, HOUR).await.unwrap_err(),
            keeper.update(&bob, id, Default::default()).await.unwrap_err(),
        ];
        errors.map(|error| (error.code(), error.to_string().replace(id, "ID")))
    };
    assert_eq!(errors(&foreign).await, errors(&missing).await);
    assert!(fixture.keeper.list(&bob, Default::default()).await.unwrap().items.is_empty());
    // Sandboxes that are gone are visible to their tenant only.
    fixture.keeper.kill(&ann, &foreign).await.unwrap();
    assert_eq!(errors(&foreign).await, errors(&missing).await);
}

pub(crate) async fn roles_are_enforced(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let reader = Caller { role: Role::Read, ..ann.clone() };
    assert!(fixture.keeper.get(&reader, &id).await.is_ok());
    assert!(fixture.keeper.list(&reader, Default::default()).await.is_ok());
    let refused = [
        fixture.keeper.create(&reader, plain()).await.map(drop),
        fixture.keeper.kill(&reader, &id).await,
        fixture.keeper.exec(&reader, &id, shell("true")).await.map(drop),
        fixture.keeper.enter(&reader, &id).await.map(drop),
        fixture.keeper.pause(&reader, &id).await.map(drop),
        fixture.keeper.keys(&ann, &Part::default()).await.map(drop),
        fixture.keeper.create_key(&ann, new_key("x")).await.map(drop),
        fixture.keeper.audit_verify(&ann, 1, None).await.map(drop),
        fixture.keeper.audit_archive(&ann, ArchiveUntil::Record(1)).await.map(drop),
    ];
    for (index, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().code(), "forbidden", "{index}");
    }
}

pub(crate) async fn tokens_open_one_sandbox_only(fixture: Fixture) {
    let operator = Caller::operator("test", "r");
    let secret = fixture.keeper.create_key(&operator, new_key("agent")).await.unwrap().key;
    let owner = fixture.keeper.authenticate(&secret, "c", "r").await.unwrap();
    let (mine, other) =
        (fixture.create(&owner).await.id.to_string(), fixture.create(&owner).await.id.to_string());
    let token = fixture.keeper.sandbox_token(&owner, &mine, HOUR).await.unwrap().token;
    let holder = fixture.keeper.authenticate(&token, "c", "r").await.unwrap();
    assert_eq!(text(&fixture.sh(&holder, &mine, "echo in").await), "in\n");
    assert_eq!(fixture.keeper.get(&holder, &other).await.unwrap_err().code(), "sandbox_not_found");
    assert_eq!(fixture.keeper.enter(&holder, &other).await.err().unwrap().code(), "sandbox_not_found");
    for refused in [
        fixture.keeper.create(&holder, plain()).await.map(drop),
        fixture.keeper.kill(&holder, &mine).await,
        fixture.keeper.list(&holder, Default::default()).await.map(drop),
        fixture.keeper.sandbox_token(&holder, &mine, HOUR).await.map(drop),
        fixture.keeper.templates(&holder, &Part::default()).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code(), "forbidden");
    }
    let mut forged = token.clone().into_bytes();
    let last = forged.len() - 3;
    forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).unwrap();
    assert_eq!(fixture.keeper.authenticate(&forged, "c", "r").await.unwrap_err(), Denied::Unknown);
    // Revoking the key revokes the tokens that it issued.
    fixture.keeper.revoke_key(&operator, &owner.key).await.unwrap();
    assert_eq!(fixture.keeper.authenticate(&token, "c", "r").await.unwrap_err(), Denied::Revoked);
    // Also for whoever was authenticated before, and opens something now.
    assert!(owner.has_ended() && holder.has_ended() && !operator.has_ended());
}

pub(crate) async fn access_tokens_act_as_the_key_that_asked(fixture: Fixture) {
    let operator = Caller::operator("test", "r");
    let quotas = Quotas { executions_per_minute: Some(2), ..Quotas::default() };
    let ann = fixture.keeper.create_key(&operator, new_key("agent")).await.unwrap();
    let bob = fixture.keeper.create_key(&operator, NewKey { quotas, ..new_key("agent") }).await.unwrap();
    let creator = fixture.keeper.authenticate(&ann.key, "c", "r").await.unwrap();
    let guest = fixture.keeper.authenticate(&bob.key, "c", "r").await.unwrap();
    let id = fixture.create(&creator).await.id.to_string();
    let token = fixture.keeper.issue_access_token(&creator, &id).await.unwrap();
    let other = fixture.keeper.issue_access_token(&guest, &id).await.unwrap();
    assert_ne!(token, other);
    // It is the same each time.
    assert_eq!(fixture.keeper.issue_access_token(&guest, &id).await.unwrap(), other);
    assert_eq!(fixture.keeper.access_token(&guest, &id).await.unwrap(), other);
    let holder = fixture.keeper.authenticate(&other, "c", "r").await.unwrap();
    assert_eq!(holder.key, bob.info.id);
    assert_eq!(text(&fixture.sh(&holder, &id, "echo in").await), "in\n");
    let filter = AuditFilter { action: Some("exec".to_owned()), ..AuditFilter::default() };
    let records = fixture.keeper.audit_records(&operator, &filter, None, 1).await.unwrap();
    assert_eq!(records.last().unwrap().key_id.as_deref(), Some(bob.info.id.as_str()));
    fixture.sh(&holder, &id, "true").await;
    let refused = fixture.keeper.exec(&holder, &id, shell("true")).await.unwrap_err();
    assert_eq!(refused.code(), "quota_exceeded");
    // URLs signed with either token are accepted, also after a restart: the record names the key.
    let signer = async |token: &str| {
        let found = fixture.keeper.authenticate_by(None, |one| one == token, "c", "r").await;
        found.map(|caller| caller.key)
    };
    assert_eq!(signer(&token).await.unwrap(), ann.info.id);
    assert_eq!(signer(&other).await.unwrap(), bob.info.id);
    let row = fixture.store.sandboxes().get(&id.parse().unwrap()).await.unwrap().unwrap();
    assert!(row.settings.contains(&bob.info.id), "{}", row.settings);
    fixture.keeper.revoke_key(&operator, &bob.info.id).await.unwrap();
    assert_eq!(fixture.keeper.authenticate(&other, "c", "r").await.unwrap_err(), Denied::Revoked);
    assert_eq!(signer(&other).await.unwrap_err(), Denied::Revoked);
    assert!(fixture.keeper.authenticate(&token, "c", "r").await.is_ok());
}

pub(crate) async fn unpublished_port_is_not_found(fixture: Fixture) {
    let operator = Caller::operator("test", "r");
    let keeper = fixture.reopen(|config| config.share_host_tree = true).await;
    let secret = keeper.create_key(&operator, new_key("ann")).await.unwrap().key;
    let other = keeper.create_key(&operator, new_key("bob")).await.unwrap().key;
    let ann = keeper.authenticate(&secret, "c", "r").await.unwrap();
    let id = keeper.create(&ann, plain()).await.unwrap().info.id.to_string();
    let open = async |credential: Option<&str>, port| {
        let credentials: Vec<&str> = credential.into_iter().collect();
        keeper.open_port(&credentials, "c", "r", &id, port).await.map(drop).map_err(|error| error.code())
    };
    assert_eq!(open(Some(&secret), 8000).await, Err("sandbox_not_found"));
    assert_eq!(keeper.port_token(&ann, &id, 8000, HOUR).await.unwrap_err().code(), "not_found");
    keeper.publish_port(&ann, &id, 8000, false).await.unwrap();
    let token = keeper.port_token(&ann, &id, 8000, HOUR).await.unwrap().token;
    let sandbox_token = keeper.sandbox_token(&ann, &id, HOUR).await.unwrap().token;
    for good in [&secret, &token, &sandbox_token] {
        assert_eq!(open(Some(good), 8000).await, Ok(()));
        assert_eq!(open(Some(good), 8001).await, Err("sandbox_not_found"));
    }
    for bad in [None, Some(other.as_str()), Some("bj_x"), Some("bjs_x"), Some("")] {
        assert_eq!(open(bad, 8000).await, Err("sandbox_not_found"), "{bad:?}");
    }
    // A token for one port opens no route and no other port.
    assert_eq!(keeper.authenticate(&token, "c", "r").await.unwrap_err(), Denied::Unknown);
    keeper.publish_port(&ann, &id, 8001, true).await.unwrap();
    assert_eq!(open(None, 8001).await, Ok(()));
    assert_eq!(open(Some(&token), 8000).await, Ok(()));
    keeper.unpublish_port(&ann, &id, 8001).await.unwrap();
    assert_eq!(open(None, 8001).await, Err("sandbox_not_found"));
    assert_eq!(keeper.publish_port(&ann, &id, 0, true).await.unwrap_err().code(), "invalid_field");
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn signed_files_open_that_file_only(fixture: Fixture) {
    let operator = Caller::operator("test", "r");
    let id = fixture.create(&operator).await.id.to_string();
    let sign = async |operation| {
        fixture.keeper.sign_file(&operator, &id, "a.csv".into(), operation, HOUR).await.unwrap().token
    };
    let (read, write) = (sign(FileOperation::Read).await, sign(FileOperation::Write).await);
    let opened = fixture.keeper.open_signed(&read, "c", "r").await.unwrap();
    assert_eq!((&opened.path[..], opened.operation), (&b"a.csv"[..], FileOperation::Read));
    assert_eq!(fixture.keeper.open_signed(&write, "c", "r").await.unwrap().operation, FileOperation::Write);
    let token = fixture.keeper.sandbox_token(&operator, &id, HOUR).await.unwrap().token;
    assert!(fixture.keeper.open_signed(&token, "c", "r").await.is_err());
    assert_eq!(fixture.keeper.authenticate(&read, "c", "r").await.unwrap_err(), Denied::Unknown);
    let expired = fixture
        .keeper
        .sign_file(&operator, &id, "a".into(), FileOperation::Read, Duration::from_secs(1))
        .await;
    let expired = expired.unwrap().token;
    crate::fixture::until("the token has expired", || async {
        fixture.keeper.open_signed(&expired, "c", "r").await.is_err()
    })
    .await;
}

/// What a key has issued is judged by what the key may do now.
pub(crate) async fn lowered_keys_are_noticed_by_other_servers(fixture: Fixture) {
    let operator = Caller::operator("test", "r");
    let other = fixture.reopen(|config| config.name = "other".to_owned()).await;
    let made = fixture.keeper.create_key(&operator, new_key("ann")).await.unwrap();
    let rights = fixture.keeper.authenticate(&made.key, "c", "r").await.unwrap().rights();
    let waits = |approval| KeyChange { approval: Some(approval), ..KeyChange::default() };
    let role = |role| KeyChange { role: Some(role), ..KeyChange::default() };
    for (change, ends) in [
        (waits(Approval::OnRisk), true),
        (waits(Approval::Never), false),
        (role(Role::Read), true),
        (role(Role::Admin), false),
    ] {
        other.update_key(&operator, &made.info.id, change.clone()).await.unwrap();
        assert_eq!(fixture.keeper.has_ended(&made.info.id, &[rights]).await, ends, "{change:?}");
    }
    other.close(OnShutdown::Keep).await.unwrap();
}

/// They may wait for their turn to start.
pub(crate) async fn creates_end_with_their_key(fixture: Fixture) {
    let ends = belljar_keeper::KeyEnds::default();
    let ann = Caller { validity: ends.now(), ..user("ann") };
    ends.add(&ann.key);
    let (code, said) = refusal(fixture.keeper.create(&ann, plain()).await);
    assert!(code == "policy_refused" && said.contains("before the call began"), "{code}: {said}");
    assert!(fixture.keeper.list(&ann, Default::default()).await.unwrap().items.is_empty());
}

pub(crate) async fn credentials_are_worth_what_their_key_is(fixture: Fixture) {
    let operator = Caller::operator("test", "r");
    let keeper = fixture.reopen(|config| config.share_host_tree = true).await;
    let owner = keeper.create_key(&operator, new_key("ann")).await.unwrap().key;
    let owner = keeper.authenticate(&owner, "c", "r").await.unwrap();
    let id = keeper.create(&owner, plain()).await.unwrap().info.id.to_string();
    keeper.publish_port(&owner, &id, 8000, false).await.unwrap();
    let lower = KeyChange { role: Some(Role::Read), ..KeyChange::default() };
    let expire = KeyChange { expires: Some(Some(Duration::ZERO)), ..KeyChange::default() };
    // An administrator of another tenant can make tokens of this one; as a user it sees nothing of it.
    let leave = KeyChange { role: Some(Role::User), ..KeyChange::default() };
    for (tenant, role, change, is_live) in [
        ("ann", Role::User, lower, true),
        ("ann", Role::User, expire, false),
        ("boss", Role::Admin, leave, true),
    ] {
        let made = keeper.create_key(&operator, NewKey { role, ..new_key(tenant) }).await.unwrap();
        let caller = keeper.authenticate(&made.key, "c", "r").await.unwrap();
        let port = keeper.port_token(&caller, &id, 8000, HOUR).await.unwrap().token;
        let whole = keeper.sandbox_token(&caller, &id, HOUR).await.unwrap().token;
        let sign = async |operation| {
            keeper.sign_file(&caller, &id, "a.csv".into(), operation, HOUR).await.unwrap().token
        };
        let files = [sign(FileOperation::Read).await, sign(FileOperation::Write).await];
        let name = "box".parse().unwrap();
        let build = NewBuild { name: "box".parse().unwrap(), tags: Vec::new(), limits: Default::default() };
        keeper.request_build(&caller, build).await.unwrap();
        let upload = keeper.upload_link(&caller, &name, &"a".repeat(64).parse().unwrap()).unwrap().token;
        let link = keeper.create_session_link(&caller).await.unwrap().link;
        let session = keeper.create_session(&caller).await.unwrap();
        let open = async |credential: &str| {
            keeper.open_port(&[credential], "c", "r", &id, 8000).await.map(drop).map_err(|error| error.code())
        };
        assert_eq!((open(&port).await, open(&whole).await), (Ok(()), Ok(())));
        let mut ended = keeper.revocations();
        keeper.update_key(&operator, &made.info.id, change.clone()).await.unwrap();
        for credential in [&port, &whole, &made.key] {
            assert_eq!(open(credential).await, Err("sandbox_not_found"), "{change:?}");
        }
        for file in &files {
            assert!(keeper.open_signed(file, "c", "r").await.is_err(), "{change:?}");
        }
        let now = keeper.authenticate(&whole, "c", "r").await;
        assert_eq!(now.as_ref().ok().map(|caller| caller.role), change.role.filter(|_| is_live));
        if let Ok(holder) = &now {
            assert!(keeper.exec(holder, &id, shell("true")).await.is_err(), "{change:?}");
            assert_eq!(ended.recv().await.unwrap(), made.info.id, "its streams end");
        }
        // What the session and the link give is what the key may do.
        let cookies = [session.cookie.as_str()];
        let by_session = keeper.authenticate_session(&cookies, Some(&session.token), "c", "r").await;
        let by_link = keeper.redeem_session_link(&link, "c", "r").await.unwrap();
        for role in [by_session.ok().map(|caller| caller.role), by_link.ok().map(|(_, caller)| caller.role)] {
            assert_eq!(role, change.role.filter(|_| is_live), "{change:?}");
        }
        let may_upload = keeper.open_upload(&upload, "c", "r").await.is_ok();
        assert_eq!(may_upload, change.role == Some(Role::User), "{change:?}");
        assert!(keeper.has_ended(&made.info.id, &[caller.rights()]).await);
    }
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn tenant_requests_are_restricted(fixture: Fixture) {
    let ann = user("ann");
    let refuse = async |caller: &Caller, json: &str| {
        let spec = SpecFile::from_json(json).unwrap();
        fixture.keeper.create(caller, CreateSandbox { spec, ..plain() }).await.unwrap_err()
    };
    for json in [r#"{"mounts":["/etc:/mnt/etc"]}"#, r#"{"engine":"process"}"#, r#"{"grade":"watched"}"#] {
        let refused = refuse(&ann, json).await;
        assert_eq!(refused.code(), "policy_refused", "{json}: {refused}");
    }
    for json in [r#"{"language":"python"}"#, r#"{"interactive":true}"#, r#"{"engine":"docker"}"#] {
        assert_eq!(refuse(&ann, json).await.code(), "invalid_field", "{json}");
    }
    // An administrator's mounts still have to pass the operator's mount policy.
    let refused = refuse(&Caller::operator("t", "r"), r#"{"mounts":["/etc:/mnt/etc"]}"#).await;
    assert_eq!(refused.code(), "policy_refused", "{refused}");
    let operator = Caller::operator("t", "r");
    let filter = AuditFilter { action: Some("policy.refused".to_owned()), ..AuditFilter::default() };
    let records = fixture.keeper.audit_records(&operator, &filter, Some(0), 100).await.unwrap();
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|record| record.outcome == "policy_refused" && record.tenant == "ann"));
}

pub(crate) async fn host_tree_is_shared_by_tenants_only_on_request(fixture: Fixture) {
    let operator = Caller::operator("t", "r");
    fixture.keeper.create_key(&operator, new_key("ann")).await.unwrap();
    // A key that could create no sandbox is refused, and other keys are unaffected.
    for role in [Role::Read, Role::User, Role::Admin] {
        let key = NewKey { role, ..new_key("bob") };
        let refused = fixture.keeper.create_key(&operator, key).await.unwrap_err();
        let KeeperError::Policy { field: "tenant", reason } = &refused else { panic!("{refused}") };
        assert!(reason.contains("sandboxes.share_host_tree = true"), "{reason}");
    }
    assert_eq!(fixture.keeper.keys(&operator, &Part::default()).await.unwrap().items.len(), 1);
    // A key that was created while sharing was allowed blocks others when sharing is disallowed again.
    let shared = fixture.reopen(|config| config.share_host_tree = true).await;
    let second = shared.create_key(&operator, new_key("bob")).await.unwrap().info;
    fixture.keeper.create_key(&operator, new_key("ann")).await.unwrap();
    let refused = fixture.keeper.create(&user("ann"), plain()).await.unwrap_err();
    let KeeperError::Policy { field: "template", reason } = &refused else { panic!("{refused}") };
    assert!(
        reason.contains("sandboxes.share_host_tree = true") && reason.contains("tree of its own"),
        "{reason}"
    );
    fixture.keeper.revoke_key(&operator, &second.id).await.unwrap();
    assert!(fixture.keeper.create(&user("ann"), plain()).await.is_ok());
}

/// An administrator of another tenant would end what this one's sandboxes start from, unless that is a tree of their own.
pub(crate) async fn further_tenants_need_trees_of_their_own(fixture: Fixture) {
    let operator = Caller::operator("t", "r");
    fixture.keeper.create_key(&operator, new_key("ann")).await.unwrap();
    let row = |tenant: &str| TemplateRow {
        id: format!("tpl_{tenant}"),
        tenant: tenant.to_owned(),
        key_id: String::new(),
        name: Some("app".to_owned()),
        kind: TemplateKind::Built,
        source_sandbox: None,
        digest: "a".repeat(64),
        bytes: 0,
        spec: "{}".to_owned(),
        created_at: Timestamp::now(),
        note: String::new(),
        built: r#"{"base":"own"}"#.to_owned(),
    };
    fixture.store.templates().insert(&row("ann")).await.unwrap();
    let bob = |role| NewKey { role, ..new_key("bob") };
    for (role, advice) in [
        (Role::Admin, "sandboxes.default_template"),
        (Role::User, "a key of the role admin of tenant \"bob\""),
    ] {
        let (code, said) = refusal(fixture.keeper.create_key(&operator, bob(role)).await);
        assert!(code == "policy_refused" && said.contains(advice), "{said}");
    }
    assert!(fixture.keeper.create(&user("ann"), plain()).await.is_ok());
    let moved = fixture.reopen(|config| config.default_template = "app".to_owned()).await;
    assert_eq!(refusal(moved.create_key(&operator, bob(Role::User)).await).0, "policy_refused");
    moved.create_key(&operator, bob(Role::Admin)).await.unwrap();
    fixture.store.templates().insert(&row("bob")).await.unwrap();
    moved.create_key(&operator, bob(Role::User)).await.unwrap();
    moved.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn idempotent_create_makes_one_sandbox(fixture: Fixture) {
    let ann = user("ann");
    let request = |key: &str, digest| CreateSandbox {
        idempotency: Some(Idempotency { key: key.to_owned(), request_digest: [digest; 32] }),
        ..plain()
    };
    let first = fixture.keeper.create(&ann, request("k", 1)).await.unwrap();
    let second = fixture.keeper.create(&ann, request("k", 1)).await.unwrap();
    assert_eq!((first.existing, second.existing, &second.info.id), (false, true, &first.info.id));
    let other = fixture.keeper.create(&ann, request("k", 2)).await.unwrap_err();
    assert_eq!(other.code(), "idempotency_mismatch");
    let both = futures::future::join(
        fixture.keeper.create(&ann, request("j", 1)),
        fixture.keeper.create(&ann, request("j", 1)),
    );
    let (one, two) = both.await;
    let made = [&one, &two].iter().filter(|made| made.as_ref().is_ok_and(|made| !made.existing)).count();
    assert_eq!(made, 1, "{one:?} {two:?}");
    // A failed request may be retried.
    let mut bad = request("b", 1);
    bad.lifetime.timeout = Duration::ZERO;
    assert!(fixture.keeper.create(&ann, bad).await.is_err());
    crate::fixture::until("the key is free again", || async {
        fixture.keeper.create(&ann, request("b", 1)).await.is_ok_and(|made| !made.existing)
    })
    .await;
}

pub(crate) async fn idempotent_execution_runs_once(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let request = || ExecRequest {
        idempotency: Some(Idempotency { key: "once".to_owned(), request_digest: [1; 32] }),
        ..shell("echo x >> f; wc -l < f")
    };
    let first = fixture.keeper.exec(&ann, &id, request()).await.unwrap();
    let second = fixture.keeper.exec(&ann, &id, request()).await.unwrap();
    assert_eq!((text(&first).trim(), text(&second)), ("1", text(&first)));
    assert_eq!((first.process, first.wall), (second.process, second.wall));
    assert_eq!(text(&fixture.sh(&ann, &id, "wc -l < f").await).trim(), "1");
    // Another key of the tenant has idempotency keys of its own.
    let other = Caller { key: "key_other".to_owned(), ..ann.clone() };
    assert_eq!(text(&fixture.keeper.exec(&other, &id, request()).await.unwrap()).trim(), "2");
}

pub(crate) async fn quotas_are_enforced(fixture: Fixture) {
    let limited = |quotas| Caller { quotas, ..user("ann") };
    let ann = limited(Quotas { sandboxes: Some(1), executions_per_minute: Some(2), ..Quotas::default() });
    let id = fixture.create(&ann).await.id.to_string();
    let refused = fixture.keeper.create(&ann, plain()).await.unwrap_err();
    assert_eq!(refused.code(), "quota_exceeded", "{refused}");
    fixture.sh(&ann, &id, "true").await;
    fixture.sh(&ann, &id, "true").await;
    let refused = fixture.keeper.exec(&ann, &id, shell("true")).await.unwrap_err();
    assert!(
        matches!(refused, KeeperError::Quota { quota: "executions_per_minute", retry_after: Some(_), .. }),
        "{refused}"
    );
    fixture.keeper.kill(&ann, &id).await.unwrap();
    assert!(fixture.keeper.create(&ann, plain()).await.is_ok());
    let busy = limited(Quotas { cpu_seconds_per_hour: Some(1), ..Quotas::default() });
    let busy = Caller { key: "busy".to_owned(), ..busy };
    let id = fixture.create(&busy).await.id.to_string();
    fixture.sh(&busy, &id, "python3 -c 'import time\nwhile time.process_time() < 1.2: pass'").await;
    let refused = fixture.keeper.exec(&busy, &id, shell("true")).await.unwrap_err();
    assert!(matches!(refused, KeeperError::Quota { quota: "cpu_seconds_per_hour", .. }), "{refused}");
}

pub(crate) async fn audit_log_is_complete_and_names_the_caller(fixture: Fixture) {
    let ann = user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    fixture.sh(&ann, &id, "echo secret-in-code").await;
    let update = SandboxUpdate {
        labels: [("a", Some("b")), ("c", None)]
            .map(|(key, value)| (key.to_owned(), value.map(str::to_owned)))
            .into(),
        idle_timeout: Some(None),
        on_timeout: Some(TimeoutAction::Kill),
        ..SandboxUpdate::default()
    };
    fixture.keeper.update(&ann, &id, update).await.unwrap();
    fixture.keeper.kill(&ann, &id).await.unwrap();
    let operator = Caller::operator("t", "r");
    let records =
        fixture.keeper.audit_records(&operator, &AuditFilter::default(), Some(0), 100).await.unwrap();
    let actions: Vec<_> = records.iter().map(|record| record.action.as_str()).collect();
    assert_eq!(actions, ["sandbox.create", "exec", "sandbox.update", "sandbox.kill"]);
    assert_eq!(
        serde_json::to_value(&records[2].details).unwrap(),
        serde_json::json!({"labels": "a=b,c-", "idle_timeout_s": "none", "on_timeout": "kill"})
    );
    for record in &records {
        assert_eq!((record.tenant.as_str(), record.key_id.as_deref()), ("ann", Some("key_ann")));
        assert_eq!(record.sandbox.as_ref().map(ToString::to_string).as_deref(), Some(id.as_str()));
        assert_eq!((record.outcome.as_str(), record.request_id.as_str()), ("ok", "request"));
    }
    assert!(records[0].policy_digest.is_some() && records[0].isolation.as_deref() == Some("local"));
    assert!(records[1].code_digest.is_some() && records[1].output_digest.is_some());
    assert!(!format!("{records:?}").contains("secret-in-code"));
    let verified = fixture.keeper.audit_verify(&operator, 1, None).await.unwrap();
    assert!(matches!(verified, Verification::Verified(ref chain) if chain.records == 4), "{verified:?}");
}

pub(crate) async fn archived_audit_records_are_recorded(fixture: Fixture) {
    let (keeper, operator) = (&fixture.keeper, Caller::operator("test", "r"));
    for _ in 0..3 {
        keeper.collect(&operator, false).await.unwrap();
    }
    let files = keeper.audit_archive(&operator, ArchiveUntil::Record(2)).await.unwrap();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!((file.first, file.last.seq), (1, 2));
    assert_eq!(file.path, fixture.config.archive_dir.join("audit-000000000001-000000000002.jsonl"));
    let records = async |keeper: &Keeper| {
        keeper.audit_records(&operator, &AuditFilter::default(), Some(0), 100).await.unwrap()
    };
    let found = records(keeper).await;
    let details = |name| found[1].details.get(name).cloned();
    assert_eq!((found.len(), found[0].seq, found[1].action.as_str()), (2, 3, "audit.archive"));
    assert_eq!(details("last"), Some("2".into()));
    assert_eq!(details("head"), Some(format!("2:{}", file.last.hash).into()));
    // A failure is recorded too, and nothing is removed.
    let blocked = fixture.reopen(|config| config.archive_dir = "/dev/null/audit".into()).await;
    assert!(blocked.audit_archive(&operator, ArchiveUntil::Record(3)).await.is_err());
    let found = records(keeper).await;
    assert_eq!((found.len(), found[2].outcome.as_str()), (3, "store_failed"));
    blocked.close(OnShutdown::Kill).await.unwrap();
    // The records that archiving adds are not archived as well.
    let files = keeper.audit_archive(&operator, ArchiveUntil::Record(i64::MAX)).await.unwrap();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!((file.first, file.last.seq, records(keeper).await.len()), (3, 4, 2));
}

pub(crate) async fn old_audit_records_are_archived(fixture: Fixture) {
    let operator = Caller::operator("test", "r");
    for _ in 0..3 {
        fixture.keeper.collect(&operator, false).await.unwrap();
    }
    let base = async |keeper: &Keeper| keeper.audit_base(&operator).await.unwrap().seq;
    let keeper = fixture.reopen(|config| config.archive_after = Some(Duration::from_micros(1))).await;
    until("the records are archived", async || base(&keeper).await == 2).await;
    let found = keeper.audit_records(&operator, &AuditFilter::default(), Some(0), 100).await.unwrap();
    assert_eq!((found[1].action.as_str(), found[1].actor.as_str()), ("audit.archive", "server"));
    keeper.close(OnShutdown::Kill).await.unwrap();
    // Younger records stay.
    let keeper = fixture.reopen(|config| config.archive_after = Some(HOUR)).await;
    keeper.collect(&operator, false).await.unwrap();
    assert_eq!(base(&keeper).await, 2);
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn key_lifecycle(fixture: Fixture) {
    let operator = Caller::operator("t", "r");
    let CreatedKey { info, key: secret } =
        fixture.keeper.create_key(&operator, new_key("agent")).await.unwrap();
    assert_eq!(secret.len(), 3 + 64);
    assert!(secret.starts_with(&info.hint) && info.hint.len() == 8);
    let caller = fixture.keeper.authenticate(&secret, "c", "r").await.unwrap();
    assert_eq!((caller.tenant.as_str(), caller.role), ("agent", Role::User));
    let listed = fixture.keeper.keys(&operator, &Part::default()).await.unwrap().items;
    assert!(listed[0].last_used_at.is_some() && !format!("{listed:?}").contains(&secret));
    for wrong in ["", "bj_", "x", &secret[..66], &secret.to_uppercase()] {
        assert_eq!(
            fixture.keeper.authenticate(wrong, "c", "r").await.unwrap_err(),
            Denied::Unknown,
            "{wrong}"
        );
    }
    fixture.keeper.revoke_key(&operator, &info.id).await.unwrap();
    assert_eq!(fixture.keeper.authenticate(&secret, "c", "r").await.unwrap_err(), Denied::Revoked);
    assert_eq!(fixture.keeper.revoke_key(&operator, "key_none").await.unwrap_err().code(), "key_not_found");
    let short = NewKey { expires: Some(Duration::from_millis(1)), ..new_key("short") };
    let secret = fixture.keeper.create_key(&operator, short).await.unwrap().key;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(fixture.keeper.authenticate(&secret, "c", "r").await.unwrap_err(), Denied::Expired);
    let long = NewKey { name: "x".repeat(129), ..new_key("long") };
    assert_eq!(fixture.keeper.create_key(&operator, long).await.unwrap_err().code(), "invalid_field");
}

pub(crate) async fn full_machine_is_reported(fixture: Fixture) {
    let keeper = fixture.reopen(|config| config.head_room.memory_bytes = u64::MAX).await;
    let refused = keeper.create(&user("ann"), plain()).await.unwrap_err();
    assert!(matches!(&refused, KeeperError::Full { what, .. } if what.contains("memory")), "{refused}");
    assert!(keeper.ready().await.is_err());
    keeper.close(OnShutdown::Kill).await.unwrap();
    let keeper = fixture.reopen(|config| config.max_sandboxes = 1).await;
    keeper.create(&user("ann"), plain()).await.unwrap();
    assert_eq!(keeper.create(&user("ann"), plain()).await.unwrap_err().code(), "machine_full");
    keeper.close(OnShutdown::Kill).await.unwrap();
    assert_eq!(keeper.create(&user("ann"), plain()).await.unwrap_err().code(), "shutting_down");
}

pub(crate) fn new_key(tenant: &str) -> NewKey {
    NewKey {
        name: "for a test".to_owned(),
        role: Role::User,
        tenant: tenant.to_owned(),
        expires: None,
        quotas: Quotas::default(),
        owner: None,
        approval: Approval::Never,
    }
}
