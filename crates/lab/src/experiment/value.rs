//! Values of axes and flags.

use serde::{
    Deserialize, Serialize,
    de::{IntoDeserializer as _, value::Error},
};
use std::{collections::BTreeMap, fmt};

/// The value of each axis.
pub type Point = BTreeMap<String, Value>;

/// Flags for a child process: `interest = "per-state"` becomes `--interest per-state`, `time-system-calls =
/// true` becomes `--time-system-calls`, and `false` omits the flag.
pub type Flags = BTreeMap<String, Value>;

/// A value of an axis or a flag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A switch.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A word, such as `inf`.
    Word(String),
}

impl Value {
    /// Returns the number, if the value is one.
    pub fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// Returns the word, if the value is one.
    pub fn word(&self) -> Option<&str> {
        if let Self::Word(word) = self { Some(word) } else { None }
    }

    /// Returns the variant of an enumeration that the word names, if it names one.
    pub(super) fn named<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        let found: Result<T, Error> = T::deserialize(self.word()?.into_deserializer());
        found.ok()
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// A choice of a value of an axis: `"min"`, `"max"`, or the value itself. For a rate that has a reference
/// it may also be a multiple of that reference, such as `"x1.15"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Select(pub Value);

impl Select {
    /// Returns the multiple of the reference rate, as in `"x1.15"`.
    pub fn multiple(&self) -> Option<f64> {
        self.0.word()?.strip_prefix('x')?.parse().ok()
    }

    /// Returns the chosen value among `values`. `min` and `max` follow the order in the file, so that they
    /// also work for words.
    pub fn among<'a>(&self, values: &'a [Value]) -> Option<&'a Value> {
        match &self.0 {
            Value::Word(word) if word == "min" => values.first(),
            Value::Word(word) if word == "max" => values.last(),
            wanted => values.iter().find(|value| *value == wanted),
        }
    }
}

/// Writes flags as arguments. Whole numbers are written without a fraction.
pub fn arguments(flags: &Flags) -> Vec<String> {
    let mut arguments = Vec::new();
    for (name, value) in flags {
        match value {
            Value::Flag(false) => {}
            Value::Flag(true) => arguments.push(format!("--{name}")),
            value => arguments.extend([format!("--{name}"), value.to_string()]),
        }
    }
    arguments
}
