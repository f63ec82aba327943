//! Conditional requests (RFC 9110 §13).

use crate::{
    date,
    etag::{ETag, ETags},
    request::{KnownField, Method, Request},
};

/// What the server knows about the representation that it would send.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'v> {
    /// Its entity tag.
    pub etag: Option<ETag<'v>>,
    /// The Unix second of its last change.
    pub last_modified: Option<u64>,
    /// The Unix second of the answer: a representation that changed in this very second may
    /// change in it again, so that its date is a weak validator (§8.8.2.2).
    pub now: u64,
}

/// What the preconditions of a request ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Answer as if there were none.
    Proceed,
    /// 304: the client has it already.
    NotModified,
    /// 412: what the client acts upon is not what there is.
    Failed,
}

/// Evaluates the preconditions in the order of §13.2.2; `None` when there is no representation.
///
/// To be asked only when the answer without preconditions would be a success (§13.2.1). A tag list
/// counts up to the first member that is no tag; a date that is none, or is given twice, is
/// ignored.
pub fn evaluate(request: &Request<'_>, current: Option<&Validators<'_>>) -> Precondition {
    // §13.2.1: methods that select no representation.
    if matches!(request.method, Method::Connect | Method::Options | Method::Trace) {
        return Precondition::Proceed;
    }
    let is_read = matches!(request.method, Method::Get | Method::Head);
    if request.has(KnownField::IfMatch) {
        if !matches_any(request, KnownField::IfMatch, current, |a, b| a.strongly_equals(b)) {
            return Precondition::Failed;
        }
    } else if let Some(limit) = date_of(request, KnownField::IfUnmodifiedSince)
        && let Some(changed) = current.and_then(|c| c.last_modified)
        && changed > limit
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

/// Whether `Range` is to be looked at: always without `If-Range`, else only when that names the
/// current representation (§13.1.5), by a strong comparison.
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

fn date_of(request: &Request<'_>, field: KnownField) -> Option<u64> {
    date::parse(request.single(field)?)
}
