//! Prints and stores a report.

pub mod hdr;
mod histogram;
pub mod json;
pub mod text;
