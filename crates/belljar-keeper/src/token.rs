//! Tokens, which grant access to one sandbox, one of its ports or one of its files for a limited time, without a key. They are
//! not stored: a message authentication code (HMAC-SHA-256, RFC 2104) over their claims proves that the server issued them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use belljar_model::SandboxId;
use belljar_store::ServiceWall;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Prefix of tokens.
pub(crate) const PREFIX: &str = "bjs_";

/// Maximum length of a token in bytes: enough for a file with a path of 4096 bytes.
const MAX_TOKEN_BYTES: usize = 8192;

const MAC_BYTES: usize = 32;

/// Claims of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// The sandbox.
    pub(crate) sandbox: SandboxId,
    /// Id of the key that issued the token: revoking the key revokes the token.
    pub(crate) key: String,
    /// Expiry, in seconds since 1970.
    pub(crate) expires: i64,
    /// What the token grants access to.
    pub(crate) scope: Scope,
}

/// Scope of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The sandbox's own routes.
    Sandbox,
    /// One published port.
    Port(u16),
    /// Reading one file.
    ReadFile(Vec<u8>),
    /// Writing one file.
    WriteFile(Vec<u8>),
    /// Packing one directory.
    PackDirectory(Vec<u8>),
}

/// Issuer and verifier of tokens.
#[derive(Clone)]
pub(crate) struct Tokens {
    secret: [u8; 32],
}

impl Tokens {
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self { secret }
    }

    /// Returns the token as text.
    pub(crate) fn issue(&self, token: &Token) -> String {
        let mut bytes = token.encode();
        let mac = self.mac(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&mac);
        format!("{PREFIX}{}", BASE64.encode(bytes))
    }

    /// Returns the token's claims if this server issued it and it has not expired at `now` (seconds since 1970).
    pub(crate) fn read(&self, text: &str, now: i64) -> Option<Token> {
        let text = text.strip_prefix(PREFIX).filter(|text| text.len() <= MAX_TOKEN_BYTES)?;
        let bytes = BASE64.decode(text).ok()?;
        let (claims, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        // Compares in constant time.
        if !ServiceWall::TokenMac.allows(self.mac(claims).verify_slice(mac).is_ok()) {
            return None;
        }
        Token::decode(claims).filter(|token| now < token.expires)
    }

    fn mac(&self, claims: &[u8]) -> Hmac<Sha256> {
        // A key shorter than a block is padded with zeros (RFC 2104, section 2).
        let mut block = [0; 64];
        block[..self.secret.len()].copy_from_slice(&self.secret);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(b"belljar token 1\0");
        mac.update(claims);
        mac
    }
}

impl Token {
    /// Encodes sandbox, expiry, kind, length of the key, key, and the kind's data. The encoding is injective.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.key.len());
        bytes.extend_from_slice(self.sandbox.as_str().as_bytes());
        bytes.extend_from_slice(&self.expires.to_be_bytes());
        let (kind, rest): (u8, &[u8]) = match &self.scope {
            Scope::Sandbox => (0, &[]),
            Scope::Port(port) => (1, &port.to_be_bytes()),
            Scope::ReadFile(path) => (2, path),
            Scope::WriteFile(path) => (3, path),
            Scope::PackDirectory(path) => (4, path),
        };
        bytes.push(kind);
        let key = self.key.as_bytes().get(..255).unwrap_or(self.key.as_bytes());
        bytes.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(rest);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (sandbox, bytes) = bytes.split_at_checked(SandboxId::LEN)?;
        let (expires, bytes) = bytes.split_first_chunk::<8>()?;
        let (kind, bytes) = bytes.split_first()?;
        let (key_len, bytes) = bytes.split_first()?;
        let (key, rest) = bytes.split_at_checked(usize::from(*key_len))?;
        let scope = match kind {
            0 if rest.is_empty() => Scope::Sandbox,
            1 => Scope::Port(u16::from_be_bytes(rest.try_into().ok()?)),
            2 => Scope::ReadFile(rest.to_vec()),
            3 => Scope::WriteFile(rest.to_vec()),
            4 => Scope::PackDirectory(rest.to_vec()),
            _ => return None,
        };
        Some(Self {
            sandbox: std::str::from_utf8(sandbox).ok()?.parse().ok()?,
            key: String::from_utf8(key.to_vec()).ok()?,
            expires: i64::from_be_bytes(*expires),
            scope,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Vec<Token> {
        let scopes = [
            Scope::Sandbox,
            Scope::Port(8000),
            Scope::ReadFile(b"a.csv".to_vec()),
            Scope::WriteFile(b"a.csv".to_vec()),
            Scope::PackDirectory(b"a.csv".to_vec()),
            Scope::ReadFile(Vec::new()),
        ];
        let token = |scope| Token {
            sandbox: SandboxId::from_entropy([3; 20]),
            key: "k1".to_owned(),
            expires: 1000,
            scope,
        };
        scopes.into_iter().map(token).collect()
    }

    #[test]
    fn token_round_trip_until_expiry() {
        let maker = Tokens::new([1; 32]);
        for token in tokens() {
            let text = maker.issue(&token);
            assert!(text.starts_with(PREFIX) && text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            assert_eq!(maker.read(&text, 999), Some(token));
            assert_eq!(maker.read(&text, 1000), None);
        }
    }

    #[test]
    fn tokens_are_unique_and_bound_to_the_secret() {
        let (here, elsewhere) = (Tokens::new([1; 32]), Tokens::new([2; 32]));
        let texts: std::collections::BTreeSet<_> = tokens().iter().map(|token| here.issue(token)).collect();
        assert_eq!(texts.len(), tokens().len());
        assert!(texts.iter().all(|text| elsewhere.read(text, 0).is_none()));
    }

    #[test]
    fn flipped_bits_are_detected() {
        let maker = Tokens::new([1; 32]);
        for token in tokens() {
            let text = maker.issue(&token);
            let bytes = BASE64.decode(&text[PREFIX.len()..]).unwrap();
            for bit in 0..bytes.len() * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(maker.read(&format!("{PREFIX}{}", BASE64.encode(bytes)), 0), None, "bit {bit}");
            }
        }
        for text in ["", "bjs_", "bjs_AAAA", "bj_x", "bjs_\u{e9}"] {
            assert_eq!(maker.read(text, 0), None, "{text:?}");
        }
    }
}
