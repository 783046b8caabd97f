//! A directory of the harness's own, which goes away with it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::HarnessError;

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one among the machine's temporary files. Others may enter it if `mode` lets them.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(mode: u32) -> Result<Self, HarnessError> {
        // A sandbox is built on top of /tmp, which so hides what is there from an attack that should find it. Not called
        // belljar-: such names are looked for as leftovers.
        let usual = Path::new("/var/tmp");
        let parent = if usual.is_dir() { usual.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(format!("hostile-{}", token()?));
        DirBuilder::new()
            .mode(mode)
            .create(&path)
            .map_err(HarnessError::step(format!("make the directory {}", path.display())))?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is reported by whoever looks for leftovers, not here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// 128 bits of chance, in hexadecimal digits.
pub(crate) fn token() -> Result<String, HarnessError> {
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| HarnessError::step("get random bytes")(errno.into()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
