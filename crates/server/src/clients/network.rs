//! Networks, and the part of an address that counts as one client.

use std::{fmt, net::IpAddr, net::Ipv6Addr, str::FromStr};

/// The bits of an IPv6 address that identify a client: a household or a host gets a /64 (RFC 6177).
const CLIENT_BITS_V6: u8 = 64;

/// The length of the prefix of all IPv4 addresses in their IPv6 form, `::ffff:0:0/96`.
const MAPPED_BITS: u8 = 96;

/// A network: the addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The length of the prefix in the IPv6 form, which is 96 more than in an IPv4 network.
    bits: u8,
    first: u128,
}

/// Converts an address to the form that is compared: IPv4 as ::ffff:a.b.c.d.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Returns the number that identifies a client: an IPv4 address, or the /64 network of an IPv6
/// address.
pub(super) fn client(address: IpAddr) -> u128 {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => number(v4),
        IpAddr::V6(v6) => v6.to_bits() & mask(CLIENT_BITS_V6),
    }
}

/// Returns the key that identifies a client, which is never 0: an IPv4 address, or the first half
/// of an IPv6 address. IPv6 networks that would have the key of an IPv4 address are reserved (RFC
/// 4291).
pub(crate) fn client_key(address: IpAddr) -> u64 {
    let key = match address.to_canonical() {
        v4 @ IpAddr::V4(_) => number(v4) as u64,
        IpAddr::V6(v6) => (v6.to_bits() >> CLIENT_BITS_V6) as u64,
    };
    key.max(1)
}

pub(super) fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

/// Returns whether networks with a prefix of this length can contain the address. IPv4 addresses are compared in their
/// IPv6 form, but a network such as `::/0` is one of IPv6 and contains none of them.
pub(super) fn may_contain(bits: u8, address: IpAddr) -> bool {
    address.is_ipv6() || bits >= MAPPED_BITS
}

impl Network {
    /// Returns whether the address belongs to the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        may_contain(self.bits, address) && number(address) & mask(self.bits) == self.first
    }

    pub(super) fn bits(&self) -> u8 {
        self.bits
    }

    pub(super) fn first(&self) -> u128 {
        self.first
    }
}

impl FromStr for Network {
    type Err = String;

    /// Parses `ADDRESS` or `ADDRESS/BITS`. The bits after the prefix must be zero, so that a typing
    /// error is noticed.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("{text:?} is no network: expected ADDRESS or ADDRESS/BITS"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => most,
            Some(text) => text
                .parse()
                .ok()
                .filter(|bits| *bits <= most && text.bytes().all(|b| b.is_ascii_digit()))
                .ok_or_else(|| format!("{text:?}: expected a number of bits from 0 to {most}"))?,
        };
        let bits = 128 - most + length;
        let first = number(address);
        if first & !mask(bits) != 0 {
            let wanted = Self { bits, first: first & mask(bits) };
            return Err(format!("{text} has bits behind its prefix: {wanted} is that network"));
        }
        Ok(Self { bits, first })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.first);
        match address.to_ipv4_mapped() {
            Some(v4) if self.bits >= MAPPED_BITS => write!(f, "{v4}/{}", self.bits - MAPPED_BITS),
            _ => write!(f, "{address}/{}", self.bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_shown() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), shown);
        }
        for text in ["", "10.0.0.0/33", "10.0.0.1/8", "::1/64", "a", "10.0.0.0/", "10.0.0.0/+8"] {
            assert!(text.parse::<Network>().is_err(), "{text:?}");
        }
        let error = "10.1.0.0/8".parse::<Network>().unwrap_err();
        assert!(error.contains("10.0.0.0/8 is that network"), "{error}");
    }

    #[test]
    fn an_address_belongs_to_its_networks_alone() {
        let network: Network = "10.0.0.0/8".parse().unwrap();
        for (address, is_in) in
            [("10.1.2.3", true), ("::ffff:10.1.2.3", true), ("11.0.0.0", false), ("::1", false)]
        {
            assert_eq!(network.contains(address.parse().unwrap()), is_in, "{address}");
        }
        let all_v4: Network = "0.0.0.0/0".parse().unwrap();
        assert!(!all_v4.contains("2001:db8::1".parse().unwrap()));
        let all_v6: Network = "::/0".parse().unwrap();
        assert!(all_v6.contains("2001:db8::1".parse().unwrap()));
        for v4 in ["192.0.2.1", "::ffff:192.0.2.1"] {
            assert!(!all_v6.contains(v4.parse().unwrap()), "{v4}");
        }
    }

    #[test]
    fn one_client_is_an_ipv4_address_or_a_64_of_ipv6() {
        let of = |text: &str| client(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
    }
}
