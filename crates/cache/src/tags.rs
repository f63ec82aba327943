//! Tags of stored responses, by which an operator can purge them.

use pollux_http::fields::Fields;

/// Returns the tags of a response: the members of the tag fields.
pub(crate) fn tags_of(lines: &[u8], fields: &[Box<str>]) -> Vec<Box<[u8]>> {
    members(lines, fields).map(Box::from).collect()
}

/// White space and commas both separate members, in every tag field: `Surrogate-Key` and `xkey` use white
/// space, `Cache-Tag` uses commas.
fn members<'f>(lines: &'f [u8], fields: &'f [Box<str>]) -> impl Iterator<Item = &'f [u8]> {
    Fields::new(lines)
        .filter(|field| fields.iter().any(|name| field.is(name.as_bytes())))
        .flat_map(|field| field.value.split(|b| matches!(b, b' ' | b'\t' | b',')))
        .filter(|member| !member.is_empty())
}

/// Whether the response with these field lines has this tag.
pub(crate) fn has_tag(lines: &[u8], fields: &[Box<str>], tag: &[u8]) -> bool {
    members(lines, fields).any(|member| member == tag)
}
