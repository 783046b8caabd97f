//! Several engines in one keeper, one of them defined here and unknown to the keeper and the layers above.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_engine::{Capabilities, CreateRequest, Engine, EngineError, Engines, Offer, Sandbox, v1};
use belljar_keeper::{
    BuildTemplate, Caller, CodeRequest, CreateSandbox, Keeper, KeyChange, Lifetime, ListSandboxes,
    OnShutdown, RunEvent, SandboxUpdate, TimeoutAction,
};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::{EngineName, Role, SandboxSpec, SpecFile, Timeout};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use crate::approvals::refusal;
use crate::fixture::{Fixture, plain, shell, text, until, user};

const TRIVIAL: EngineName = EngineName::known("trivial");

/// Engine with its own name and fewer capabilities than the one that it wraps.
struct Trivial(LocalEngine, Arc<AtomicBool>);

impl Trivial {
    /// Creates an engine that can pause sandboxes while `can_pause` is set.
    fn new(can_pause: &Arc<AtomicBool>) -> Self {
        Self(LocalEngine::new(LocalConfig::new(LocalKind::Local)), Arc::clone(can_pause))
    }
}

impl Engine for Trivial {
    fn name(&self) -> EngineName {
        TRIVIAL
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pause: self.1.load(Ordering::Relaxed),
            live_limits: false,
            own_tree: false,
            images: false,
            mounts: false,
            volumes: false,
            default_timeout: Timeout::new(Duration::from_secs(7)).unwrap(),
            ..self.0.capabilities()
        }
    }

    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        Box::pin(async move {
            let spec = SandboxSpec { engine: EngineName::LOCAL, ..request.spec.clone() };
            let mut sandbox = self.0.create(CreateRequest { spec: &spec, ..request }).await?;
            sandbox.isolation.engine = TRIVIAL;
            Ok(sandbox)
        })
    }
}

/// Engine that waits for a permit before it creates a sandbox.
struct Held(LocalEngine, Arc<Semaphore>);

impl Engine for Held {
    fn name(&self) -> EngineName {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        Box::pin(async move {
            self.1.acquire().await.unwrap().forget();
            self.0.create(request).await
        })
    }
}

fn request_for(json: &str) -> CreateSandbox {
    CreateSandbox { spec: SpecFile::from_json(json).unwrap(), ..plain() }
}

pub(crate) async fn second_engine_is_selected_by_name(fixture: Fixture) {
    let ann = user("ann");
    let can_pause = Arc::default();
    let engines = crate::fixture::engines().with(Arc::new(Trivial::new(&can_pause)), Offer::Offered);
    let keeper = fixture.with_engines(engines).await;
    let engines = keeper.engines(&ann).unwrap();
    let names: Vec<_> = engines.iter().map(|engine| (engine.name.as_str(), engine.is_default)).collect();
    assert_eq!(names, [("local", true), ("trivial", false)], "engines that are not offered are not listed");
    assert!(engines[0].capabilities.pause && !engines[1].capabilities.pause);

    let made = keeper.create(&ann, request_for(r#"{"engine":"trivial"}"#)).await.unwrap().info;
    assert_eq!((made.spec.engine, made.isolation.as_ref().unwrap().engine), (TRIVIAL, TRIVIAL));
    assert_eq!(made.spec.limits.timeout.duration(), Duration::from_secs(7));
    let id = made.id.as_str();
    let done = keeper.exec(&ann, id, shell("echo here")).await.unwrap();
    assert_eq!(text(&done), "here\n");
    let plainly = keeper.create(&ann, plain()).await.unwrap().info;
    assert_eq!(plainly.spec.engine, EngineName::LOCAL);

    // Unsupported operations are refused by name, and the sandbox is unchanged.
    assert_eq!(keeper.pause(&ann, id).await.unwrap_err().code(), "not_offered");
    let update = SandboxUpdate { pids: Some("64".parse().unwrap()), ..SandboxUpdate::default() };
    assert_eq!(keeper.update(&ann, id, update).await.unwrap_err().code(), "not_offered");
    let update = SandboxUpdate { on_timeout: Some(TimeoutAction::Pause), ..SandboxUpdate::default() };
    let refused = keeper.update(&ann, id, update).await.unwrap_err();
    assert!(refused.to_string().starts_with("on_timeout: "), "{refused}");
    assert_eq!(text(&keeper.exec(&ann, id, shell("echo still")).await.unwrap()), "still\n");
    let operator = Caller::operator("t", "r");
    let lifetime = Lifetime { on_timeout: TimeoutAction::Pause, ..Lifetime::default() };
    let refused = [
        (request_for(r#"{"engine":"trivial","mounts":["/usr/share:/mnt/share"]}"#), "mounts: "),
        (CreateSandbox { lifetime, ..request_for(r#"{"engine":"trivial"}"#) }, "on_timeout: "),
        (request_for(r#"{"engine":"mars"}"#), "engine: \"mars\" "),
    ];
    for (request, begin) in refused {
        let refused = keeper.create(&operator, request).await.unwrap_err();
        assert_eq!(refused.code(), "invalid_field", "{refused}");
        assert!(refused.to_string().starts_with(begin), "{refused}");
    }
    let all = ListSandboxes { limit: 100, ..ListSandboxes::default() };
    assert_eq!(keeper.list(&operator, all).await.unwrap().items.len(), 2, "nothing was started");
    // A sandbox with `on_timeout` pause can still be updated after the engine has lost the capability.
    can_pause.store(true, Ordering::Relaxed);
    let lifetime = Lifetime { on_timeout: TimeoutAction::Pause, ..Lifetime::default() };
    let request = CreateSandbox { lifetime, ..request_for(r#"{"engine":"trivial"}"#) };
    let made = keeper.create(&ann, request).await.unwrap().info;
    can_pause.store(false, Ordering::Relaxed);
    let labels = [("job".to_owned(), Some("1".to_owned()))].into();
    let update = SandboxUpdate { labels, ..SandboxUpdate::default() };
    assert_eq!(keeper.update(&ann, made.id.as_str(), update).await.unwrap().labels["job"], "1");
    keeper.close(OnShutdown::Kill).await.unwrap();
}

/// They are withdrawn at once where this server knows of the end, and soon where only another one does.
pub(crate) async fn creates_that_wait_end_with_their_key(mut fixture: Fixture) {
    let operator = Caller::operator("t", "r");
    let permits = Arc::new(Semaphore::new(0));
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    fixture.config.max_starts = 1;
    let keeper = fixture.with_engines(Engines::new(Arc::new(Held(engine, Arc::clone(&permits))))).await;
    let other = fixture.reopen(|config| config.name = "other".to_owned()).await;
    let create = |caller: &Caller| {
        let (keeper, caller) = (keeper.clone(), caller.clone());
        tokio::spawn(async move { keeper.create(&caller, plain()).await })
    };
    let until_metric = async |line: &str| {
        until(line, async || keeper.prometheus().lines().any(|one| one == line)).await;
    };
    let first = create(&operator);
    until_metric("belljar_starts_under_way 1").await;
    let lower = KeyChange { role: Some(Role::Read), ..KeyChange::default() };
    let expire = KeyChange { expires: Some(Some(Duration::ZERO)), ..KeyChange::default() };
    let ends =
        [(&keeper, None), (&keeper, Some(lower.clone())), (&keeper, Some(expire)), (&other, Some(lower))];
    for (index, (by, change)) in ends.into_iter().enumerate() {
        let made = keeper.create_key(&operator, crate::policy::new_key("default")).await.unwrap();
        let agent = keeper.authenticate(&made.key, "c", "r").await.unwrap();
        let second = create(&agent);
        // However many other keys end meanwhile.
        let (noisy, by_operator) = (keeper.clone(), operator.clone());
        let noise = tokio::spawn(async move {
            loop {
                let made = noisy.create_key(&by_operator, crate::policy::new_key("default")).await.unwrap();
                noisy.revoke_key(&by_operator, &made.info.id).await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        // Those that were withdrawn are counted until it is their turn.
        until_metric(&format!("belljar_starts_waiting {}", index + 1)).await;
        match change {
            None => by.revoke_key(&operator, &agent.key).await.unwrap(),
            Some(change) => drop(by.update_key(&operator, &agent.key, change).await.unwrap()),
        }
        let (code, said) = refusal(second.await.unwrap().map(|made| made.info.id));
        assert!(code == "policy_refused" && said.contains("before the call began"), "{code}: {said}");
        noise.abort();
    }
    permits.add_permits(1);
    first.await.unwrap().unwrap();
    let all = ListSandboxes { limit: 100, ..ListSandboxes::default() };
    assert_eq!(keeper.list(&operator, all).await.unwrap().items.len(), 1);
    other.close(OnShutdown::Keep).await.unwrap();
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn calls_that_wait_for_a_sandbox_end_with_their_key(fixture: Fixture) {
    let operator = Caller::operator("t", "r");
    let permits = Arc::new(Semaphore::new(0));
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    let keeper = fixture.with_engines(Engines::new(Arc::new(Held(engine, Arc::clone(&permits))))).await;
    let mut creating = keeper.stream_create(&operator, plain());
    let Some(RunEvent::Progress(accepted)) = creating.next().await else { panic!("it is not accepted") };
    let id = accepted.id.to_string();
    let made = keeper.create_key(&operator, crate::policy::new_key("default")).await.unwrap();
    let agent = keeper.authenticate(&made.key, "c", "r").await.unwrap();
    let wrote = async |keeper: &Keeper, caller: &Caller| {
        let request = v1::MakeDirRequest { path: "ran".into(), ..Default::default() };
        keeper.perform(caller, &id, request).await.map(drop)
    };
    let code = CodeRequest { code: "open('ran', 'w')".into(), ..CodeRequest::default() };
    let end = async {
        keeper.revoke_key(&operator, &agent.key).await.unwrap();
        permits.add_permits(1);
    };
    // All are polled before the key ends.
    let (exec, start, code, wrote, ()) = futures::join!(
        async { refusal(keeper.exec(&agent, &id, shell("touch ran")).await) },
        async { refusal(keeper.start(&agent, &id, shell("touch ran")).await) },
        async { refusal(keeper.run_code(&agent, &id, code).await) },
        async { refusal(wrote(&keeper, &agent).await) },
        end
    );
    for (code, said) in [exec, start, code, wrote] {
        assert!(code == "policy_refused" && said.contains("before the call began"), "{code}: {said}");
    }
    while creating.next().await.is_some() {}
    assert_eq!(text(&keeper.exec(&operator, &id, shell("ls")).await.unwrap()), "");
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn template_build_needs_own_tree(fixture: Fixture) {
    let keeper = fixture.with_engines(Engines::new(Arc::new(Trivial::new(&Arc::default())))).await;
    let definition = "name = \"one\"\nbase = \"host\"\n".to_owned();
    let request = BuildTemplate { definition, ..BuildTemplate::default() };
    let refused = keeper.build_template(&Caller::operator("t", "r"), request).await.err().unwrap();
    assert_eq!(refused.code(), "policy_refused", "{refused}");
    assert!(refused.to_string().contains("trivial"), "{refused}");
    keeper.close(OnShutdown::Kill).await.unwrap();
}
