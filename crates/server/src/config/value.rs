//! Values of a configuration for which TOML has no type: sizes, times, limits, and other values that
//! are text on the command line.

mod architecture;
mod confinement;
mod eviction;
mod files;
mod guestbook;
mod listen;
mod log;
mod origin;
mod request_ids;
mod timeouts;
mod tls;

pub(crate) use architecture::ONLY_FILES;
pub use architecture::{
    Accepting, Architecture, Discipline, MechanismChoice, POOL_DEFAULT, POOL_MAX, PROCESSES_DEFAULT,
};
pub use confinement::{SandboxMode, UserSpec};
pub use eviction::IdleEviction;
pub use files::{Compress, LargeFile, SiteConfig, Symlinks};
pub use guestbook::{Store, StoreConnections};
pub use listen::{Listen, SOCKET_PATH_BYTES};
pub use log::{LogConfig, LogField, LogFormat, LogTarget, SlowLog};
pub use origin::{ForwardedPolicy, HandoverConfig, HostPolicy, Origin, RouteConfig};
pub(crate) use origin::{PROXY_NAMES, is_proxy_name};
pub use request_ids::RequestIds;
pub use timeouts::{RECEIVE_PROGRESS_BYTES, SEND_PROGRESS_BYTES, Timeouts};
pub use tls::{ClientCertificates, KernelTlsMode, TlsConfig};

use pollux_http::proxy_protocol::Version;
use pollux_tls::MinVersion;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{borrow::Cow, fmt, marker::PhantomData, num::NonZeroU32, str::FromStr, time::Duration};

/// A value that is written as text, in the form that the flag of the same name takes. It keeps the
/// text, so that it can be shown as it was written.
#[derive(Clone, Debug)]
pub struct Text<T> {
    text: String,
    /// The value that the text stands for.
    pub value: T,
}

impl<T: FromStr> FromStr for Text<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        text.parse().map(|value| Self { text: text.to_owned(), value })
    }
}

impl<T: fmt::Display> From<T> for Text<T> {
    fn from(value: T) -> Self {
        Self { text: value.to_string(), value }
    }
}

impl<T> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<T> PartialEq for Text<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> de::Visitor<'_> for TextVisitor<T> {
    type Value = Text<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<T>, E> {
        text.parse().map_err(E::custom)
    }
}

impl<T> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// Defines a value that is written as text or as a number.
macro_rules! number_or_text {
    ($(#[$docs:meta])* $name:ident($inner:ty), $expecting:literal, $schema:tt) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub $inner);

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }

                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }

                    fn visit_f64<E: de::Error>(self, number: f64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

number_or_text! {
    /// A number of bytes: `512K`, `64M`, `2G` (powers of 1024), or a plain number.
    Size(u64),
    "a size such as \"64M\", or a number of bytes",
    { "type": ["string", "integer"], "pattern": "^[0-9]+ *([kKmMgG]([iI]?[bB])?)?$" }
}

number_or_text! {
    /// A time: `10s`, `500ms`, `1m 30s`, or a number of seconds.
    Time(Duration),
    "a time such as \"10s\", or a number of seconds",
    { "type": ["string", "number"] }
}

number_or_text! {
    /// A number from 1, or `inf` for no limit.
    Limit(Option<NonZeroU32>),
    "a number from 1, or \"inf\"",
    { "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string", "pattern": "^([1-9][0-9]*|inf)$" }] }
}

number_or_text! {
    /// A size, or `inf`.
    SizeLimit(u64),
    "a size such as \"64M\", or \"inf\"",
    { "type": ["string", "integer"] }
}

number_or_text! {
    /// A version of the PROXY protocol: 1 or 2.
    ProxyVersion(Version),
    "1 or 2",
    { "enum": [1, 2, "1", "2"] }
}

number_or_text! {
    /// A version of TLS: 1.2 or 1.3.
    TlsVersion(MinVersion),
    "1.2 or 1.3",
    { "enum": ["1.2", "1.3", 1.2, 1.3] }
}

impl FromStr for TlsVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.2" => Ok(Self(MinVersion::Tls12)),
            "1.3" => Ok(Self(MinVersion::Tls13)),
            _ => Err(format!("{text:?} is not a supported version of TLS: use 1.2 or 1.3")),
        }
    }
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            MinVersion::Tls12 => "1.2",
            MinVersion::Tls13 => "1.3",
        })
    }
}

impl FromStr for ProxyVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1" => Ok(Self(Version::V1)),
            "2" => Ok(Self(Version::V2)),
            _ => Err("expected 1 or 2".into()),
        }
    }
}

impl fmt::Display for ProxyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Version::V1 => "1",
            Version::V2 => "2",
        })
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_uppercase();
        let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
            "" => Some(0),
            "K" => Some(10),
            "M" => Some(20),
            "G" => Some(30),
            _ => None,
        };
        let bytes = number
            .parse::<u64>()
            .ok()
            .zip(shift)
            .and_then(|(number, shift)| number.checked_mul(1 << shift));
        bytes
            .map(Self)
            .ok_or_else(|| "expected a size such as 512K, 64M or 2G, or a number of bytes".into())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = [("G", 30), ("M", 20), ("K", 10)]
            .into_iter()
            .find(|(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift))
            .unwrap_or(("", 0));
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

impl FromStr for SizeLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "inf" { Ok(Self(u64::MAX)) } else { text.parse().map(|Size(bytes)| Self(bytes)) }
    }
}

impl fmt::Display for SizeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == u64::MAX { f.write_str("inf") } else { Size(self.0).fmt(f) }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "inf" => Ok(Self(None)),
            _ => text
                .parse()
                .map(|number| Self(Some(number)))
                .map_err(|_| "expected a number from 1, or inf".into()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("inf"),
        }
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        if let Some(duration) = seconds {
            return Ok(Self(duration));
        }
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|_| "expected a time such as 10s, 500ms or 2m, or a number of seconds".into())
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Time {
    /// Creates a time of whole seconds.
    pub(super) const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns the time in whole seconds, at most `u32::MAX`.
    pub(crate) fn as_secs_u32(self) -> u32 {
        u32::try_from(self.0.as_secs()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_is_exact() {
        for (text, bytes, shown) in [
            ("0", 0, "0"),
            ("17", 17, "17"),
            ("64M", 64 << 20, "64M"),
            ("1536", 1536, "1536"),
            ("2GiB", 2 << 30, "2G"),
            ("1k", 1024, "1K"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
        }
        for text in ["", "M", "-1", "1.5M", "3 parsecs", "99999999999G"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_and_limits_survive_being_shown() {
        for (text, shown) in [("1.5", "1s 500ms"), ("2m", "2m"), ("75", "1m 15s"), ("0", "0s")] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.to_string(), shown);
            assert_eq!(shown.parse(), Ok(time));
        }
        for text in ["inf", "7"] {
            assert_eq!(text.parse::<Limit>().unwrap().to_string(), text);
        }
        assert!("0".parse::<Limit>().is_err());
        assert_eq!("inf".parse(), Ok(SizeLimit(u64::MAX)));
    }
}
