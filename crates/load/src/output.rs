//! How a report is shown and kept.

pub mod hdr;
pub mod json;
pub mod text;
