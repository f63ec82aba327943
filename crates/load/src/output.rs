//! How a report is printed and stored.

pub mod hdr;
mod histogram;
pub mod json;
pub mod text;
