//! The revisions of the Mercure protocol that a hub supports.

use std::str::FromStr;

/// The supported revisions. They differ in the names of parameters, in the types of matchers and in the
/// form of a token, so that a request nearly always shows which revision it uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// 0.x, which deployed clients use: `topic` parameters, URI templates, the claim `mercure`.
    Zero,
    /// 1.0 (draft-dunglas-mercure-08): `match` parameters, URL patterns, `at+jwt` tokens.
    One,
    /// Both at the same time.
    #[default]
    Both,
}

impl Dialect {
    /// Whether requests in the form of 0.x are accepted.
    #[must_use]
    pub fn zero(self) -> bool {
        self != Self::One
    }

    /// Whether requests in the form of 1.0 are accepted.
    #[must_use]
    pub fn one(self) -> bool {
        self != Self::Zero
    }
}

impl FromStr for Dialect {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "0" => Ok(Self::Zero),
            "1" => Ok(Self::One),
            "both" => Ok(Self::Both),
            _ => Err("the dialect must be 0, 1 or both"),
        }
    }
}
