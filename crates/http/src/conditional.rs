//! Conditional requests (RFC 9110 §13).

use crate::{
    date,
    etag::{ETag, ETags},
    request::{KnownField, Method, Request},
};

/// The validators of the representation that the server would send.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'v> {
    /// The entity tag.
    pub etag: Option<ETag<'v>>,
    /// The Unix second of the last change.
    pub last_modified: Option<u64>,
    /// The current Unix second. A representation that changed in this second may change again in
    /// it, so its date is a weak validator (§8.8.2.2).
    pub now: u64,
}

/// The result of evaluating the preconditions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Process the request as if it had no preconditions.
    Proceed,
    /// Send 304: the client has the current representation.
    NotModified,
    /// Send 412: the client refers to another representation than the current one.
    Failed,
}

/// Evaluates the preconditions in the order of §13.2.2. `current` is `None` if there is no
/// representation.
///
/// Call it only if the response without preconditions would be successful (§13.2.1). A tag list
/// ends at the first invalid member. An invalid or repeated date is ignored.
///
/// ```
/// use pollux_http::{Limits, conditional::*, etag::ETag, request::{ParseStatus, parse}};
///
/// let head = b"GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"v1\"\r\n\r\n";
/// let ParseStatus::Complete { request, .. } = parse(head, &Limits::DEFAULT)? else { panic!() };
/// let etag = Some(ETag { weak: false, opaque: b"v1" });
/// let current = Validators { etag, last_modified: None, now: 784_111_777 };
/// assert_eq!(evaluate(&request, Some(&current)), Precondition::NotModified);
/// # Ok::<(), pollux_http::Reject>(())
/// ```
pub fn evaluate(request: &Request<'_>, current: Option<&Validators<'_>>) -> Precondition {
    // §13.2.1: these methods select no representation.
    if matches!(request.method, Method::Connect | Method::Options | Method::Trace) {
        return Precondition::Proceed;
    }
    let is_read = matches!(request.method, Method::Get | Method::Head);
    if request.has(KnownField::IfMatch) {
        if !matches_any(request, KnownField::IfMatch, current, |a, b| a.strongly_equals(b)) {
            return Precondition::Failed;
        }
    } else if let Some(limit) = request.single(KnownField::IfUnmodifiedSince)
        && let Some(changed) = current.and_then(|c| c.last_modified)
        && is_later(changed, limit)
    {
        return Precondition::Failed;
    }
    if request.has(KnownField::IfNoneMatch) {
        if matches_any(request, KnownField::IfNoneMatch, current, |a, b| a.weakly_equals(b)) {
            return if is_read { Precondition::NotModified } else { Precondition::Failed };
        }
    } else if is_read
        && let Some(limit) = date_of(request, KnownField::IfModifiedSince)
        && let Some(changed) = current.and_then(|c| c.last_modified)
        && changed <= limit
    {
        return Precondition::NotModified;
    }
    Precondition::Proceed
}

/// Whether `Range` applies: always without `If-Range`, otherwise only if that matches the current
/// representation by strong comparison (§13.1.5).
pub fn range_applies(request: &Request<'_>, current: &Validators<'_>) -> bool {
    if !request.has(KnownField::IfRange) {
        return true;
    }
    let Some(validator) = request.single(KnownField::IfRange) else { return false };
    if let Some(tag) = ETag::parse(validator) {
        return current.etag.is_some_and(|etag| etag.strongly_equals(&tag));
    }
    date::parse(validator)
        .is_some_and(|date| current.last_modified == Some(date) && date < current.now)
}

fn matches_any(
    request: &Request<'_>,
    field: KnownField,
    current: Option<&Validators<'_>>,
    equals: fn(&ETag<'_>, &ETag<'_>) -> bool,
) -> bool {
    let Some(current) = current else { return false };
    let Some(first) = request.values(field).next() else { return false };
    if first == b"*" && request.single(field).is_some() {
        return true;
    }
    let Some(etag) = current.etag else { return false };
    request.values(field).flat_map(ETags::new).any(|tag| equals(&etag, &tag))
}

/// Returns whether a second is later than the date in `limit`; false if that is no date.
fn is_later(second: u64, limit: &[u8]) -> bool {
    date::parse(limit).map_or_else(|| date::is_before_1970(limit), |limit| second > limit)
}

fn date_of(request: &Request<'_>, field: KnownField) -> Option<u64> {
    date::parse(request.single(field)?)
}
