//! Values of flags: how they are read, and how one that was given replaces a setting.

use std::num::NonZeroUsize;

/// Replaces `setting` by a value that was given.
pub(super) fn set<T>(setting: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *setting = value;
    }
}

/// Replaces a setting that may be absent.
pub(super) fn set_some<T>(setting: &mut Option<T>, given: Option<T>) {
    if given.is_some() {
        *setting = given;
    }
}

/// Replaces a list by one that was given. A flag that is not repeated at all gives an empty list.
pub(super) fn replace<T>(setting: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *setting = given;
    }
}

/// A number from 1.
pub(super) fn count(text: &str) -> Result<usize, String> {
    nonzero(text).map(NonZeroUsize::get)
}

/// A number from 1.
pub(super) fn nonzero(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "expected a number from 1".into())
}

/// A number from 1.
pub(super) fn positive(text: &str) -> Result<u64, String> {
    count(text).map(|number| number as u64)
}

/// The path of a guestbook.
pub(super) fn guestbook_path(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("the guestbook's path begins with a slash; DIR stands before --guestbook".into())
    }
}
