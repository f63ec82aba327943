//! How a report is shown and kept.

pub mod hdr;
mod histogram;
pub mod json;
pub mod text;
