//! Writes and filters field lines.

use pollux_http::{
    fields::{Field, Fields},
    output::Output,
};

/// Appends one field line.
pub(crate) fn put_field(name: &[u8], value: &[u8], out: &mut impl Output) {
    out.put(name);
    out.put(b": ");
    out.put(value);
    out.put(b"\r\n");
}

/// Digests of the content of one message (RFC 9530 §2, RFC 2616 §14.15). They are wrong for other content, such as a
/// range of a stored response, or two joined parts. `Repr-Digest` is about the whole representation and stays.
const CONTENT_DIGESTS: [&[u8]; 2] = [b"content-digest", b"content-md5"];

/// Whether the field is a digest of the content of one message.
pub(crate) fn is_content_digest(field: &Field<'_>) -> bool {
    CONTENT_DIGESTS.iter().any(|name| field.is(name))
}

/// Whether the field describes content. A 304 does not repeat such fields, because the client has
/// them already (RFC 9110 §15.4.5).
fn describes_content(field: &Field<'_>) -> bool {
    const NAMES: [&[u8]; 5] = [
        b"content-type",
        b"content-encoding",
        b"content-language",
        b"content-length",
        b"content-range",
    ];
    NAMES.iter().any(|name| field.is(name)) || is_content_digest(field)
}

/// Appends those lines of `fields` that a 304 contains (RFC 9110 §15.4.5).
pub(crate) fn put_not_modified_fields(fields: &[u8], out: &mut impl Output) {
    for field in Fields::new(fields).filter(|field| !describes_content(field)) {
        put_field(field.name, field.value, out);
    }
}

/// Whether `name` is one of the names in `withheld`, which are in lower case.
pub(crate) fn is_withheld(name: &[u8], withheld: &[Vec<u8>]) -> bool {
    withheld.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Returns the lines of `fields` without the fields in `withheld`, which are in lower case.
pub(crate) fn without(fields: &[u8], withheld: &[Vec<u8>]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(fields.len());
    for field in Fields::new(fields).filter(|field| !is_withheld(field.name, withheld)) {
        put_field(field.name, field.value, &mut lines);
    }
    lines
}
