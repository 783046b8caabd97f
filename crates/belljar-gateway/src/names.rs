//! The made-up addresses: one for each name, so that a connection tells which name it is for.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use belljar_model::DomainName;

use crate::budget::MAX_NAMES;

/// The range for benchmarks (RFC 2544), which is no public one, less the block that the sandbox's own address is in.
const FIRST: u32 = u32::from_be_bytes([198, 18, 1, 0]);
const LAST: u32 = u32::from_be_bytes([198, 19, 255, 255]);

/// The names that have an address.
#[derive(Default)]
pub(crate) struct Names {
    by_name: HashMap<DomainName, Given>,
    by_address: HashMap<Ipv4Addr, DomainName>,
    /// How many addresses have been given so far. They are given in order, so that one that some program remembers does not
    /// soon mean another name.
    given: u32,
    /// How often a name has been asked for or used.
    clock: u64,
}

struct Given {
    address: Ipv4Addr,
    used: u64,
    /// How many connections it has.
    flows: usize,
}

impl Names {
    /// The address of a name. `None` if too many names have connections.
    pub(crate) fn address(&mut self, name: &DomainName) -> Option<Ipv4Addr> {
        self.clock += 1;
        if let Some(given) = self.by_name.get_mut(name) {
            given.used = self.clock;
            return Some(given.address);
        }
        if self.by_name.len() >= MAX_NAMES {
            let idle = self.by_name.iter().filter(|(_, given)| given.flows == 0);
            let oldest = idle.min_by_key(|(_, given)| given.used).map(|(name, _)| name.clone())?;
            let given = self.by_name.remove(&oldest)?;
            self.by_address.remove(&given.address);
        }
        let address = self.free();
        self.by_address.insert(address, name.clone());
        self.by_name.insert(name.clone(), Given { address, used: self.clock, flows: 0 });
        Some(address)
    }

    /// The next address that no name has: there are many more of them than names.
    fn free(&mut self) -> Ipv4Addr {
        loop {
            let address = Ipv4Addr::from_bits(FIRST + self.given % (LAST - FIRST + 1));
            self.given = self.given.wrapping_add(1);
            if !self.by_address.contains_key(&address) {
                return address;
            }
        }
    }

    /// Whether an address is one of those.
    pub(crate) fn is_made_up(address: Ipv4Addr) -> bool {
        (FIRST..=LAST).contains(&address.to_bits())
    }

    /// The name that an address was given for.
    pub(crate) fn name(&self, address: Ipv4Addr) -> Option<&DomainName> {
        self.by_address.get(&address)
    }

    /// A connection to the name begins: its address stays.
    pub(crate) fn hold(&mut self, name: &DomainName) {
        self.clock += 1;
        if let Some(given) = self.by_name.get_mut(name) {
            given.used = self.clock;
            given.flows += 1;
        }
    }

    /// One has ended.
    pub(crate) fn release(&mut self, name: &DomainName) {
        if let Some(given) = self.by_name.get_mut(name) {
            given.flows = given.flows.saturating_sub(1);
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
    fn a_name_keeps_its_address() {
        let mut names = Names::default();
        let first = names.address(&name(0)).unwrap();
        assert_ne!(names.address(&name(1)), Some(first));
        assert_eq!(names.address(&name(0)), Some(first));
        assert_eq!(names.name(first), Some(&name(0)));
        assert!(Names::is_made_up(first) && !Names::is_made_up(belljar_linux::NETWORK_ADDRESS));
    }

    #[test]
    fn the_name_that_is_idle_longest_goes() {
        let mut names = Names::default();
        let addresses: Vec<_> = (0..MAX_NAMES).map(|number| names.address(&name(number)).unwrap()).collect();
        names.hold(&name(0));
        names.address(&name(1));
        let new = names.address(&name(MAX_NAMES)).unwrap();
        assert!(!addresses.contains(&new), "an address is not used again soon");
        assert_eq!(names.name(addresses[2]), None);
        assert_eq!(names.name(addresses[0]), Some(&name(0)));
        assert_eq!(names.name(addresses[1]), Some(&name(1)));
        assert_eq!((names.by_name.len(), names.by_address.len()), (MAX_NAMES, MAX_NAMES));
    }

    #[test]
    fn names_with_connections_stay() {
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
    fn addresses_come_around() {
        let mut names = Names { given: LAST - FIRST, ..Names::default() };
        assert_eq!(names.address(&name(0)), Some(Ipv4Addr::from_bits(LAST)));
        assert_eq!(names.address(&name(1)), Some(Ipv4Addr::from_bits(FIRST)));
    }
}
