//! Tests of a launcher's life, and of the ownership of its sandboxes.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_engine::{Engine as _, EngineError};
use belljar_local::{CreateRequest, LauncherEngine, LocalConfig, LocalEngine, LocalKind};
use belljar_model::{LimitsChange, SandboxSpec};

use crate::fixture::{
    Fixture, SECRET, TestResult, eventually, id, read_until, shell, spec, wait_until_removed, within,
};
use crate::{account, leftovers};

pub(crate) async fn one_launcher_serves_all_engines(fixture: &Fixture) -> TestResult {
    let engines: Vec<LauncherEngine> = (0..8).map(|_| fixture.engine()).collect();
    let spec = spec();
    let ids = (0..8).map(|_| id()).collect::<Result<Vec<_>, _>>()?;
    // All at once, with no launcher running yet.
    let launches = engines
        .iter()
        .zip(&ids)
        .map(|(engine, id)| engine.create(CreateRequest::long_lived(id, &spec, None)));
    let sandboxes = within("eight launches", futures::future::try_join_all(launches)).await??;
    let launcher = fixture.launcher().ok_or("no launcher")?;
    for engine in &engines {
        assert_eq!(engine.survivors().await?.len(), 8);
    }
    // A sandbox launched by one engine can be adopted and ended by another, and the first is notified.
    let other = engines[1].adopt(&ids[0]).await?.ok_or("it is not there")?;
    other.guest().check().await?;
    other.stop().await?;
    within("the news", sandboxes[0].wait_ended()).await?;
    sandboxes[0].stop().await?;
    let stops = sandboxes.iter().map(|sandbox| sandbox.stop());
    within("their ends", futures::future::try_join_all(stops)).await??;
    assert_eq!(fixture.launcher(), Some(launcher));
    for id in &ids {
        assert!(leftovers::of(id).is_empty());
    }
    Ok(())
}

pub(crate) async fn idle_launcher_exits(fixture: &Fixture) -> TestResult {
    let mut config = fixture.config(LocalKind::Local);
    config.linger = Duration::from_millis(300);
    let engine = LauncherEngine::new(config.clone());
    assert!(engine.survivors().await?.is_empty());
    assert!(fixture.launcher().is_none(), "a query has started it");
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let launcher = fixture.launcher().ok_or("no launcher")?;
    let sandbox_id = sandbox.id.clone();
    // It stays for its client, and then for its sandbox.
    drop((engine, sandbox));
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(fixture.launcher(), Some(launcher));
    let engine = LauncherEngine::new(config.clone());
    let sandbox = engine.adopt(&sandbox_id).await?.ok_or("it is not there")?;
    sandbox.stop().await?;
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(fixture.launcher(), Some(launcher), "it exits although a client is connected");
    drop((engine, sandbox));
    eventually("it exits", async || Ok(fixture.launcher().is_none())).await?;
    // The next launcher can use the same run directory.
    let engine = LauncherEngine::new(config);
    let sandbox = engine.create(CreateRequest::long_lived(&sandbox_id, &spec(), None)).await?;
    sandbox.stop().await?;
    Ok(())
}

pub(crate) async fn id_in_use_is_refused(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let spec = spec();
    let taken = id()?;
    let both = futures::future::join(
        engine.create(CreateRequest::long_lived(&taken, &spec, None)),
        engine.create(CreateRequest::long_lived(&taken, &spec, None)),
    );
    let (first, second) = within("two launches", both).await?;
    let ((Ok(sandbox), Err(error)) | (Err(error), Ok(sandbox))) = (first, second) else {
        return Err("both or none were launched".into());
    };
    assert!(matches!(error, EngineError::IdInUse { .. }), "{error}");
    let error = engine
        .create(CreateRequest::long_lived(&taken, &spec, None))
        .await
        .err()
        .ok_or("it was launched again")?;
    assert!(matches!(error, EngineError::IdInUse { .. }), "{error}");
    sandbox.guest().check().await?;
    sandbox.stop().await?;
    // Afterwards the id is free, and the end of the previous sandbox is not taken for that of the next.
    for _ in 0..10 {
        let next = engine.create(CreateRequest::long_lived(&taken, &spec, None)).await?;
        let ended = tokio::time::timeout(Duration::from_millis(20), next.wait_ended()).await;
        assert!(ended.is_err(), "it has ended: {ended:?}");
        next.guest().check().await?;
        next.stop().await?;
    }
    within("the news of the first", sandbox.wait_ended()).await?;
    Ok(())
}

/// Without a launcher there is no list of ids: the control groups of an existing sandbox must stay untouched.
pub(crate) async fn id_in_use_is_refused_without_a_launcher(_: &Fixture) -> TestResult {
    for kind in [LocalKind::Local, LocalKind::Process] {
        let engine = LocalEngine::new(LocalConfig::new(kind));
        let spec = SandboxSpec { engine: kind.name(), ..spec() };
        let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec, None)).await?;
        let mut running = sandbox.guest().start(shell("echo ready; exec sleep 1000")).await?;
        read_until(&mut running, "ready").await?;
        let again = engine.create(CreateRequest::long_lived(&sandbox.id, &spec, None)).await;
        assert!(again.is_err(), "the same id twice");
        sandbox.guest().check().await?;
        sandbox.set_limits(&LimitsChange { pids: Some("50".parse()?), ..LimitsChange::default() }).await?;
        assert_eq!(sandbox.guest().metrics().await?.processes, 1);
        sandbox.stop().await?;
        assert!(leftovers::of(&sandbox.id).is_empty());
    }
    Ok(())
}

pub(crate) async fn dropped_launch_leaves_nothing(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let spec = spec();
    engine.create(CreateRequest::long_lived(&id()?, &spec, None)).await?.stop().await?;
    let mut ids = Vec::new();
    for round in 0..20u64 {
        let id = id()?;
        let launch = engine.create(CreateRequest::long_lived(&id, &spec, None));
        let timeout = Duration::from_micros(round * 700);
        if let Ok(sandbox) = tokio::time::timeout(timeout, launch).await {
            sandbox?.stop().await?;
        }
        ids.push(id);
    }
    eventually("the launcher holds nothing", async || {
        Ok(engine.survivors().await?.iter().all(|one| one.ended.is_some()))
    })
    .await?;
    for id in &ids {
        wait_until_removed(id).await?;
    }
    Ok(())
}

pub(crate) async fn dropped_sandbox_keeps_running(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let sandbox =
        engine.create(CreateRequest::long_lived(&id()?, &spec(), Some(Duration::from_secs(3600)))).await?;
    let id = sandbox.id.clone();
    drop(sandbox);
    let survivors = engine.survivors().await?;
    assert_eq!(survivors.len(), 1);
    let deadline = survivors[0].deadline.ok_or("its deadline is lost")?;
    assert!((Duration::from_secs(3500)..=Duration::from_secs(3600)).contains(&deadline), "{deadline:?}");
    let sandbox = engine.adopt(&id).await?.ok_or("it is gone")?;
    sandbox.guest().check().await?;
    sandbox.stop().await?;
    // A sandbox of a run ends when it is dropped.
    let sandbox = engine.create(CreateRequest::run(&spec())).await?;
    let id = sandbox.id.clone();
    drop(sandbox);
    wait_until_removed(&id).await
}

pub(crate) async fn engines_do_not_mix(fixture: &Fixture) -> TestResult {
    let local = fixture.engine();
    let none = LauncherEngine::new(fixture.config(LocalKind::None));
    let spec_none = SandboxSpec { engine: LocalKind::None.name(), ..spec() };
    let error = local
        .create(CreateRequest::long_lived(&id()?, &spec_none, None))
        .await
        .err()
        .ok_or("it was launched")?;
    assert!(matches!(error, EngineError::WrongEngine { .. }), "{error}");
    let sandbox = none.create(CreateRequest::long_lived(&id()?, &spec_none, None)).await?;
    assert!(local.survivors().await?.is_empty());
    assert!(local.adopt(&sandbox.id).await?.is_none());
    assert_eq!(none.survivors().await?.len(), 1);
    assert!(matches!(sandbox.freeze().await, Err(EngineError::Unsupported { .. })));
    sandbox.stop().await?;
    Ok(())
}

pub(crate) async fn ends_are_reported_once(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let id = sandbox.id.clone();
    sandbox.set_deadline(Some(Duration::from_millis(500))).await?;
    // No client is connected when it ends.
    drop((engine, sandbox));
    fixture.wait_until_empty().await?;
    wait_until_removed(&id).await?;
    let engine = fixture.engine();
    let ends = engine.survivors().await?;
    assert_eq!((ends.len(), &ends[0].id), (1, &id));
    assert!(ends[0].ended.as_deref().is_some_and(|how| how.contains("deadline")), "{ends:?}");
    assert!(engine.survivors().await?.is_empty());
    assert!(fixture.engine().survivors().await?.is_empty());
    Ok(())
}

/// The launcher's programs are replaced: it still uses the guest that was there when it started.
pub(crate) async fn program_can_be_replaced(fixture: &Fixture) -> TestResult {
    let program = fixture.dir.join("program");
    std::fs::copy("/proc/self/exe", &program)?;
    let mut config = fixture.config(LocalKind::Local);
    config.program = Some(program.clone());
    config.local.guest = None;
    let guest = fixture.dir.join("belljar-guest");
    std::fs::copy(account::guest_program()?, &guest)?;
    let inode = std::fs::metadata(&guest)?.ino();
    let engine = LauncherEngine::new(config);
    let first = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    for path in [&program, &guest] {
        std::fs::remove_file(path)?;
        std::fs::write(path, "#!/bin/false\n")?;
    }
    let second = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let is_guest = |process: &std::fs::DirEntry| {
        process.path().join("exe").metadata().is_ok_and(|exe| exe.ino() == inode)
    };
    let guests = std::fs::read_dir("/proc")?.flatten().filter(is_guest).count();
    assert_eq!(guests, 2, "the guests are of the program that was there first");
    for sandbox in [first, second] {
        sandbox.guest().check().await?;
        sandbox.stop().await?;
    }
    Ok(())
}

pub(crate) async fn launcher_has_one_thread_and_no_secrets(fixture: &Fixture) -> TestResult {
    let server = fixture.start_server("long")?;
    let engine = fixture.engine();
    for (id, _) in &server.made {
        let sandbox = engine.adopt(id).await?.ok_or("it is not there")?;
        let _ = sandbox.usage().await;
        let _ = sandbox.freeze().await;
        let _ = sandbox.thaw().await;
        sandbox.stop().await?;
    }
    let launcher = format!("/proc/{}", fixture.launcher().ok_or("no launcher")?);
    let launcher = Path::new(&launcher);
    assert_eq!(std::fs::read_dir(launcher.join("task"))?.count(), 1);
    let environment = std::fs::read(launcher.join("environ"))?;
    assert!(!String::from_utf8_lossy(&environment).contains(SECRET));
    assert_eq!(std::fs::read_link(launcher.join("cwd"))?, Path::new("/"));
    for (number, target) in [("0", "/dev/null"), ("1", "/dev/null"), ("2", "launcher.log")] {
        let found = std::fs::read_link(launcher.join("fd").join(number))?;
        assert!(found.ends_with(target.trim_start_matches('/')), "{number}: {}", found.display());
    }
    let stat = std::fs::read_to_string(launcher.join("stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(") ").ok_or("odd")?.1.split(' ').collect();
    let pid = launcher.file_name().and_then(|name| name.to_str()).ok_or("odd")?;
    assert_eq!((fields[3], fields[4]), (pid, "0"), "a session of its own, without a terminal");
    Ok(())
}

/// A sandbox of `belljar run` has one connection, and refuses further ones with an error.
pub(crate) async fn run_sandbox_has_one_connection(_: &Fixture) -> TestResult {
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    let sandbox = engine.create(CreateRequest::run(&spec())).await?;
    let error = sandbox.connect().await.err().ok_or("it has more")?;
    assert!(matches!(error, EngineError::Unsupported { .. }), "{error}");
    let begin = Instant::now();
    sandbox.stop().await?;
    sandbox.stop().await?;
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(leftovers::of(&sandbox.id).is_empty());
    assert!(engine.survivors().await?.is_empty() && engine.adopt(&sandbox.id).await?.is_none());
    Ok(())
}
