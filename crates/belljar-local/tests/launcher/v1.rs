//! Machines whose only control groups are v1: what stands still there does not die.

use crate::setting::{Setting, Tested, skipped};

#[cfg(not(feature = "mutation"))]
pub(crate) async fn frozen_by_v1(_: &Setting) -> Tested {
    skipped("it needs a build for tests (--features mutation)")
}

#[cfg(feature = "mutation")]
pub(crate) async fn frozen_by_v1(_: &Setting) -> Tested {
    use std::time::Duration;

    use belljar_engine::Engine as _;
    use belljar_local::{CreateRequest, LocalConfig, LocalEngine, LocalKind};
    use belljar_model::SandboxSpec;

    use crate::leftovers;
    use crate::setting::{eventually, id, nothing_left, shell, spec, until, within};

    for kind in [LocalKind::Local, LocalKind::Process] {
        let Some(engine) = LocalEngine::with_v1(LocalConfig::new(kind)) else {
            return skipped("there are no control groups v1 with a freezer");
        };
        let spec = SandboxSpec { engine: kind.name(), ..spec() };
        for end in ["stop", "kill", "drop", "thaw"] {
            let sandbox = engine.create(CreateRequest::long(&id()?, &spec, None)).await?;
            let groups = leftovers::of(&sandbox.id);
            assert!(groups.iter().any(|group| group.contains("freezer")), "{groups:?}");
            assert!(!groups.iter().any(|group| group.contains("unified")), "{groups:?}");
            let mut running =
                sandbox.guest().start(shell("echo ready; while :; do echo x; sleep 0.02; done")).await?;
            until(&mut running, "ready").await?;
            sandbox.freeze().await?;
            let quiet = tokio::time::timeout(Duration::from_millis(200), sandbox.guest().check()).await;
            assert!(quiet.is_err(), "a frozen guest answers: {quiet:?}");
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
                    eventually("it goes on", async || Ok(sandbox.guest().check().await.is_ok())).await?;
                    sandbox.stop().await?;
                }
            }
            nothing_left(&id).await?;
        }
    }
    Ok(())
}
