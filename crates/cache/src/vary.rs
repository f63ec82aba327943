//! Decides which requests a stored response answers: `Vary` (RFC 9111 §4.1).
//!
//! The request's values of the fields that `Vary` names are stored as lines: `name:value LF`, or
//! `name LF` if the field was absent. Values are normalised before they are compared, in ways that
//! do not change their meaning. The syntax of the field decides what this is:
//!
//! - The lines of a list ([`LISTS`]) are one list, and empty members and whitespace around commas are ignored. In
//!   `Accept-Encoding` case, the notation of weights and, unless a coding is repeated, order are ignored; in
//!   `Accept-Language` case is ignored (RFC 4647 §2), but not order, because many servers prefer the first language
//!   (RFC 9110 §12.5.4).
//! - A single value ([`SINGLE_VALUES`]) is compared as it is. An origin may take `Origin: https://a.example,` for another
//!   origin than `https://a.example`, so the two must not share a response.
//! - The syntax of every other field is unknown. Its lines are combined with commas (RFC 9110 §5.3), and whitespace around
//!   commas is ignored, but an empty member counts.
//!
//! A field that the request's `Connection` names is not forwarded (RFC 9110 §7.6.1). The origin
//! chose its response without it, so it counts as absent.
//!
//! An origin that reads fields in the way of CGI takes `Accept_Language` for `Accept-Language`, and
//! another one ignores it. A request with such a field therefore has variants of its own: the value
//! follows in the line, behind [`UNDERSCORES`].

use crate::directives;
use pollux_http::{
    fields::Field,
    request::{KnownField, Request},
};

/// The mark before the value of a field whose name is written with underscores. A value contains no NUL.
const UNDERSCORES: &[u8] = b":\0";

/// The mark between the lines of a field that has a single value.
const NEXT_LINE: &[u8] = b"\0\0";

/// Request fields whose value is a list, by their definitions in RFC 9110, RFC 9111, RFC 7240 and RFC 7239.
const LISTS: [&[u8]; 8] = [
    b"accept",
    b"accept-charset",
    b"cache-control",
    b"expect",
    b"forwarded",
    b"pragma",
    b"prefer",
    b"te",
];

/// Request fields with a single value, in which a comma has no meaning or another one.
const SINGLE_VALUES: [&[u8]; 13] = [
    b"authorization",
    b"content-type",
    b"cookie",
    b"from",
    b"host",
    b"if-modified-since",
    b"if-range",
    b"if-unmodified-since",
    b"origin",
    b"proxy-authorization",
    b"range",
    b"referer",
    b"user-agent",
];

/// Appends the lines of `request` for the fields `names`, which are in lower case.
pub(crate) fn put_lines<'n>(
    names: impl IntoIterator<Item = &'n [u8]>,
    request: &Request<'_>,
    out: &mut Vec<u8>,
) {
    for name in names {
        put_line(name, request, out);
    }
}

fn put_line(name: &[u8], request: &Request<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    let lines = || request.fields().filter(|field| field.is(name));
    if lines().next().is_some() && !is_for_this_hop(name, request) {
        out.push(b':');
        let start = out.len();
        match name {
            b"accept-encoding" => put_codings(lines(), out),
            b"accept-language" => {
                put_list(lines(), out);
                out[start..].make_ascii_lowercase();
            }
            _ if LISTS.contains(&name) => put_list(lines(), out),
            _ if SINGLE_VALUES.contains(&name) => {
                put_joined(lines().map(|line| line.value), NEXT_LINE, out);
            }
            _ => put_joined(lines().flat_map(|line| directives::split(line.value)), b",", out),
        }
    }
    for field in request.fields().filter(|field| field.is_alias(name) && !field.is(name)) {
        out.extend_from_slice(UNDERSCORES);
        out.extend_from_slice(field.value);
    }
    out.push(b'\n');
}

/// Whether `Connection` names the field.
fn is_for_this_hop(name: &[u8], request: &Request<'_>) -> bool {
    let options =
        request.values(KnownField::Connection).flat_map(|line| line.split(|&b| b == b','));
    options.map(<[u8]>::trim_ascii).any(|option| option.eq_ignore_ascii_case(name))
}

/// Whether `request` has the same values as `lines`. Overwrites `scratch`.
pub(crate) fn matches(lines: &[u8], request: &Request<'_>, scratch: &mut Vec<u8>) -> bool {
    scratch.clear();
    put_lines(names(lines), request, scratch);
    scratch == lines
}

/// Returns the field names in `lines`.
pub(crate) fn names(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = lines.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| line.split(|&b| b == b':').next().unwrap_or(line))
}

/// Appends the members of all lines, separated by one comma each.
fn put_list<'b>(lines: impl Iterator<Item = Field<'b>>, out: &mut Vec<u8>) {
    put_joined(lines.flat_map(|line| directives::members(line.value)), b",", out);
}

fn put_joined<'b>(values: impl Iterator<Item = &'b [u8]>, separator: &[u8], out: &mut Vec<u8>) {
    let mut is_first = true;
    for value in values {
        if !is_first {
            out.extend_from_slice(separator);
        }
        is_first = false;
        out.extend_from_slice(value);
    }
}

/// Appends the codings sorted and in lower case. `x-gzip` becomes `gzip` (RFC 9110 §8.4.1.3), a
/// weight of 1 is omitted, and other weights have three digits. If a coding is repeated, servers choose
/// one of its weights by the order, so the order stays.
fn put_codings<'b>(lines: impl Iterator<Item = Field<'b>>, out: &mut Vec<u8>) {
    let mut members: Vec<Vec<u8>> = Vec::new();
    for member in lines.flat_map(|line| directives::members(line.value)) {
        let mut parts = member.splitn(2, |&b| b == b';').map(<[u8]>::trim_ascii);
        let mut coding = parts.next().unwrap_or(b"").to_ascii_lowercase();
        if coding == b"x-gzip" {
            coding = b"gzip".to_vec();
        }
        if let Some(weight) = parts.next() {
            match thousandths(weight) {
                Some(1000) => {}
                Some(weight) => coding.extend_from_slice(format!(";q={weight:03}").as_bytes()),
                // An invalid weight is compared as text.
                None => {
                    coding.push(b';');
                    coding.extend_from_slice(&weight.to_ascii_lowercase());
                }
            }
        }
        members.push(coding);
    }
    let name_len = |member: &[u8]| member.iter().position(|&b| b == b';').unwrap_or(member.len());
    let mut names: Vec<&[u8]> = members.iter().map(|member| &member[..name_len(member)]).collect();
    names.sort_unstable();
    if names.windows(2).all(|two| two[0] != two[1]) {
        members.sort_unstable();
    }
    out.extend_from_slice(&members.join(&b","[..]));
}

/// Parses `q=` and a weight (RFC 9110 §12.4.2) in thousandths.
fn thousandths(weight: &[u8]) -> Option<u16> {
    let (b"q=" | b"Q=", value) = weight.split_at_checked(2)? else { return None };
    let (whole, digits) = match value {
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', digits @ ..] => (whole, digits),
        _ => return None,
    };
    if digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let all = (0..3).map(|at| digits.get(at).map_or(0, |digit| u16::from(digit - b'0')));
    let number = all.fold(u16::from(whole - b'0'), |number, digit| number * 10 + digit);
    (number <= 1000).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{ParseStatus, parse},
    };

    fn same(names: &[&str], one: &str, two: &str) -> bool {
        let names = || names.iter().map(|name| name.as_bytes());
        let head = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let (one, two) = (head(one), head(two));
        let mut lines = Vec::new();
        let Ok(ParseStatus::Complete { request, .. }) = parse(one.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("{one}")
        };
        put_lines(names(), &request, &mut lines);
        assert!(matches(&lines, &request, &mut Vec::new()), "{one} does not match itself");
        let Ok(ParseStatus::Complete { request, .. }) = parse(two.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("{two}")
        };
        matches(&lines, &request, &mut Vec::new())
    }

    #[test]
    fn matching_of_rfc_9111_4_1() {
        for (one, two, expected) in [
            ("Foo: 1\r\n", "FOO:  1 \r\n", true),
            ("Foo: 1\r\n", "Foo: 2\r\n", false),
            ("Foo: 1\r\n", "", false),
            ("", "Foo: 1\r\n", false),
            ("Foo:\r\n", "", false),
            ("", "", true),
            ("", "Bar: 1\r\n", true),
            ("Foo: 1\r\nFoo: 2\r\n", "Foo: 1, 2\r\n", true),
            ("Foo: 1 , 2\r\n", "Foo: 1,2\r\n", true),
            ("Foo: 1,,2\r\n", "Foo: 1,2\r\n", false),
            ("Foo: 1,\r\n", "Foo: 1\r\n", false),
            ("Foo: ,1\r\n", "Foo: 1\r\n", false),
            ("Foo: 1, 2\r\n", "Foo: 2, 1\r\n", false),
            ("Foo: \"1, 2\"\r\n", "Foo: \"1,2\"\r\n", false),
            ("Foo: a\r\n", "Foo: A\r\n", false),
        ] {
            assert_eq!(same(&["foo"], one, two), expected, "{one:?} {two:?}");
        }
        assert!(!same(&["a", "b"], "A: x\r\nB: y\r\n", "A: x\r\n"));
        assert!(!same(&["a", "b"], "A: x\r\n", "B: x\r\n"));
    }

    #[test]
    fn a_list_ignores_empty_members_and_a_single_value_is_compared_as_it_is() {
        let cases = [
            ("Accept", "a/b ,, c/d", "a/b,c/d", true),
            ("Accept", "a/b,", "a/b", true),
            ("Origin", "https://a.example,", "https://a.example", false),
            ("Origin", "https://a.example", "https://a.example", true),
            ("Cookie", "u=1, 2", "u=1,2", false),
            ("Cookie", "u=1\r\nCookie: 2", "u=1,2", false),
            ("Cookie", "u=1\r\nCookie: 2", "u=1\r\nCookie: 2", true),
            ("Referer", "/?q=1,,2", "/?q=1,2", false),
        ];
        for (name, one, two, expected) in cases {
            let line = |value| format!("{name}: {value}\r\n");
            let field = name.to_ascii_lowercase();
            assert_eq!(same(&[&field], &line(one), &line(two)), expected, "{name} {one:?} {two:?}");
        }
    }

    /// RFC 9110 §7.6.1: a field that the origin did not see did not influence its response.
    #[test]
    fn fields_named_by_connection_count_as_absent() {
        for (one, two, expected) in [
            ("Foo: 1\r\nConnection: foo\r\n", "Foo: 1\r\n", false),
            ("Foo: 1\r\nConnection: close , FOO\r\n", "", true),
            ("Foo: 1\r\nConnection: close\r\nConnection: foo\r\n", "", true),
            ("Foo: 1\r\nConnection: keep-alive, fo\r\n", "Foo: 1\r\n", true),
        ] {
            assert_eq!(same(&["foo"], one, two), expected, "{one:?} {two:?}");
        }
    }

    #[test]
    fn fields_with_underscores_have_variants_of_their_own() {
        let name = ["accept-language"];
        for (one, two, expected) in [
            ("Accept_Language: de\r\n", "", false),
            ("Accept_Language: de\r\n", "Accept-Language: de\r\n", false),
            ("Accept_Language: de\r\n", "accept_language: de\r\n", true),
            ("Accept_Language: de\r\n", "Accept_Language: en\r\n", false),
            ("Accept-Language: de\r\nAccept_Language: en\r\n", "Accept-Language: de\r\n", false),
            ("Accept-Language:\r\nAccept_Language: en\r\n", "Accept_Language: en\r\n", false),
            ("AcceptxLanguage: de\r\n", "", true),
        ] {
            assert_eq!(same(&name, one, two), expected, "{one:?} {two:?}");
        }
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nAccept_Language: de\r\n\r\n";
        let Ok(ParseStatus::Complete { request, .. }) = parse(head, &Limits::DEFAULT) else {
            panic!()
        };
        let mut lines = Vec::new();
        put_lines([&b"accept-language"[..], b"x"], &request, &mut lines);
        assert!(names(&lines).eq([&b"accept-language"[..], b"x"]));
    }

    #[test]
    fn languages_are_compared_case_insensitively_rfc_4647_2() {
        for (one, two, expected) in [
            ("en, de", "eN ,De", true),
            ("en-US;q=0.5", "EN-us;Q=0.5", true),
            ("en, de", "de, en", false),
            ("en", "en-US", false),
        ] {
            let line = |value| format!("Accept-Language: {value}\r\n");
            assert_eq!(
                same(&["accept-language"], &line(one), &line(two)),
                expected,
                "{one:?} {two:?}"
            );
        }
    }

    #[test]
    fn accept_encoding_is_normalised_without_changing_its_meaning() {
        for (one, two, expected) in [
            ("gzip, br", "BR,gzip", true),
            ("gzip;q=1.0, br", "br, x-gzip", true),
            ("gzip;q=0.5", "gzip ; q=0.500", true),
            ("gzip;q=0.5", "gzip;q=0.6", false),
            ("gzip", "gzip;q=0", false),
            ("gzip, deflate", "gzip", false),
            ("gzip;x=1", "gzip", false),
            ("", "identity", false),
            ("gzip;q=0, gzip", "gzip, gzip;q=0", false),
            ("br, gzip;q=0, gzip", "br, gzip;q=0, gzip", true),
        ] {
            let line = |value| format!("Accept-Encoding: {value}\r\n");
            assert_eq!(
                same(&["accept-encoding"], &line(one), &line(two)),
                expected,
                "{one:?} {two:?}"
            );
        }
    }
}
