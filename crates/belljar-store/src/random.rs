//! Random numbers of the operating system.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::StoreError;

/// 32 random bytes.
pub(crate) fn random_32() -> Result<[u8; 32], StoreError> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())
            .map_err(|errno| StoreError::Random(errno.into()))?;
    }
    Ok(bytes)
}
