//! The faults of a configuration and their locations.

use std::fmt;

/// Names that are less similar than this are not suggested (Jaro similarity, from 0 to 1).
const ALIKE: f64 = 0.75;

/// A step on the path to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'k> {
    /// A key of a table.
    Name(&'k str),
    /// An element of an array.
    Index(usize),
}

/// A fault in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The key of the value at fault; empty if the fault is not about one value.
    pub key: Vec<Key<'static>>,
    /// The file that has the fault, if there is one.
    pub file: Option<String>,
    /// Line and column in the file, from 1; the column counts characters.
    pub position: Option<(usize, usize)>,
    /// The line's text.
    pub line: Option<String>,
    /// The description of the fault.
    pub message: String,
    /// The advice how to fix it.
    pub help: Option<String>,
}

impl Fault {
    /// Creates a fault of the value at `key`.
    pub(super) fn at(
        key: &[Key<'static>],
        message: impl fmt::Display,
        help: impl fmt::Display,
    ) -> Self {
        let help = help.to_string();
        Self {
            key: key.to_vec(),
            message: message.to_string(),
            help: (!help.is_empty()).then_some(help),
            ..Self::default()
        }
    }

    /// Sets the location of the fault in `text`, which is the content of `file`.
    pub(super) fn locate(&mut self, file: &str, text: &str, offset: Option<usize>) {
        self.file = Some(file.to_owned());
        let Some(offset) = offset else { return };
        let before = text.get(..offset).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        self.position = Some((line, before[start..].chars().count() + 1));
        self.line = text[start..].lines().next().map(str::to_owned);
    }

    /// Returns the key in the usual notation: `site[1].header[0]`.
    pub fn key_name(&self) -> String {
        let mut name = String::new();
        for key in &self.key {
            match key {
                Key::Name(key) if name.is_empty() => name.push_str(key),
                Key::Name(key) => name.push_str(&format!(".{key}")),
                Key::Index(index) => name.push_str(&format!("[{index}]")),
            }
        }
        name
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}:")?;
            if let Some((line, column)) = self.position {
                write!(f, "{line}:{column}:")?;
            }
            f.write_str(" ")?;
        }
        let key = self.key_name();
        if !key.is_empty() {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.message)?;
        if let (Some(line), Some((number, column))) = (&self.line, self.position) {
            write!(f, "\n{number:5} | {line}\n      | {:>column$}", "^")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// Returns the name among `names` that `wrong` was probably meant to be.
pub(super) fn meant<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.replace('_', "-").to_ascii_lowercase();
    names
        .map(|name| (strsim::jaro(&wrong, name), name))
        .filter(|(score, _)| *score > ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}
