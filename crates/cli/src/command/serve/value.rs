//! Values of flags: how they are read, and how one that was given replaces a setting.

use crate::bytes;
use std::num::{NonZeroU32, NonZeroUsize};

/// A number, or no limit (`inf`).
#[derive(Clone, Copy)]
pub(super) struct Limit(pub(super) Option<NonZeroU32>);

/// Replaces `setting` by a value that was given.
pub(super) fn set<T>(setting: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *setting = value;
    }
}

/// Replaces a list by one that was given. A flag that is not repeated at all gives an empty list.
pub(super) fn replace<T>(setting: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *setting = given;
    }
}

/// A number from 1, or `inf`.
pub(super) fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "inf" => Ok(Limit(None)),
        _ => text
            .parse()
            .map(|number| Limit(Some(number)))
            .map_err(|_| "wants a number from 1, or inf".into()),
    }
}

/// A number from 1.
pub(super) fn count(text: &str) -> Result<usize, String> {
    nonzero(text).map(NonZeroUsize::get)
}

/// A number from 1.
pub(super) fn nonzero(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "wants a number from 1".into())
}

/// A number from 1.
pub(super) fn positive(text: &str) -> Result<u64, String> {
    count(text).map(|number| number as u64)
}

/// A size, or `inf`.
pub(super) fn body_size(text: &str) -> Result<u64, String> {
    if text == "inf" { Ok(u64::MAX) } else { bytes::parse(text) }
}

/// A smaller cache hardly has room for one response of usual length.
const MIN_CACHE: u64 = 1 << 20;

/// The size of a cache.
pub(super) fn cache_size(text: &str) -> Result<u64, String> {
    let size = bytes::parse(text)?;
    if size >= MIN_CACHE { Ok(size) } else { Err("wants a size from 1M".into()) }
}

/// RFC 9110 names no minimum; with less than this, browsers fail.
const MIN_HEADER: u64 = 1 << 10;
/// The parser counts in 32 bits, and one client should not get more memory than this.
const MAX_HEADER: u64 = 1 << 20;

/// The size of a request's header section.
pub(super) fn header_size(text: &str) -> Result<usize, String> {
    let size = bytes::parse(text)?;
    if (MIN_HEADER..=MAX_HEADER).contains(&size) {
        Ok(size as usize)
    } else {
        Err("wants a size from 1K to 1M".into())
    }
}

/// A response field, `NAME: VALUE`.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("wants NAME: VALUE")?;
    Ok((name.trim().into(), value.trim().into()))
}

/// The path of a guestbook.
pub(super) fn guestbook_path(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("the guestbook's path begins with a slash; DIR stands before --guestbook".into())
    }
}
