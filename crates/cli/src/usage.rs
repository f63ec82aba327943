//! Mistakes on the command line that show only when its parts are seen together.

use std::fmt;

/// Such a mistake: exit status 2, as for those that the parser finds.
#[derive(Debug)]
pub(crate) struct UsageError(String);

impl UsageError {
    /// With what is wrong and what to do instead.
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Self(text.to_string())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}
