//! Allow and deny lists. If several networks contain an address, the one with the longest prefix
//! decides; the order in the lists does not matter. If no network contains the address, it is
//! served unless there is an allow list.

use super::{
    ClientConfig, Network,
    network::{mask, may_contain, number},
};
use std::{collections::HashMap, net::IpAddr};

/// Both lists, prepared for look-ups: one map for each prefix length, the longest first. A look-up
/// computes one hash for each prefix length in the lists, at most 129.
#[derive(Debug)]
pub(super) struct AccessLists {
    by_length: Vec<(u8, HashMap<u128, bool>)>,
    /// Whether an address that is on neither list is served.
    others: bool,
}

impl AccessLists {
    /// Returns `None` if both lists are empty.
    pub(super) fn new(config: &ClientConfig) -> Option<Self> {
        if config.allow.is_empty() && config.deny.is_empty() {
            return None;
        }
        let mut all = Self { by_length: Vec::new(), others: config.allow.is_empty() };
        for (networks, is_allowed) in [(&config.allow, true), (&config.deny, false)] {
            networks.iter().for_each(|network| all.add(*network, is_allowed));
        }
        all.by_length.sort_unstable_by_key(|(bits, _)| std::cmp::Reverse(*bits));
        Some(all)
    }

    fn add(&mut self, network: Network, is_allowed: bool) {
        let bits = network.bits();
        let at = self.by_length.iter().position(|(length, _)| *length == bits);
        let at = at.unwrap_or_else(|| {
            self.by_length.push((bits, HashMap::new()));
            self.by_length.len() - 1
        });
        self.by_length[at].1.insert(network.first(), is_allowed);
    }

    /// Returns whether clients of this address are served.
    pub(super) fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let bits_of_address = number(address);
        let mut found = self
            .by_length
            .iter()
            .filter(|(bits, _)| may_contain(*bits, address))
            .filter_map(|(bits, networks)| networks.get(&(bits_of_address & mask(*bits))));
        *found.next().unwrap_or(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lists(allow: &[&str], deny: &[&str]) -> AccessLists {
        let read = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        let config = ClientConfig { allow: read(allow), deny: read(deny), ..Default::default() };
        AccessLists::new(&config).unwrap()
    }

    #[test]
    fn the_longest_prefix_decides() {
        let all = lists(&["10.0.0.0/8", "10.1.2.3"], &["10.1.0.0/16"]);
        for (address, is_served) in [
            ("10.2.0.1", true),
            ("10.1.0.1", false),
            ("10.1.2.3", true),
            ("192.0.2.1", false),
            ("::1", false),
        ] {
            assert_eq!(all.allows(address.parse().unwrap()), is_served, "{address}");
        }
    }

    #[test]
    fn a_list_of_ipv6_networks_does_not_decide_about_ipv4() {
        let denied = lists(&[], &["::/0"]);
        assert!(!denied.allows("2001:db8::1".parse().unwrap()));
        assert!(denied.allows("192.0.2.1".parse().unwrap()));
        assert!(denied.allows("::ffff:192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn with_a_deny_list_alone_all_others_are_served() {
        let all = lists(&[], &["2001:db8::/32"]);
        assert!(!all.allows("2001:db8::1".parse().unwrap()));
        assert!(all.allows("192.0.2.1".parse().unwrap()));
    }

    proptest! {
        /// Compares with a search that uses no maps.
        #[test]
        fn it_agrees_with_a_search_of_the_whole_list(
            networks in proptest::collection::vec((any::<u8>(), 24_u8..=32, any::<bool>()), 1..20),
            last in any::<u8>(),
        ) {
            let mut config = ClientConfig::default();
            for (address, bits, is_allowed) in networks {
                let first = u32::from(address) & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                let network: Network = format!("0.0.0.{first}/{bits}").parse().unwrap();
                let known = config.allow.contains(&network) || config.deny.contains(&network);
                if !known {
                    if is_allowed { config.allow.push(network) } else { config.deny.push(network) }
                }
            }
            let address: IpAddr = format!("0.0.0.{last}").parse().unwrap();
            let of = |list: &[Network]| {
                list.iter().filter(|n| n.contains(address)).map(Network::bits).max()
            };
            let expected = match (of(&config.allow), of(&config.deny)) {
                (None, None) => config.allow.is_empty(),
                (allowed, denied) => allowed > denied,
            };
            prop_assert_eq!(AccessLists::new(&config).unwrap().allows(address), expected);
        }
    }
}
