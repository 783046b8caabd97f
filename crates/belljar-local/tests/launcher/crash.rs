//! Tests that kill a server or a launcher.

use std::time::{Duration, Instant};

use belljar_engine::{Engine as _, EngineError, GuestError, ProcessEvent};
use belljar_linux::lock_byte;
use belljar_local::CreateRequest;
use rustix::process::Signal;

use crate::fixture::{
    Fixture, TestResult, count, eventually, fork_servers, id, read_until, shell, signal, spec, supervisors,
    wait_until_removed, within,
};
use crate::leftovers;

pub(crate) async fn killed_server_leaves_its_sandboxes(fixture: &Fixture) -> TestResult {
    let made = fixture.start_server("long")?.kill()?;
    let engine = fixture.engine();
    let survivors = engine.survivors().await?;
    assert_eq!(survivors.len(), 2, "{survivors:?}");
    for (id, process) in &made {
        let survivor = survivors.iter().find(|survivor| survivor.id == *id).ok_or("one is missing")?;
        assert_eq!((survivor.is_frozen, survivor.deadline, &survivor.ended), (false, None, &None));
        let sandbox = within("adoption", engine.adopt(id)).await??.ok_or("it is not there")?;
        assert_eq!(sandbox.id, *id);
        assert!(!sandbox.isolation.layers.is_empty());
        assert!(sandbox.timings().iter().any(|(name, _)| *name == "mounts"), "{:?}", sandbox.timings());
        // The counter has continued, its file is there, and its output continues where the server stopped reading.
        let before = count(sandbox.guest(), &sandbox).await?;
        eventually("the counter continues", async || Ok(count(sandbox.guest(), &sandbox).await? > before))
            .await?;
        let mut attached = sandbox.guest().attach(*process, [10, 0, 0]).await?;
        match within("output", attached.next()).await?? {
            Some(ProcessEvent::Output { offset: 10, data, .. }) => {
                assert!(data.starts_with(b"6\n"), "{data:?}")
            }
            other => return Err(format!("it does not go on at 10: {other:?}").into()),
        }
        // A sandbox can be adopted twice, as by two servers.
        let again = engine.adopt(id).await?.ok_or("it is not there")?;
        again.guest().check().await?;
        sandbox.stop().await?;
        assert!(leftovers::of(id).is_empty(), "{:?}", leftovers::of(id));
        within("the news", again.wait_ended()).await?;
        again.stop().await?;
    }
    assert!(engine.survivors().await?.is_empty());
    assert!(engine.adopt(&id()?).await?.is_none());
    Ok(())
}

pub(crate) async fn killed_server_ends_tied_sandboxes(fixture: &Fixture) -> TestResult {
    let made = fixture.start_server("tied")?.kill()?;
    for (id, _) in &made {
        wait_until_removed(id).await?;
    }
    eventually("the launcher forgets", async || Ok(fixture.engine().survivors().await?.is_empty())).await
}

pub(crate) async fn killed_fork_server_is_replaced(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let first = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let launcher = fixture.launcher().ok_or("no launcher")?;
    let [killed] = fork_servers(launcher)[..] else { return Err("there is not one fork server".into()) };
    assert_eq!(supervisors(launcher).len(), 1);
    signal(killed, Signal::KILL)?;
    // Whether the launcher has noticed or not.
    let second = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    for sandbox in [&first, &second] {
        sandbox.guest().check().await?;
    }
    let servers = fork_servers(launcher);
    assert!(matches!(servers[..], [other] if other != killed), "{servers:?}");
    assert_eq!(supervisors(launcher).len(), 1);
    for sandbox in [&first, &second] {
        sandbox.stop().await?;
        assert!(leftovers::of(&sandbox.id).is_empty());
    }
    eventually("supervisors are reaped", async || Ok(supervisors(launcher).is_empty())).await
}

pub(crate) async fn hung_fork_server_is_replaced(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let first = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let launcher = fixture.launcher().ok_or("no launcher")?;
    let [hung] = fork_servers(launcher)[..] else { return Err("there is not one fork server".into()) };
    signal(hung, Signal::STOP)?;
    // The launcher goes around it, and has another one from then on.
    let second = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let third = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let all = [first, second, third];
    for sandbox in &all {
        sandbox.guest().check().await?;
    }
    let servers = fork_servers(launcher);
    assert!(matches!(servers[..], [other] if other != hung), "{servers:?}");
    for sandbox in &all {
        sandbox.stop().await?;
        assert!(leftovers::of(&sandbox.id).is_empty());
    }
    eventually("supervisors are reaped", async || Ok(supervisors(launcher).is_empty())).await
}

pub(crate) async fn killed_launcher_ends_all_sandboxes(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let first = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let tied = engine.create(CreateRequest::run(&spec())).await?;
    let mut running = first.guest().start(shell("echo ready; setsid sleep 1000 & sleep 1000")).await?;
    read_until(&mut running, "ready").await?;
    let launcher = fixture.launcher().ok_or("no launcher")?;
    signal(launcher, Signal::KILL)?;
    let begin = Instant::now();
    for sandbox in [&first, &tied] {
        let how = within("the news", sandbox.wait_ended()).await?;
        assert!(how.contains("launcher"), "{how}");
        wait_until_removed(&sandbox.id).await?;
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    let broken = within("a call", async {
        loop {
            match running.next().await {
                Ok(Some(_)) => {}
                other => return other,
            }
        }
    })
    .await?;
    assert!(matches!(broken, Err(GuestError::Gone(_))), "{broken:?}");
    assert!(matches!(first.freeze().await, Err(EngineError::Ended { .. })));
    assert!(matches!(first.connect().await, Err(EngineError::Ended { .. })));
    first.stop().await?;
    assert!(engine.survivors().await?.is_empty());
    assert!(engine.adopt(&first.id).await?.is_none());
    // The next launch starts another launcher.
    let next = engine.create(CreateRequest::long_lived(&first.id, &spec(), None)).await?;
    next.guest().check().await?;
    assert_ne!(fixture.launcher(), Some(launcher));
    next.stop().await?;
    Ok(())
}

/// Returns the slot of the lease in the file of user ids, according to the isolation report.
fn lease_slot(isolation: &belljar_model::Isolation) -> Option<i64> {
    let user = isolation.layers.iter().find(|layer| layer.name == "user")?;
    let uid: i64 = user.detail.split(' ').nth(1)?.parse().ok()?;
    Some(uid - 1_900_000_000)
}

pub(crate) async fn killed_launcher_leaves_no_lease(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let slot = lease_slot(&sandbox.isolation).ok_or("no lease")?;
    let path = format!("/run/belljar/uids-{}", slot / 256);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    let is_free = || lock_byte(std::os::fd::AsFd::as_fd(&file), slot).is_ok();
    assert!(!is_free(), "a running sandbox has no lease");
    signal(fixture.launcher().ok_or("no launcher")?, Signal::KILL)?;
    eventually("the lease is given back", async || Ok(is_free())).await?;
    wait_until_removed(&sandbox.id).await
}

pub(crate) async fn terminated_launcher_cleans_up(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let mut running = sandbox.guest().start(shell("trap '' TERM; echo ready; sleep 1000")).await?;
    read_until(&mut running, "ready").await?;
    signal(fixture.launcher().ok_or("no launcher")?, Signal::TERM)?;
    within("the news", sandbox.wait_ended()).await?;
    eventually("the launcher has ended", async || Ok(fixture.launcher().is_none())).await?;
    assert!(leftovers::of(&sandbox.id).is_empty(), "{:?}", leftovers::of(&sandbox.id));
    Ok(())
}

pub(crate) async fn deadline_is_kept_without_a_server(fixture: &Fixture) -> TestResult {
    let made = fixture.start_server("deadline")?.kill()?;
    fixture.wait_until_empty().await?;
    for (id, _) in &made {
        wait_until_removed(id).await?;
    }
    let engine = fixture.engine();
    let ends = engine.survivors().await?;
    assert_eq!(ends.len(), 2, "{ends:?}");
    for end in &ends {
        let how = end.ended.as_deref().ok_or("it has not ended")?;
        assert!(how.contains("deadline"), "{how}");
        assert!(made.iter().any(|(id, _)| *id == end.id));
    }
    assert!(engine.adopt(&made[0].0).await?.is_none());
    assert!(engine.survivors().await?.is_empty(), "it is reported once");
    Ok(())
}
