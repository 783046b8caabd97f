//! Machines with only v1 control groups, where frozen processes do not die on SIGKILL.

use crate::fixture::{Fixture, TestResult, skipped};

#[cfg(not(feature = "mutation"))]
pub(crate) async fn freeze_with_v1(_: &Fixture) -> TestResult {
    skipped("it needs a build for tests (--features mutation)")
}

#[cfg(feature = "mutation")]
pub(crate) async fn freeze_with_v1(_: &Fixture) -> TestResult {
    use std::time::Duration;

    use belljar_engine::Engine as _;
    use belljar_local::{CreateRequest, LocalConfig, LocalEngine, LocalKind};
    use belljar_model::SandboxSpec;

    use crate::fixture::{eventually, id, read_until, shell, spec, wait_until_removed, within};
    use crate::leftovers;

    for kind in [LocalKind::Local, LocalKind::Process] {
        let Some(engine) = LocalEngine::with_v1(LocalConfig::new(kind)) else {
            return skipped("there are no control groups v1 with a freezer");
        };
        let spec = SandboxSpec { engine: kind.name(), ..spec() };
        for end in ["stop", "kill", "drop", "thaw"] {
            let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec, None)).await?;
            let groups = leftovers::of(&sandbox.id);
            assert!(groups.iter().any(|group| group.contains("freezer")), "{groups:?}");
            assert!(!groups.iter().any(|group| group.contains("unified")), "{groups:?}");
            let mut running =
                sandbox.guest().start(shell("echo ready; while :; do echo x; sleep 0.02; done")).await?;
            read_until(&mut running, "ready").await?;
            sandbox.freeze().await?;
            let answer = tokio::time::timeout(Duration::from_millis(200), sandbox.guest().check()).await;
            assert!(answer.is_err(), "a frozen guest answers: {answer:?}");
            let id = sandbox.id.clone();
            match end {
                "stop" => within("the end", sandbox.stop()).await??,
                "kill" => {
                    sandbox.kill();
                    within("the end", sandbox.wait_ended()).await?;
                    sandbox.stop().await?;
                }
                "drop" => drop(sandbox),
                _ => {
                    sandbox.thaw().await?;
                    eventually("it is thawed", async || Ok(sandbox.guest().check().await.is_ok())).await?;
                    sandbox.stop().await?;
                }
            }
            wait_until_removed(&id).await?;
        }
    }
    Ok(())
}
