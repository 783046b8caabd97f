//! Addresses and names that are denied in every policy.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::name::DomainName;

/// A range of addresses that is denied in every mode, unless the operator has made an exception for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeniedRange {
    base: IpAddr,
    prefix_len: u32,
    purpose: &'static str,
    source: &'static str,
}

impl DeniedRange {
    /// The range's purpose, such as `private`.
    pub const fn purpose(&self) -> &'static str {
        self.purpose
    }

    /// The document that defines it, such as `RFC 1918`.
    pub const fn source(&self) -> &'static str {
        self.source
    }

    /// Reports whether an address is in the range. An IPv4 address is in no IPv6 range.
    pub fn contains(&self, address: IpAddr) -> bool {
        let rest = |bits: u32| bits.saturating_sub(self.prefix_len);
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                (base.to_bits() ^ address.to_bits()).checked_shr(rest(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                (base.to_bits() ^ address.to_bits()).checked_shr(rest(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for DeniedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix_len)
    }
}

const fn v4(base: [u8; 4], prefix_len: u32, purpose: &'static str, source: &'static str) -> DeniedRange {
    let [a, b, c, d] = base;
    DeniedRange { base: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix_len, purpose, source }
}

const fn v6(base: [u16; 4], prefix_len: u32, purpose: &'static str, source: &'static str) -> DeniedRange {
    let [a, b, c, d] = base;
    DeniedRange { base: IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)), prefix_len, purpose, source }
}

/// All ranges that are denied in every mode; a narrow range precedes the wide one that contains it. The host's own addresses
/// are denied as well; the gateway detects them.
pub static ALWAYS_DENIED: [DeniedRange; 28] = [
    v4([0, 0, 0, 0], 8, "this network", "RFC 791"),
    v4([10, 0, 0, 0], 8, "private", "RFC 1918"),
    v4([100, 100, 100, 200], 32, "a cloud's metadata service", "Alibaba Cloud, instance metadata"),
    v4([100, 64, 0, 0], 10, "carrier-grade NAT", "RFC 6598"),
    v4([127, 0, 0, 0], 8, "loopback", "RFC 1122"),
    v4([168, 63, 129, 16], 32, "a cloud's host agent", "Microsoft Azure, what is IP address 168.63.129.16"),
    v4([169, 254, 0, 0], 16, "link-local, with the metadata service of clouds", "RFC 3927"),
    v4([172, 16, 0, 0], 12, "private", "RFC 1918"),
    v4([192, 0, 0, 0], 24, "protocol assignments", "RFC 6890"),
    v4([192, 0, 2, 0], 24, "documentation", "RFC 5737"),
    v4([192, 168, 0, 0], 16, "private", "RFC 1918"),
    v4([198, 18, 0, 0], 15, "benchmarking", "RFC 2544"),
    v4([198, 51, 100, 0], 24, "documentation", "RFC 5737"),
    v4([203, 0, 113, 0], 24, "documentation", "RFC 5737"),
    v4([224, 0, 0, 0], 3, "multicast and reserved", "RFC 5771 and RFC 1112"),
    v6([0, 0, 0, 0], 96, "unspecified, loopback and IPv4-compatible", "RFC 4291"),
    v6([0x64, 0xff9b, 0, 0], 96, "translation to IPv4", "RFC 6052"),
    v6([0x64, 0xff9b, 1, 0], 48, "translation to IPv4", "RFC 8215"),
    v6([0x100, 0, 0, 0], 64, "discard-only", "RFC 6666"),
    v6([0x2001, 0, 0, 0], 32, "Teredo", "RFC 4380"),
    v6([0x2001, 0xdb8, 0, 0], 32, "documentation", "RFC 3849"),
    v6([0x2002, 0, 0, 0], 16, "6to4", "RFC 3056"),
    v6([0x3fff, 0, 0, 0], 20, "documentation", "RFC 9637"),
    v6([0x5f00, 0, 0, 0], 16, "segment routing", "RFC 9602"),
    v6([0xfc00, 0, 0, 0], 7, "unique local", "RFC 4193"),
    v6([0xfe80, 0, 0, 0], 10, "link-local", "RFC 4291"),
    v6([0xfec0, 0, 0, 0], 10, "site-local", "RFC 3879"),
    v6([0xff00, 0, 0, 0], 8, "multicast", "RFC 4291"),
];

/// Returns the range for which an address is denied in every mode, or `None` for a public address.
///
/// A mapped address (`::ffff:0:0/96`) is another spelling of an IPv4 address and is judged as that. Compatible, translated and
/// 6to4 addresses (`::/96`, `64:ff9b::/96`, `2002::/16`) are always denied; the range of a denied inner address is returned,
/// as it is the better reason.
pub fn always_denied(address: impl Into<IpAddr>) -> Option<&'static DeniedRange> {
    let address = address.into();
    let range = |address: IpAddr| ALWAYS_DENIED.iter().find(|range| range.contains(address));
    match address {
        IpAddr::V4(_) => range(address),
        IpAddr::V6(v6) => match (v6.to_ipv4_mapped(), embedded(v6)) {
            (Some(mapped), _) => range(mapped.into()),
            (None, Some(inner)) => range(inner.into()).or_else(|| range(address)),
            (None, None) => range(address),
        },
    }
}

/// Returns the IPv4 address embedded in an IPv6 address, if any.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let inner = match [a, b, c, d, e, f] {
        // `::` and `::1` embed no IPv4 address; `::2` and the like embed 0.0.0.2, which is denied, too.
        [0, 0, 0, 0, 0, 0] if g == 0 && h <= 1 => return None,
        [0, 0, 0, 0, 0, 0] | [0x64, 0xff9b, 0, 0, 0, 0] => (g, h),
        [0x2002, g, h, ..] => (g, h),
        _ => return None,
    };
    Some(Ipv4Addr::from_bits((u32::from(inner.0) << 16) | u32::from(inner.1)))
}

/// Addresses of services that clouds offer to their machines. Sources: Amazon EC2, "Access instance metadata" and "Amazon DNS
/// server", ECS task metadata and EKS Pod Identity; Alibaba Cloud and Microsoft Azure as in [`ALWAYS_DENIED`].
const METADATA_ADDRESSES: [Ipv4Addr; 7] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(169, 254, 169, 123),
    Ipv4Addr::new(169, 254, 169, 253),
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
];

/// Reports whether a host is a cloud's metadata service, by its own name or address. The hosts of which this is true are few, whatever
/// code in a sandbox chooses.
pub fn is_metadata(host: &str) -> bool {
    METADATA_NAMES.contains(&host)
        || host.parse().is_ok_and(|address: Ipv4Addr| METADATA_ADDRESSES.contains(&address))
}

/// Reports whether an address is link-local.
pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Names of metadata services of clouds. Sources: Google Compute Engine, "View and query VM metadata"; Amazon EC2,
/// "Private DNS names". Their addresses are denied as well; a name is denied before it is resolved.
const METADATA_NAMES: [&str; 4] =
    ["instance-data", "instance-data.ec2.internal", "metadata.goog", "metadata.google.internal"];

/// Reports whether a name is that of a cloud's metadata service, or below it.
pub fn always_denied_name(name: &DomainName) -> bool {
    std::iter::once(name.as_str()).chain(name.parents()).any(|name| METADATA_NAMES.contains(&name))
}
