//! Random numbers from the operating system.

use crate::error::StoreError;

/// Returns 32 random bytes.
pub(crate) fn random_32() -> Result<[u8; 32], StoreError> {
    let mut bytes = [0; 32];
    // Reads of up to 256 bytes are never partial (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| StoreError::Random(errno.into()))?;
    Ok(bytes)
}
