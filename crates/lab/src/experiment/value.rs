//! Values of axes and flags.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// The value of each axis.
pub type Point = BTreeMap<String, Value>;

/// Flags for a child process: `interest = "per-state"` becomes `--interest per-state`,
/// `time-system-calls = true` becomes `--time-system-calls`, `false` leaves the flag out.
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
    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
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

/// Chooses a value of an axis: `"min"`, `"max"`, or the value itself; of a rate that has a reference also a multiple
/// of that, `"x1.15"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Select(pub Value);

impl Select {
    /// Of the rate: the multiple of the reference, as in `"x1.15"`.
    pub fn multiple(&self) -> Option<f64> {
        let Value::Word(word) = &self.0 else { return None };
        word.strip_prefix('x')?.parse().ok()
    }

    /// The value among `values` that is meant. `min` and `max` go by the order in the file, so
    /// that they work for words too.
    pub fn among<'a>(&self, values: &'a [Value]) -> Option<&'a Value> {
        match &self.0 {
            Value::Word(word) if word == "min" => values.first(),
            Value::Word(word) if word == "max" => values.last(),
            wanted => values.iter().find(|value| *value == wanted),
        }
    }
}

/// Writes flags as arguments. Numbers are written without a fraction when they have none.
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
