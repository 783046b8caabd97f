//! Synthetic addresses: one for each name, so that a connection's destination address identifies its name.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use belljar_model::DomainName;

use crate::budget::MAX_NAMES;

/// Range reserved for benchmarks (RFC 2544), which is not public, without the block that holds the sandbox's own address.
const FIRST: u32 = u32::from_be_bytes([198, 18, 1, 0]);
const LAST: u32 = u32::from_be_bytes([198, 19, 255, 255]);

/// Number of addresses reserved for each of sixteen gateways of a sandbox, one after another: programs may have cached the
/// addresses of one that has ended, which must not become those of other names.
const GENERATION_ADDRESSES: u32 = (LAST - FIRST + 1) / 16;

/// Names with an assigned address.
#[derive(Default)]
pub(crate) struct Names {
    by_name: HashMap<DomainName, Assignment>,
    by_address: HashMap<Ipv4Addr, DomainName>,
    /// Number of addresses assigned so far. They are assigned in order, so that an address that a program has cached is not
    /// soon reused for another name.
    assigned: u32,
    /// Number of look-ups and uses of names.
    clock: u64,
}

struct Assignment {
    address: Ipv4Addr,
    used: u64,
    /// Number of open connections.
    flows: usize,
}

impl Names {
    /// Creates an empty table, whose first addresses earlier generations have not assigned.
    pub(crate) fn of_generation(generation: u32) -> Self {
        Self { assigned: generation.wrapping_mul(GENERATION_ADDRESSES), ..Self::default() }
    }

    /// Returns the address of a name, assigning one if needed. `None` if too many names have connections.
    pub(crate) fn address(&mut self, name: &DomainName) -> Option<Ipv4Addr> {
        self.clock += 1;
        if let Some(assignment) = self.by_name.get_mut(name) {
            assignment.used = self.clock;
            return Some(assignment.address);
        }
        if self.by_name.len() >= MAX_NAMES {
            let idle = self.by_name.iter().filter(|(_, assignment)| assignment.flows == 0);
            let oldest = idle.min_by_key(|(_, assignment)| assignment.used).map(|(name, _)| name.clone())?;
            let assignment = self.by_name.remove(&oldest)?;
            self.by_address.remove(&assignment.address);
        }
        let address = self.next_free();
        self.by_address.insert(address, name.clone());
        self.by_name.insert(name.clone(), Assignment { address, used: self.clock, flows: 0 });
        Some(address)
    }

    /// Returns the next unassigned address: there are many more addresses than names.
    fn next_free(&mut self) -> Ipv4Addr {
        loop {
            let address = Ipv4Addr::from_bits(FIRST + self.assigned % (LAST - FIRST + 1));
            self.assigned = self.assigned.wrapping_add(1);
            if !self.by_address.contains_key(&address) {
                return address;
            }
        }
    }

    /// Reports whether an address is in the synthetic range.
    pub(crate) fn is_synthetic(address: Ipv4Addr) -> bool {
        (FIRST..=LAST).contains(&address.to_bits())
    }

    /// Returns the name that an address is assigned to.
    pub(crate) fn name(&self, address: Ipv4Addr) -> Option<&DomainName> {
        self.by_address.get(&address)
    }

    /// Counts a new connection to the name, which keeps its address assigned.
    pub(crate) fn hold(&mut self, name: &DomainName) {
        self.clock += 1;
        if let Some(assignment) = self.by_name.get_mut(name) {
            assignment.used = self.clock;
            assignment.flows += 1;
        }
    }

    /// Counts the end of a connection to the name.
    pub(crate) fn release(&mut self, name: &DomainName) {
        if let Some(assignment) = self.by_name.get_mut(name) {
            assignment.flows = assignment.flows.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> DomainName {
        format!("n{number}.example").parse().unwrap()
    }

    #[test]
    fn address_is_stable() {
        let mut names = Names::default();
        let first = names.address(&name(0)).unwrap();
        assert_ne!(names.address(&name(1)), Some(first));
        assert_eq!(names.address(&name(0)), Some(first));
        assert_eq!(names.name(first), Some(&name(0)));
        assert!(Names::is_synthetic(first) && !Names::is_synthetic(belljar_linux::NETWORK_ADDRESS));
    }

    #[test]
    fn least_recently_used_idle_name_is_evicted() {
        let mut names = Names::default();
        let addresses: Vec<_> = (0..MAX_NAMES).map(|number| names.address(&name(number)).unwrap()).collect();
        names.hold(&name(0));
        names.address(&name(1));
        let new = names.address(&name(MAX_NAMES)).unwrap();
        assert!(!addresses.contains(&new), "addresses are not reused soon");
        assert_eq!(names.name(addresses[2]), None);
        assert_eq!(names.name(addresses[0]), Some(&name(0)));
        assert_eq!(names.name(addresses[1]), Some(&name(1)));
        assert_eq!((names.by_name.len(), names.by_address.len()), (MAX_NAMES, MAX_NAMES));
    }

    #[test]
    fn names_with_connections_are_not_evicted() {
        let mut names = Names::default();
        for number in 0..MAX_NAMES {
            names.address(&name(number)).unwrap();
            names.hold(&name(number));
        }
        assert_eq!(names.address(&name(MAX_NAMES)), None);
        names.release(&name(7));
        assert!(names.address(&name(MAX_NAMES)).is_some());
        assert!(!names.by_name.contains_key(&name(7)));
    }

    #[test]
    fn next_gateway_assigns_other_addresses() {
        let mut seen = std::collections::HashSet::new();
        for generation in 0..16 {
            let mut names = Names::of_generation(generation);
            for number in 0..MAX_NAMES.min(GENERATION_ADDRESSES as usize) {
                assert!(seen.insert(names.address(&name(number)).unwrap()), "{generation} {number}");
            }
        }
    }

    #[test]
    fn addresses_wrap_around() {
        let mut names = Names { assigned: LAST - FIRST, ..Names::default() };
        assert_eq!(names.address(&name(0)), Some(Ipv4Addr::from_bits(LAST)));
        assert_eq!(names.address(&name(1)), Some(Ipv4Addr::from_bits(FIRST)));
    }
}
