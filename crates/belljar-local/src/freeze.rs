//! Freezing of sandboxes by their control groups.

use std::io;
use std::time::Duration;

use belljar_engine::EngineError;
use belljar_linux::CgroupLayout;
use belljar_model::{EngineName, SandboxId};
use tokio::time::Instant;

/// Maximum time for the kernel to freeze or thaw a sandbox.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

/// Polling interval while waiting for the kernel.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Freezes or thaws everything in the control groups of a sandbox; returns false if it has ended.
///
/// # Errors
/// See [`belljar_engine::Walls::freeze`].
pub async fn set_frozen(
    layout: &CgroupLayout,
    id: &SandboxId,
    engine: EngineName,
    frozen: bool,
) -> Result<bool, EngineError> {
    let what = if frozen { "freeze" } else { "thaw" };
    let freezer = layout.freezer_of(id.as_str()).ok_or_else(|| EngineError::Unsupported {
        what: what.into(),
        engine,
        reason: "no control group hierarchy on this machine can freeze".into(),
    })?;
    let deadline = Instant::now() + FREEZE_TIMEOUT;
    let done = async {
        freezer.set(frozen)?;
        let mut round = 0;
        while freezer.is_frozen()? != frozen {
            if Instant::now() > deadline {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            if frozen {
                freezer.retry(round)?;
                round += 1;
            }
        }
        Ok(())
    };
    match done.await {
        Ok(()) => Ok(true),
        // The group is gone, as its sandbox has ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => {
            // Otherwise it might take effect later, when the sandbox counts as what it was before.
            let _ = freezer.set(!frozen);
            Err(EngineError::Launch { step: format!("{what} the sandbox {id}"), source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failed_change_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let id = SandboxId::from_entropy([1; 20]);
        let group = dir.path().join(format!("belljar-{id}"));
        std::fs::create_dir(&group).unwrap();
        // The kernel's answer cannot be read.
        std::fs::write(group.join("cgroup.events"), [0xff]).unwrap();
        let layout = CgroupLayout { v2: Some(dir.path().to_owned()), ..CgroupLayout::default() };
        for (frozen, before) in [(true, "0"), (false, "1")] {
            std::fs::write(group.join("cgroup.freeze"), before).unwrap();
            set_frozen(&layout, &id, EngineName::LOCAL, frozen).await.unwrap_err();
            assert_eq!(std::fs::read_to_string(group.join("cgroup.freeze")).unwrap(), before);
        }
    }
}
