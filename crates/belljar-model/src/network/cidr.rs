//! Ranges of IPv4 addresses.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// A range of IPv4 addresses, such as `192.0.2.0/24`. Sandboxes have no IPv6, so there are no IPv6 ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    base: Ipv4Addr,
    prefix_len: u8,
}

impl Cidr {
    /// Returns the range of this prefix length that an address is in. A length over 32 counts as 32.
    pub fn containing(address: Ipv4Addr, prefix_len: u8) -> Self {
        let prefix_len = prefix_len.min(32);
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
        Self { base: Ipv4Addr::from_bits(address.to_bits() & mask), prefix_len }
    }

    /// The first address of the range.
    pub(super) fn base(self) -> Ipv4Addr {
        self.base
    }

    /// The number of leading bits that all its addresses share, at most 32.
    pub(super) fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// Reports whether an address is in the range.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        Self::containing(address, self.prefix_len) == self
    }

    /// Parses a range; the error describes the expected form.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.contains(':') {
            return Err("an IPv4 range such as 192.0.2.0/24: there is no IPv6 in a sandbox".to_owned());
        }
        let Some((address, prefix_len)) = text.split_once('/') else {
            return Err("an address with its prefix length, such as 192.0.2.1/32".to_owned());
        };
        let Ok(address) = address.parse::<Ipv4Addr>() else {
            return Err("a host name without a path, or an IPv4 range such as 192.0.2.0/24".to_owned());
        };
        let prefix_len = decimal(prefix_len).filter(|len| *len <= 32);
        let prefix_len = prefix_len.ok_or("a prefix length from 0 to 32, such as 192.0.2.0/24")?;
        // At most 32, so that the conversion keeps the value.
        let range = Self::containing(address, u8::try_from(prefix_len).unwrap_or(32));
        if range.base != address {
            return Err(format!("{range}: after the prefix every bit is zero"));
        }
        Ok(range)
    }
}

/// Parses a number in canonical form: digits only, without a leading zero.
pub(super) fn decimal(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) {
        return None;
    }
    text.parse().ok()
}

impl FromStr for Cidr {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::read(text).map_err(|allowed| ModelError::not_allowed("cidr", text, allowed))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix_len)
    }
}

serde_as_text!(Cidr);
