//! Targeted cache control (RFC 9213): a structured dictionary that replaces `Cache-Control` and
//! `Expires` for the caches that it names.

use crate::directives::{Directive, ResponseDirectives};
use pollux_http::fields::Field;
use sfv::{BareItem, Dictionary, ListEntry, Parser};

/// Returns the directives of the first field of `names` that is present and valid (RFC 9213 §2.2).
/// An empty field or invalid syntax counts as absent (§2.1). So does a field that gives a directive
/// a value of the wrong type, since its intended meaning is unknown.
pub(crate) fn read<'b>(
    names: &[Box<str>],
    fields: impl Iterator<Item = Field<'b>> + Clone,
) -> Option<ResponseDirectives> {
    names.iter().find_map(|name| {
        let mut lines = fields.clone().filter(|field| field.is(name.as_bytes())).peekable();
        lines.peek()?;
        let mut value = Vec::new();
        for line in lines {
            if !value.is_empty() {
                value.extend_from_slice(b", ");
            }
            value.extend_from_slice(line.value);
        }
        dictionary(&value)
    })
}

fn dictionary(value: &[u8]) -> Option<ResponseDirectives> {
    let dictionary: Dictionary = Parser::new(value).parse().ok()?;
    if dictionary.is_empty() {
        return None;
    }
    let mut directives = ResponseDirectives::default();
    for (key, entry) in &dictionary {
        let name = key.as_str().as_bytes();
        let ListEntry::Item(item) = entry else {
            if is_known(name) {
                return None;
            }
            continue;
        };
        let number;
        let argument = match &item.bare_item {
            BareItem::Boolean(false) if !is_lifetime(name) => continue,
            BareItem::Boolean(true) if !is_lifetime(name) => None,
            BareItem::Integer(seconds) if is_lifetime(name) => {
                number = i64::from(*seconds).max(0).to_string();
                Some(number.as_bytes())
            }
            BareItem::String(text) if matches!(name, b"private" | b"no-cache") => {
                Some(text.as_str().as_bytes())
            }
            _ if is_known(name) => return None,
            _ => continue,
        };
        directives.add(&Directive { name, argument });
    }
    Some(directives)
}

fn is_lifetime(name: &[u8]) -> bool {
    matches!(name, b"max-age" | b"s-maxage" | b"stale-while-revalidate" | b"stale-if-error")
}

fn is_known(name: &[u8]) -> bool {
    is_lifetime(name)
        || matches!(
            name,
            b"no-cache"
                | b"private"
                | b"no-store"
                | b"public"
                | b"must-revalidate"
                | b"proxy-revalidate"
                | b"must-understand"
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::fields::Fields;

    fn max_age(lines: &str) -> Option<Option<u32>> {
        let names = ["a-cache-control".into(), "cdn-cache-control".into()];
        read(&names, Fields::new(lines.as_bytes())).map(|directives| directives.max_age)
    }

    #[test]
    fn the_first_valid_field_of_the_list_counts_rfc_9213_2_2() {
        for (lines, expected) in [
            ("CDN-Cache-Control: max-age=60\r\n", Some(Some(60))),
            ("CDN-Cache-Control: max-age=1\r\nA-Cache-Control: max-age=2\r\n", Some(Some(2))),
            ("CDN-Cache-Control: max-age=1\r\nA-Cache-Control: \r\n", Some(Some(1))),
            ("CDN-Cache-Control: max-age=1\r\nA-Cache-Control: max-age=, &\r\n", Some(Some(1))),
            ("CDN-Cache-Control: max-age=1\r\nCDN-Cache-Control: foo\r\n", Some(Some(1))),
            ("CDN-Cache-Control: foo\r\n", Some(None)),
            ("Cache-Control: max-age=1\r\n", None),
        ] {
            assert_eq!(max_age(lines), expected, "{lines}");
        }
    }

    #[test]
    fn the_field_is_a_structured_dictionary_rfc_9213_2_1() {
        for (value, expected) in [
            ("max-age=60;x=1, must-revalidate", Some(Some(60))),
            ("max-age=99999999999", Some(Some(crate::directives::FOREVER))),
            ("max-age=1, max-age=60", Some(Some(60))),
            ("max-age=-1", Some(Some(0))),
            ("foo=(1 2), max-age=60, bar=\"x\"", Some(Some(60))),
            ("max-age=\"60\"", None),
            ("max-age=60.0", None),
            ("max-age", None),
            ("max-age=?0", None),
            ("max-age=(60)", None),
            ("no-store=5", None),
            ("max-age=60, &&&", None),
            ("max-age =60", None),
            ("MaX-aGe=60", None),
            ("max-age=60,", None),
            ("", None),
        ] {
            let line = format!("CDN-Cache-Control: {value}\r\n");
            assert_eq!(max_age(&line), expected, "{value}");
        }
        let line = b"CDN-Cache-Control: private=\"x, y\", no-store=?0, no-cache\r\n";
        let directives = read(&["cdn-cache-control".into()], Fields::new(line)).unwrap();
        assert!(!directives.private && !directives.no_store && directives.no_cache);
        assert_eq!(directives.withheld, [b"x", b"y"]);
    }
}
