//! Which verdicts of a gateway get a record of their own in the audit log. Code chooses names, addresses and ports, so that what it
//! tries often must not hide the rest.
//!
//! ```text
//!   verdict ─► its slot: metadata service │ link-local │ denied by every policy │ denied │ allowed
//!                └─► its place: host and port, all further ports of the host, or all further hosts of its range or denied domain
//!                      ├─ new, and the slot has room ──► record
//!                      └─ among the further ones, or the slot is full ──► the hosts with most bytes or denials ──► records at the end
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use belljar_model::{NetworkEventKind, is_link_local, is_metadata};

/// Maximum number of ports of one host with a record of their own.
/// Source: docs/audit.md; held by `tests::ports_of_a_host_are_folded`.
const MAX_PORTS: usize = 8;

/// Maximum number of hosts of one range of addresses (/24, or /64 of IPv6), or of one denied domain, with records of their own.
/// Source: docs/audit.md; held by `tests::hosts_of_a_range_or_domain_are_folded`.
const MAX_OF_GROUP: usize = 8;

/// Maximum number of hosts without a record of their own whose bytes or denials are compared.
const MAX_COMPARED: usize = 512;

/// Maximum number of those of one slot that get a record at the end.
/// Source: docs/audit.md; held by `tests::places_with_most_bytes_are_recorded_at_the_end`.
const MAX_LARGEST: usize = 64;

/// Records that verdicts of another kind cannot use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Allowed,
    /// The known addresses and names of metadata services: a few.
    Metadata,
    /// Other link-local addresses, and names that resolve to one.
    LinkLocal,
    AlwaysDenied,
    Denied,
}

impl Slot {
    fn of(verdict: &Verdict, kind: NetworkEventKind) -> Self {
        match kind {
            NetworkEventKind::Allowed | NetworkEventKind::Ended => Self::Allowed,
            _ if is_metadata(&verdict.host) => Self::Metadata,
            _ if verdict.leads_to(is_link_local) => Self::LinkLocal,
            NetworkEventKind::AlwaysDenied => Self::AlwaysDenied,
            NetworkEventKind::Denied => Self::Denied,
        }
    }

    /// Maximum number of records per sandbox, besides those at the end.
    /// Source: docs/audit.md; held by `tests::each_slot_has_its_own_records`.
    const fn max_recorded(self) -> usize {
        match self {
            Self::Allowed => 512,
            // More than there are hosts, with all their places.
            Self::Metadata => 128,
            Self::LinkLocal | Self::AlwaysDenied | Self::Denied => 64,
        }
    }
}

/// A verdict that gets a record of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: bool,
    /// The host, or the range or domain if this is about further hosts of it.
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    pub(crate) rule: String,
    pub(crate) address: Option<String>,
    /// Set if this stands for all further ports of the host, or for all further hosts.
    pub(crate) is_folded: bool,
}

impl Verdict {
    fn leads_to(&self, is_it: impl Fn(IpAddr) -> bool) -> bool {
        let texts = self.address.iter().chain([&self.host]);
        texts.filter_map(|text| text.parse().ok()).any(is_it)
    }
}

/// Verdicts on one host without a record of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Largest {
    /// The first one. It has a port if all have that.
    pub(crate) verdict: Verdict,
    /// Number of verdicts that were counted here: at least as many as there were.
    pub(crate) count: u64,
    /// Bytes sent and received by its connections that have ended, likewise.
    pub(crate) bytes: (u64, u64),
    /// Bytes or denials, and those of what this has displaced (Metwally et al., "Space-Saving").
    rank: u64,
}

/// Places of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    /// Places with a record. Without a port: all further ones.
    recorded: BTreeSet<(Slot, String, Port)>,
    /// Ports with a record, by host.
    ports: BTreeMap<(Slot, String), usize>,
    /// Hosts with a record, by range or domain.
    hosts: BTreeMap<(Slot, String), usize>,
    /// Records, by slot.
    counts: BTreeMap<Slot, usize>,
    /// Hosts without a record of their own, by slot, so that those of one cannot displace those of another.
    compared: BTreeMap<Slot, BTreeMap<String, Largest>>,
    /// Verdicts on places without a record of their own.
    unrecorded: u64,
}

/// A port, no port where a name was not resolved, or all further ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Port {
    One(Option<u16>),
    Others,
}

impl Verdicts {
    /// Adds a verdict. Returns the record to write, unless there is one that stands for it, or none left.
    pub(crate) fn take(&mut self, kind: NetworkEventKind, mut verdict: Verdict) -> Option<Verdict> {
        let slot = Slot::of(&verdict, kind);
        if self.has_own_record(slot, &verdict.host, verdict.port) {
            return None;
        }
        let is_full = self.counts.get(&slot).is_some_and(|count| *count >= slot.max_recorded());
        if is_full || self.is_folded(slot, &verdict.host) {
            self.unrecorded += 1;
            self.compare(slot, verdict, 1, (0, 0));
            return None;
        }
        *self.counts.entry(slot).or_default() += 1;
        let own = verdict.clone();
        let (group, max) = group(slot, &verdict.host);
        let ports = self.ports.get(&(slot, verdict.host.clone())).copied().unwrap_or(0);
        let of_group = group.map(|group| (slot, group));
        let hosts = of_group.as_ref().and_then(|key| self.hosts.get(key)).copied().unwrap_or(0);
        match of_group {
            Some((_, group)) if ports == 0 && hosts >= max => {
                verdict = Verdict { host: group, port: None, address: None, is_folded: true, ..verdict };
            }
            of_group => {
                if ports == 0
                    && let Some(key) = of_group
                {
                    *self.hosts.entry(key).or_default() += 1;
                }
                if ports >= MAX_PORTS {
                    verdict = Verdict { port: None, is_folded: true, ..verdict };
                }
                *self.ports.entry((slot, verdict.host.clone())).or_default() += 1;
            }
        }
        let port = if verdict.is_folded { Port::Others } else { Port::One(verdict.port) };
        self.recorded.insert((slot, verdict.host.clone(), port));
        if verdict.is_folded {
            self.unrecorded += 1;
            self.compare(slot, own, 1, (0, 0));
        }
        Some(verdict)
    }

    /// Adds what a connection to this host has transferred at its end.
    pub(crate) fn add_bytes(&mut self, host: String, port: u16, bytes: (u64, u64)) {
        if bytes == (0, 0) || self.has_own_record(Slot::Allowed, &host, Some(port)) {
            return;
        }
        let (rule, address) = (String::new(), None);
        let verdict = Verdict { allowed: true, host, port: Some(port), rule, address, is_folded: false };
        self.compare(Slot::Allowed, verdict, 0, bytes);
    }

    /// Reports whether there is a record for this place alone.
    fn has_own_record(&self, slot: Slot, host: &str, port: Option<u16>) -> bool {
        self.recorded.contains(&(slot, host.to_owned(), Port::One(port)))
    }

    /// Reports whether there is a record for further ports of this host, or for further hosts of its range or domain.
    fn is_folded(&self, slot: Slot, host: &str) -> bool {
        let has = |host: String| self.recorded.contains(&(slot, host, Port::Others));
        let is_new = !self.ports.contains_key(&(slot, host.to_owned()));
        has(host.to_owned()) || is_new && group(slot, host).0.is_some_and(has)
    }

    fn compare(&mut self, slot: Slot, verdict: Verdict, count: u64, bytes: (u64, u64)) {
        let compared = self.compared.entry(slot).or_default();
        let mut displaced = 0;
        if !compared.contains_key(&verdict.host) && compared.len() >= MAX_COMPARED {
            let smallest = compared.iter().min_by_key(|(_, one)| one.rank).map(|(host, _)| host.clone());
            let removed = smallest.and_then(|smallest| compared.remove(&smallest));
            displaced = removed.map_or(0, |removed| removed.rank);
        }
        let new = |verdict| Largest { verdict, count: 0, bytes: (0, 0), rank: displaced };
        let port = verdict.port;
        let one = compared.entry(verdict.host.clone()).or_insert_with(|| new(verdict));
        if one.verdict.port != port {
            one.verdict.port = None;
        }
        // Bytes alone are of a verdict whose host was displaced meanwhile.
        one.count = one.count.saturating_add(count).max(1);
        one.bytes.0 = one.bytes.0.saturating_add(bytes.0);
        one.bytes.1 = one.bytes.1.saturating_add(bytes.1);
        one.rank = one.rank.saturating_add(count).saturating_add(bytes.0).saturating_add(bytes.1);
    }

    /// Returns the hosts with most bytes or denials among those without a record of their own, at most [`MAX_LARGEST`] of each slot; and the number
    /// of verdicts that have no record then either.
    pub(crate) fn largest(&self) -> (Vec<Largest>, u64) {
        let mut largest = Vec::new();
        for of_slot in self.compared.values() {
            let mut all: Vec<_> = of_slot.values().collect();
            all.sort_by_key(|one| std::cmp::Reverse(one.rank));
            largest.extend(all.into_iter().take(MAX_LARGEST).cloned());
        }
        let counted = largest.iter().map(|one| one.count).sum();
        (largest, self.unrecorded.saturating_sub(counted))
    }
}

/// Returns the range or domain of a host, and how many of its hosts have records of their own.
fn group(slot: Slot, host: &str) -> (Option<String>, usize) {
    match (slot, host.parse()) {
        // They are few, and none may hide another.
        (Slot::Metadata, _) => (None, 0),
        // A domain may be a public suffix, under which everybody has a name.
        (Slot::Allowed, Err(_)) => (None, 0),
        (_, Ok(IpAddr::V4(address))) => {
            let base = Ipv4Addr::from_bits(address.to_bits() & !0xff);
            (Some(format!("{base}/24")), MAX_OF_GROUP)
        }
        (_, Ok(IpAddr::V6(address))) => {
            let base = Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX));
            (Some(format!("{base}/64")), MAX_OF_GROUP)
        }
        (_, Err(_)) => (Some(format!("*.{}", domain(host))), MAX_OF_GROUP),
    }
}

/// Returns the last two labels of a name.
fn domain(host: &str) -> &str {
    let dots = host.rmatch_indices('.').map(|(at, _)| at + 1);
    dots.take(2).nth(1).and_then(|at| host.get(at..)).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    use NetworkEventKind::{Allowed, AlwaysDenied, Denied};

    fn verdict(kind: NetworkEventKind, host: &str, port: u16) -> Verdict {
        let (host, port) = (host.to_owned(), Some(port));
        let allowed = kind == Allowed;
        Verdict { allowed, host, port, rule: "rule".to_owned(), address: None, is_folded: false }
    }

    /// Takes a verdict on each host and port. Returns the hosts and ports of the records.
    fn take(
        verdicts: &mut Verdicts,
        kind: NetworkEventKind,
        places: impl IntoIterator<Item = (String, u16)>,
    ) -> Vec<(String, Option<u16>)> {
        let all =
            places.into_iter().filter_map(|(host, port)| verdicts.take(kind, verdict(kind, &host, port)));
        let all = all.inspect(|one| assert_eq!(one.is_folded, one.port.is_none()));
        all.map(|one| (one.host, one.port)).collect()
    }

    #[test]
    fn ports_of_a_host_are_folded() {
        let mut verdicts = Verdicts::default();
        let ports = (0..20_000).map(|port| ("93.184.216.10".to_owned(), port));
        let taken = take(&mut verdicts, Allowed, ports);
        assert_eq!(taken.len(), MAX_PORTS + 1);
        assert_eq!(taken.last(), Some(&("93.184.216.10".to_owned(), None)));
        // Another host of the range has records of its own.
        let other = [("93.184.216.12".to_owned(), 80)];
        assert_eq!(take(&mut verdicts, Allowed, other), [("93.184.216.12".to_owned(), Some(80))]);
        // Those without a record of their own are one host, with all their bytes.
        verdicts.add_bytes("93.184.216.10".to_owned(), 19_999, (9, 1));
        verdicts.add_bytes("93.184.216.10".to_owned(), 3, (1, 1));
        let (largest, unrecorded) = verdicts.largest();
        assert_eq!((largest.len(), unrecorded), (1, 0));
        assert_eq!((largest[0].count, largest[0].bytes), (20_000 - MAX_PORTS as u64, (9, 1)));
        assert_eq!(largest[0].verdict.port, None);
    }

    #[test]
    fn hosts_among_others_keep_their_bytes() {
        let mut verdicts = Verdicts::default();
        let neighbours = (0..MAX_OF_GROUP + 1).map(|number| (format!("93.185.1.{number}"), 443));
        take(&mut verdicts, Allowed, neighbours);
        assert_eq!(take(&mut verdicts, Allowed, [("93.185.1.66".to_owned(), 9001)]), []);
        verdicts.add_bytes("93.185.1.66".to_owned(), 9001, (50 << 20, 0));
        // Everybody has names below a public suffix.
        let names = (0..65).map(|number| (format!("a{number}.co.uk"), 443));
        assert_eq!(take(&mut verdicts, Allowed, names).len(), 65);
        let evil = ("evil.co.uk".to_owned(), 9001);
        assert_eq!(take(&mut verdicts, Allowed, [evil.clone()]), [(evil.0, Some(evil.1))]);
        let (largest, unrecorded) = verdicts.largest();
        let first = &largest[0];
        assert_eq!((first.verdict.host.as_str(), first.verdict.port), ("93.185.1.66", Some(9001)));
        assert_eq!((first.count, first.bytes, unrecorded), (1, (50 << 20, 0), 0));
    }

    #[test]
    fn hosts_of_a_range_or_domain_are_folded() {
        for (kind, host, max, group) in [
            (Allowed, "93.184.216.{}", MAX_OF_GROUP, "93.184.216.0/24"),
            (AlwaysDenied, "10.1.2.{}", MAX_OF_GROUP, "10.1.2.0/24"),
            (Denied, "2606:2800::{}", MAX_OF_GROUP, "2606:2800::/64"),
            (Denied, "a{}.noise.example", MAX_OF_GROUP, "*.noise.example"),
        ] {
            let mut verdicts = Verdicts::default();
            let places = (0..250).map(|number| (host.replace("{}", &number.to_string()), 443));
            let taken = take(&mut verdicts, kind, places);
            assert_eq!(taken.len(), max + 1, "{host}");
            assert_eq!(taken.last(), Some(&(group.to_owned(), None)));
            // What has a record keeps it: another port of it is not among the others.
            let first = host.replace("{}", "0");
            assert_eq!(take(&mut verdicts, kind, [(first.clone(), 444)]), [(first, Some(444))]);
        }
    }

    #[test]
    fn each_slot_has_its_own_records() {
        let mut verdicts = Verdicts::default();
        let domains = (0..100).map(|number| (format!("www.h{number}.example"), 1));
        assert_eq!(take(&mut verdicts, Denied, domains).len(), 64);
        let private = (0..100).map(|number| (format!("10.1.{number}.1"), 80));
        assert_eq!(take(&mut verdicts, AlwaysDenied, private).len(), 64);
        // Noise within the range of the metadata services, and by names that lead there.
        let link_local = (0..=0xffff_u16).map(|number| {
            let [high, low] = number.to_be_bytes();
            (format!("169.254.{high}.{low}"), 80)
        });
        let taken = take(&mut verdicts, AlwaysDenied, link_local);
        assert_eq!(taken.len(), 64 + 5);
        assert!(taken.contains(&("169.254.169.254".to_owned(), Some(80))));
        let mut named = verdict(AlwaysDenied, "rebind.example", 80);
        named.address = Some("169.254.169.254".to_owned());
        assert_eq!(verdicts.take(AlwaysDenied, named), None);
        for host in ["100.100.100.200", "168.63.129.16", "metadata.google.internal"] {
            let ports = (1..100).map(|port| (host.to_owned(), port));
            assert_eq!(take(&mut verdicts, AlwaysDenied, ports).len(), MAX_PORTS + 1, "{host}");
        }
        let allowed = (0..1000).map(|number| (format!("h{number}.example"), 443));
        assert_eq!(take(&mut verdicts, Allowed, allowed).len(), 512);
    }

    #[test]
    fn places_with_most_bytes_are_recorded_at_the_end() {
        let mut verdicts = Verdicts::default();
        let place = |number: u32| (Ipv4Addr::from_bits(0x0100_0000 + (number << 8)).to_string(), 80);
        let connect = |verdicts: &mut Verdicts, (host, port): (String, u16), bytes| {
            take(verdicts, Allowed, [(host.clone(), port)]);
            verdicts.add_bytes(host, port, bytes);
        };
        (0..512).for_each(|number| connect(&mut verdicts, place(number), (1, 1)));
        connect(&mut verdicts, ("93.184.216.12".to_owned(), 80), (1 << 20, 7));
        // As much noise before as after.
        (512..5000).for_each(|number| connect(&mut verdicts, place(number), (100, 100)));
        let (largest, unrecorded) = verdicts.largest();
        assert_eq!(largest.len(), MAX_LARGEST);
        let first = &largest[0];
        assert_eq!(
            (first.verdict.host.as_str(), first.count, first.bytes),
            ("93.184.216.12", 1, (1 << 20, 7))
        );
        let counted: u64 = largest.iter().map(|one| one.count).sum();
        assert_eq!(unrecorded + counted, 5000 - 512 + 1);
        assert!(verdicts.compared.values().all(|of_slot| of_slot.len() <= MAX_COMPARED));
        // Denials by their number.
        let denied = (0..300).map(|number| (format!("10.{}.{}.1", number / 256, number % 256), 1));
        take(&mut verdicts, AlwaysDenied, denied);
        take(&mut verdicts, AlwaysDenied, (0..500).map(|_| ("172.16.0.1".to_owned(), 22)));
        let (largest, _) = verdicts.largest();
        let denied = largest.iter().find(|one| !one.verdict.allowed).unwrap();
        assert_eq!((denied.verdict.host.as_str(), denied.count), ("172.16.0.1", 500));
    }

    #[test]
    fn domains_are_the_last_two_labels() {
        for (host, expected) in [
            ("a.b.example.org", "example.org"),
            ("example.org", "example.org"),
            ("localhost", "localhost"),
            ("", ""),
        ] {
            assert_eq!(domain(host), expected);
        }
    }
}
