//! Errors on the command line that are found only when several arguments are considered together.

use std::fmt;

/// A usage error; it has exit status 2, like the errors that the parser finds.
#[derive(Debug)]
pub(crate) struct UsageError(String);

impl UsageError {
    /// Creates an error. The text says what is wrong, and what to do instead.
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
