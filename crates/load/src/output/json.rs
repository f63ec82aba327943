//! One JSON document, for programs.

use serde::Serialize;
use std::io::{self, Write};

/// Writes the report as one line of JSON. Its keys are those of [`Report`](crate::Report) or
/// [`PushReport`](crate::push::PushReport).
///
/// # Errors
/// The errors of the writer.
pub fn write(report: &(impl Serialize + ?Sized), mut out: impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut out, report)?;
    out.write_all(b"\n")
}
