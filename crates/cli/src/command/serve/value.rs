//! Values of flags: how they are parsed, and how they replace settings.

use std::num::NonZeroUsize;

/// Replaces `setting` if a value was given.
pub(super) fn set<T>(setting: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *setting = value;
    }
}

/// Replaces a setting that may be absent, if a value was given.
pub(super) fn set_some<T>(setting: &mut Option<T>, given: Option<T>) {
    if given.is_some() {
        *setting = given;
    }
}

/// Replaces a list if values were given. A flag that was not given has an empty list.
pub(super) fn replace<T>(setting: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *setting = given;
    }
}

/// Parses a number from 1.
pub(super) fn count(text: &str) -> Result<usize, String> {
    nonzero(text).map(NonZeroUsize::get)
}

/// Parses a number from 1.
pub(super) fn nonzero(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "expected a number from 1".into())
}

/// Parses a number from 1.
pub(super) fn positive(text: &str) -> Result<u64, String> {
    count(text).map(|number| number as u64)
}

/// Parses the path of a guestbook.
pub(super) fn guestbook_path(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("the guestbook's path begins with a slash; DIR stands before --guestbook".into())
    }
}
