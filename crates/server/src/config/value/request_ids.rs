//! The identifiers of requests.

use std::{fmt, str::FromStr};

/// The source of the identifiers of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestIds {
    /// Requests have no identifier. A client's field is forwarded to origins like any other field.
    #[default]
    Off,
    /// Each request gets a new identifier.
    Generate,
    /// A well-formed identifier of a client is used; otherwise the request gets a new one.
    Accept,
}

impl FromStr for RequestIds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "generate" => Ok(Self::Generate),
            "accept" => Ok(Self::Accept),
            _ => Err("expected generate, accept or off".into()),
        }
    }
}

impl fmt::Display for RequestIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Generate => "generate",
            Self::Accept => "accept",
        })
    }
}
