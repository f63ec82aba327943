//! One JSON document, for programs.

use crate::report::Report;
use std::io::{self, Write};

/// Writes the report as one line of JSON. Its keys are those of [`Report`].
///
/// # Errors
/// The writer's.
pub fn write(report: &Report, mut out: impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut out, report)?;
    out.write_all(b"\n")
}
