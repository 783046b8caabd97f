//! A temporary directory of the harness.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::HarnessError;

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory with permissions `mode` among the machine's temporary files.
    ///
    /// # Errors
    /// Fails if it cannot be made.
    pub fn new(mode: u32) -> Result<Self, HarnessError> {
        // Not in /tmp: a sandbox is built on top of it, which would hide the directory from an attack that should find it. Not
        // named belljar-: the search for leftovers would find it.
        let preferred = Path::new("/var/tmp");
        let parent = if preferred.is_dir() { preferred.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(format!("hostile-{}", token()?));
        DirBuilder::new()
            .mode(mode)
            .create(&path)
            .map_err(HarnessError::step(format!("make the directory {}", path.display())))?;
        Ok(Self(path))
    }

    /// Returns the directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure shows up in the search for leftovers.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns 128 random bits as hexadecimal digits.
pub(crate) fn token() -> Result<String, HarnessError> {
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| HarnessError::step("get random bytes")(errno.into()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
