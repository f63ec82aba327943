//! `Accept-Encoding`: selects the content coding of a response (RFC 9110 §12.5.3).

use crate::syntax::{self, trim};

/// A content coding that a precompressed file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Coding {
    /// No encoding.
    Identity,
    /// `gzip`, RFC 1952.
    Gzip,
    /// `br`, RFC 7932.
    Brotli,
    /// `zstd`, RFC 8878.
    Zstd,
}

impl Coding {
    /// All codings.
    pub const ALL: [Self; 4] = [Self::Identity, Self::Gzip, Self::Brotli, Self::Zstd];

    /// The name in `Content-Encoding`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    fn from_name(name: &[u8]) -> Option<Self> {
        // §8.4.1.3: `x-gzip` is equivalent.
        if name.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Self::Gzip);
        }
        Self::ALL.into_iter().find(|coding| name.eq_ignore_ascii_case(coding.name().as_bytes()))
    }
}

/// The codings that a client accepts, with their weights in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preferences {
    weights: [Option<u16>; Coding::ALL.len()],
    /// The weight of `*`.
    any_other: Option<u16>,
}

impl Preferences {
    /// Parses the lines of the field. Without the field, or with an empty one, only `identity` is
    /// accepted. The RFC would allow any coding, but clients that can decode one say so. A member
    /// with invalid syntax is ignored; if a coding is named twice, the last weight counts.
    pub fn parse<'b>(values: impl Iterator<Item = &'b [u8]>) -> Self {
        let mut preferences = Self { weights: [None; Coding::ALL.len()], any_other: None };
        for member in values.flat_map(syntax::list) {
            let Some((name, weight)) = parse_member(member) else { continue };
            if name == b"*" {
                preferences.any_other = Some(weight);
            } else if let Some(coding) = Coding::from_name(name) {
                preferences.weights[coding as usize] = Some(weight);
            }
        }
        preferences
    }

    /// The weight of `coding`; 0 if the client does not accept it.
    pub fn weight(&self, coding: Coding) -> u16 {
        // `identity` is acceptable unless it is excluded, but any coding that the client lists is
        // preferred.
        const UNLISTED: u16 = 1;
        let named = self.weights[coding as usize].or(self.any_other);
        named.unwrap_or(if coding == Coding::Identity { UNLISTED } else { 0 })
    }

    /// Returns the coding of `available` with the highest weight, the first one of several. Returns
    /// `None` if the client accepts none of them; the server then sends 406, or `identity`
    /// nevertheless.
    ///
    /// ```
    /// use pollux_http::accept_encoding::{Coding, Preferences};
    ///
    /// let preferences = Preferences::parse([&b"gzip;q=0.5, br"[..]].into_iter());
    /// assert_eq!(preferences.choose([Coding::Gzip, Coding::Brotli]), Some(Coding::Brotli));
    /// ```
    pub fn choose(&self, available: impl IntoIterator<Item = Coding>) -> Option<Coding> {
        let mut best = (0, None);
        for coding in available {
            let weight = self.weight(coding);
            if weight > best.0 {
                best = (weight, Some(coding));
            }
        }
        best.1
    }
}

/// Parses `codings [ OWS ";" OWS "q=" qvalue ]`.
fn parse_member(member: &[u8]) -> Option<(&[u8], u16)> {
    let (name, weight) = match member.iter().position(|&b| b == b';') {
        None => (member, 1000),
        Some(end) => {
            let (b"q=" | b"Q=", value) = trim(&member[end + 1..]).split_at_checked(2)? else {
                return None;
            };
            (trim(&member[..end]), parse_weight(value)?)
        }
    };
    syntax::is_token(name).then_some((name, weight))
}

/// Parses `qvalue` (§12.4.2): 0 or 1 with at most three digits after the point.
pub(crate) fn parse_weight(value: &[u8]) -> Option<u16> {
    let (&whole, fraction) = value.split_first()?;
    let digits = match fraction {
        [] => fraction,
        [b'.', digits @ ..] => digits,
        _ => return None,
    };
    if !matches!(whole, b'0' | b'1') || digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut thousandths = u16::from(whole - b'0');
    for i in 0..3 {
        thousandths = thousandths * 10 + digits.get(i).map_or(0, |d| u16::from(d - b'0'));
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::{Coding::*, *};

    fn choose(value: &str, available: &[Coding]) -> Option<Coding> {
        Preferences::parse([value.as_bytes()].into_iter()).choose(available.iter().copied())
    }

    #[test]
    fn negotiation_of_rfc_9110_12_5_3() {
        let all = [Zstd, Brotli, Gzip, Identity];
        for (value, expected) in [
            ("gzip, deflate, br, zstd", Some(Zstd)),
            ("gzip, deflate, br", Some(Brotli)),
            ("gzip", Some(Gzip)),
            ("x-gzip", Some(Gzip)),
            ("GZip;Q=0.5", Some(Gzip)),
            ("deflate", Some(Identity)),
            ("", Some(Identity)),
            ("gzip;q=0.5, br;q=0.9, zstd;q=0.1", Some(Brotli)),
            ("gzip;q=0, identity", Some(Identity)),
            ("identity;q=1, gzip;q=0.5", Some(Identity)),
            ("gzip;q=0.001", Some(Gzip)),
            ("*", Some(Zstd)),
            ("*;q=0", None),
            ("identity;q=0", None),
            ("identity;q=0, *;q=0.2", Some(Zstd)),
            ("*;q=0, gzip", Some(Gzip)),
            ("*;q=0, identity;q=0.1", Some(Identity)),
            ("zstd;q=0, *", Some(Brotli)),
            ("gzip ; q=1.000 , br;q=0.999", Some(Gzip)),
            // Members with invalid syntax are ignored.
            ("gzip;q=2", Some(Identity)),
            ("gzip;q=1.5", Some(Identity)),
            ("gzip;q=0.1234", Some(Identity)),
            ("gzip;q=", Some(Identity)),
            ("gzip;x=1", Some(Identity)),
            ("gzip;q=0.5;x", Some(Identity)),
            ("gz ip, br", Some(Brotli)),
        ] {
            assert_eq!(choose(value, &all), expected, "{value:?}");
        }
    }

    #[test]
    fn only_available_codings_are_chosen() {
        assert_eq!(choose("gzip, br", &[Identity]), Some(Identity));
        assert_eq!(choose("gzip, identity;q=0", &[Identity]), None);
        assert_eq!(Preferences::parse(std::iter::empty()).choose([Gzip, Identity]), Some(Identity));
    }
}
