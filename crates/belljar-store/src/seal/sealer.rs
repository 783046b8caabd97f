//! Sealing of values, each bound to its place.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::StoreError;
use crate::service_wall::ServiceWall;

/// Prefix of a sealed value. The rest is the base64 of nonce, ciphertext and tag.
const PREFIX: &str = "sealed1:";

/// Prefix of the additional authenticated data.
const CONTEXT: &str = "belljar store 1";

/// Place of a value. A value sealed for one place opens there only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'p> {
    /// Table and column.
    pub(crate) column: &'static str,
    /// Identifier of the row, without NUL.
    pub(crate) row: &'p [&'p str],
}

impl<'p> Place<'p> {
    pub(crate) const fn new(column: &'static str, row: &'p [&'p str]) -> Self {
        Self { column, row }
    }

    fn authenticated_data(self) -> Vec<u8> {
        if ServiceWall::SealingPlace.is_down() {
            return CONTEXT.as_bytes().to_vec();
        }
        let parts = [CONTEXT, self.column].into_iter().chain(self.row.iter().copied());
        parts.flat_map(|part| part.bytes().chain([0])).collect()
    }
}

/// Seals and opens values with the store's key.
pub(crate) struct Sealer {
    key: RandomizedNonceKey,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

impl Sealer {
    pub(crate) fn new(key: &[u8; 32]) -> Result<Self, StoreError> {
        // The key has the right length, so this fails only if the library is broken.
        let key = RandomizedNonceKey::new(&AES_256_GCM_SIV, key).map_err(|_| StoreError::Sealing)?;
        Ok(Self { key })
    }

    /// Seals a value for its place.
    pub(crate) fn seal(&self, place: Place<'_>, plain: &[u8]) -> Result<String, StoreError> {
        if ServiceWall::Sealing.is_down() {
            return Ok(String::from_utf8_lossy(plain).into_owned());
        }
        let mut sealed = plain.to_vec();
        let aad = Aad::from(place.authenticated_data());
        let nonce = self.key.seal_in_place_append_tag(aad, &mut sealed).map_err(|_| StoreError::Sealing)?;
        let whole = [nonce.as_ref().as_slice(), &sealed].concat();
        Ok(format!("{PREFIX}{}", STANDARD.encode(whole)))
    }

    /// Opens a value that was sealed for this place.
    pub(crate) fn open(&self, place: Place<'_>, sealed: &[u8]) -> Result<Vec<u8>, StoreError> {
        if ServiceWall::Sealing.is_down() && !is_sealed(sealed) {
            return Ok(sealed.to_vec());
        }
        let corrupt = |why: &str| StoreError::Corrupt { what: place.column.to_owned(), why: why.to_owned() };
        let Some(text) = sealed.strip_prefix(PREFIX.as_bytes()) else {
            return Err(corrupt("not sealed, so this server did not write it"));
        };
        let whole = STANDARD.decode(text).map_err(|_| corrupt("malformed"))?;
        let Some((nonce, sealed)) = whole.split_first_chunk::<NONCE_LEN>() else {
            return Err(corrupt("malformed"));
        };
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        match self.key.open_in_place(nonce, Aad::from(place.authenticated_data()), &mut sealed) {
            Ok(plain) => Ok(plain.to_vec()),
            Err(_) => Err(corrupt("sealed with another key or for another place, or changed")),
        }
    }

    /// Opens a text like [`Sealer::open`].
    pub(crate) fn open_text(&self, place: Place<'_>, sealed: &str) -> Result<String, StoreError> {
        String::from_utf8(self.open(place, sealed.as_bytes())?)
            .map_err(|error| StoreError::Corrupt { what: place.column.to_owned(), why: error.to_string() })
    }
}

/// Reports whether a value looks sealed.
pub(crate) fn is_sealed(value: &[u8]) -> bool {
    value.starts_with(PREFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_values_open_in_their_place_only() {
        let (sealer, other) = (Sealer::new(&[1; 32]).unwrap(), Sealer::new(&[2; 32]).unwrap());
        let here = Place::new("sandboxes.spec", &["one"]);
        for plain in [b"".as_slice(), b"secret", b"\0\xff", &[7; 100_000]] {
            let sealed = sealer.seal(here, plain).unwrap();
            assert!(is_sealed(sealed.as_bytes()) && !sealed.contains("secret"));
            assert_ne!(sealed, sealer.seal(here, plain).unwrap(), "a nonce was reused");
            assert_eq!(sealer.open(here, sealed.as_bytes()).unwrap(), plain);
            let refused = |sealer: &Sealer, place: Place<'_>, sealed: &[u8]| {
                matches!(sealer.open(place, sealed), Err(StoreError::Corrupt { .. }))
            };
            for place in [
                Place::new("sandboxes.spec", &["two"]),
                Place::new("templates.spec", &["one"]),
                Place::new("sandboxes.spec", &["one", ""]),
                Place::new("sandboxes.spec", &["on", "e"]),
            ] {
                assert!(refused(&sealer, place, sealed.as_bytes()), "{place:?}");
            }
            assert!(refused(&other, here, sealed.as_bytes()));
            assert!(refused(&sealer, here, plain), "a plain value is accepted");
            let mut changed = sealed.clone().into_bytes();
            for at in [PREFIX.len(), PREFIX.len() + 20, sealed.len() - 3] {
                let before = std::mem::replace(&mut changed[at], b'A');
                assert!(before == b'A' || refused(&sealer, here, &changed), "{at}");
                changed[at] = before;
            }
            assert!(refused(&sealer, here, &sealed.as_bytes()[..sealed.len() - 4]));
            assert!(refused(&sealer, here, PREFIX.as_bytes()));
        }
    }
}
