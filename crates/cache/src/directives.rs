//! `Cache-Control` (RFC 9111 §5.2): the directives of requests and of responses.
//!
//! A directive that cannot be parsed is read in the cautious way: an invalid lifetime is 0
//! (§4.2.1), and a prohibition with an invalid argument applies in full.

/// A number of seconds; larger values saturate (§1.2.2).
pub(crate) type Seconds = u32;

/// The maximum number of seconds (§1.2.2).
pub(crate) const FOREVER: Seconds = 1 << 31;

/// One directive: its name and, if present, its argument without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Directive<'v> {
    pub(crate) name: &'v [u8],
    pub(crate) argument: Option<&'v [u8]>,
}

impl Directive<'_> {
    fn is(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// The argument as `delta-seconds`; `None` if it is missing or not a number.
    fn seconds(&self) -> Option<Seconds> {
        seconds(self.argument?)
    }
}

/// Parses `delta-seconds` (§1.2.2).
pub(crate) fn seconds(digits: &[u8]) -> Option<Seconds> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let sum =
        digits.iter().fold(0u64, |sum, b| (sum * 10 + u64::from(b - b'0')).min(u64::from(FOREVER)));
    Some(sum as Seconds)
}

/// Parses the directives of one field line. A comma inside quotes separates nothing. The grammar
/// forbids whitespace around `=`; it is left in the argument, so that the argument is invalid.
pub(crate) fn parse(value: &[u8]) -> impl Iterator<Item = Directive<'_>> {
    members(value).map(|member| match member.iter().position(|&b| b == b'=') {
        None => Directive { name: member, argument: None },
        Some(at) => Directive {
            name: member[..at].trim_ascii_end(),
            argument: Some(if member[..at].ends_with(b" ") || member[..at].ends_with(b"\t") {
                b"?"
            } else {
                unquote(&member[at + 1..])
            }),
        },
    })
}

/// Splits a comma-separated list that may contain quoted strings. Members are trimmed and empty
/// ones are skipped.
pub(crate) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    split(value).filter(|member| !member.is_empty())
}

/// Splits at the commas that are not in quoted strings, and trims each piece. After an unterminated quote every
/// comma separates, because a prohibition may follow it.
pub(crate) fn split(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    let mut is_plain = false;
    std::iter::from_fn(move || {
        let all = rest?;
        let (mut quoted, mut escaped) = (false, false);
        let mut end = all.iter().position(|&b| {
            if escaped {
                escaped = false;
                return false;
            }
            match b {
                b'"' => quoted = !quoted && !is_plain,
                b'\\' if quoted => escaped = true,
                b',' => return !quoted,
                _ => {}
            }
            false
        });
        if quoted {
            is_plain = true;
            end = all.iter().position(|&b| b == b',');
        }
        rest = end.map(|end| &all[end + 1..]);
        Some(all[..end.unwrap_or(all.len())].trim_ascii())
    })
}

/// Removes the quotes of a quoted string; other text is returned unchanged (§5.2 requires accepting
/// both forms).
fn unquote(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text)
}

/// The cache directives of a request (§5.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestDirectives {
    pub(crate) max_age: Option<Seconds>,
    /// The maximum accepted staleness; [`FOREVER`] accepts any.
    pub(crate) max_stale: Option<Seconds>,
    pub(crate) min_fresh: Option<Seconds>,
    /// The maximum accepted staleness if the origin fails (RFC 5861 §4).
    pub(crate) stale_if_error: Option<Seconds>,
    pub(crate) no_cache: bool,
    pub(crate) no_store: bool,
    pub(crate) only_if_cached: bool,
}

/// Collects the cache directives of a request, field line by field line.
#[derive(Debug, Default)]
pub(crate) struct RequestDirectivesReader {
    directives: RequestDirectives,
    has_control: bool,
    pragma: bool,
}

impl RequestDirectivesReader {
    /// Adds a line of `Cache-Control`.
    pub(crate) fn add_cache_control(&mut self, value: &[u8]) {
        self.has_control = true;
        parse(value).for_each(|directive| self.directives.add(&directive));
    }

    /// Adds a line of `Pragma`. Its `no-cache` counts only without `Cache-Control` (§5.4).
    pub(crate) fn add_pragma(&mut self, value: &[u8]) {
        self.pragma |= parse(value).any(|directive| directive.is(b"no-cache"));
    }

    /// Returns the collected directives.
    pub(crate) fn directives(self) -> RequestDirectives {
        let no_cache = self.directives.no_cache || self.pragma && !self.has_control;
        RequestDirectives { no_cache, ..self.directives }
    }
}

impl RequestDirectives {
    fn add(&mut self, directive: &Directive<'_>) {
        let at_most = |old: Option<Seconds>, new: Seconds| Some(old.unwrap_or(new).min(new));
        match directive {
            // An invalid `max-age` requires the youngest possible response.
            d if d.is(b"max-age") => self.max_age = at_most(self.max_age, d.seconds().unwrap_or(0)),
            d if d.is(b"max-stale") => {
                let limit = if d.argument.is_none() { Some(FOREVER) } else { d.seconds() };
                self.max_stale = limit.and_then(|limit| at_most(self.max_stale, limit));
            }
            d if d.is(b"min-fresh") => {
                let seconds = d.seconds().unwrap_or(FOREVER);
                self.min_fresh = Some(self.min_fresh.unwrap_or(0).max(seconds));
            }
            d if d.is(b"stale-if-error") => {
                let limit = d.seconds();
                self.stale_if_error = limit.and_then(|limit| at_most(self.stale_if_error, limit));
            }
            d if d.is(b"no-cache") => self.no_cache = true,
            d if d.is(b"no-store") => self.no_store = true,
            d if d.is(b"only-if-cached") => self.only_if_cached = true,
            _ => {}
        }
    }
}

/// The maximum number of fields that `no-cache="…"` and `private="…"` of one response name. Each
/// field is compared with all of them.
const WITHHELD_MAX: usize = 64;

/// The cache directives of a response for a shared cache (§5.2.2, RFC 5861).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseDirectives {
    pub(crate) max_age: Option<Seconds>,
    pub(crate) s_maxage: Option<Seconds>,
    pub(crate) stale_while_revalidate: Option<Seconds>,
    pub(crate) stale_if_error: Option<Seconds>,
    /// `no-cache` without an argument. The fields of one with an argument are in
    /// [`ResponseDirectives::withheld`].
    pub(crate) no_cache: bool,
    /// `private` without an argument.
    pub(crate) private: bool,
    pub(crate) no_store: bool,
    pub(crate) public: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) proxy_revalidate: bool,
    pub(crate) must_understand: bool,
    /// The response does not change while it is fresh (RFC 8246).
    pub(crate) immutable: bool,
    /// The fields that `no-cache="…"` and `private="…"` name, in lower case. They are not stored.
    pub(crate) withheld: Vec<Vec<u8>>,
}

impl ResponseDirectives {
    pub(crate) fn add(&mut self, directive: &Directive<'_>) {
        match directive {
            d if d.is(b"max-age") => add_lifetime(&mut self.max_age, d),
            d if d.is(b"s-maxage") => add_lifetime(&mut self.s_maxage, d),
            d if d.is(b"stale-while-revalidate") => {
                add_lifetime(&mut self.stale_while_revalidate, d);
            }
            d if d.is(b"stale-if-error") => add_lifetime(&mut self.stale_if_error, d),
            d if d.is(b"no-cache") => self.no_cache |= !self.add_fields(d),
            d if d.is(b"private") => self.private |= !self.add_fields(d),
            d if d.is(b"no-store") => self.no_store = true,
            d if d.is(b"public") => self.public = true,
            d if d.is(b"must-revalidate") => self.must_revalidate = true,
            d if d.is(b"proxy-revalidate") => self.proxy_revalidate = true,
            d if d.is(b"must-understand") => self.must_understand = true,
            // An argument has no meaning and is ignored (RFC 8246 §2).
            d if d.is(b"immutable") => self.immutable = true,
            _ => {}
        }
    }

    /// Adds the fields that the argument names. Returns false if it names none or too many, or if a
    /// member is not a field name: the directive then concerns the whole response.
    fn add_fields(&mut self, directive: &Directive<'_>) -> bool {
        let names = directive.argument.unwrap_or(b"").split(|&b| b == b',');
        let names = names.map(<[u8]>::trim_ascii).filter(|name| !name.is_empty());
        if self.withheld.len() + names.clone().count() > WITHHELD_MAX {
            return false;
        }
        let before = self.withheld.len();
        let are_names = names.clone().all(|name| name.iter().all(|&b| is_name(b)));
        self.withheld.extend(names.map(<[u8]>::to_ascii_lowercase));
        are_names && self.withheld.len() > before
    }
}

/// Whether a field name may contain `byte` (RFC 9110 §5.6.2). `*`, which means any field, is not
/// included.
pub(crate) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte)
}

/// An invalid number, or two different values, count as 0: stale (§4.2.1).
fn add_lifetime(slot: &mut Option<Seconds>, directive: &Directive<'_>) {
    let seconds = directive.seconds().unwrap_or(0);
    *slot = Some(match *slot {
        Some(other) if other != seconds => 0,
        _ => seconds,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_response(value: &str) -> ResponseDirectives {
        let mut directives = ResponseDirectives::default();
        parse(value.as_bytes()).for_each(|directive| directives.add(&directive));
        directives
    }

    #[test]
    fn delta_seconds_of_rfc_9111_1_2_2() {
        for (text, expected) in [
            ("0", Some(0)),
            ("003600", Some(3600)),
            ("2147483648", Some(FOREVER)),
            ("99999999999999999999999999", Some(FOREVER)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.0", None),
            ("a1", None),
            ("1a", None),
            (" 1", None),
            ("'1'", None),
        ] {
            assert_eq!(seconds(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn invalid_lifetimes_are_stale_rfc_9111_4_2_1() {
        for (value, expected) in [
            ("max-age=60", Some(60)),
            ("MaX-aGe=60", Some(60)),
            ("max-age=\"60\"", Some(60)),
            ("max-age=60, max-age=60", Some(60)),
            ("max-age=60, max-age=1", Some(0)),
            ("max-age=1, max-age=60", Some(0)),
            ("max-age", Some(0)),
            ("max-age=", Some(0)),
            ("max-age=1.5", Some(0)),
            ("max-age =60", Some(0)),
            ("max-age= 60", Some(0)),
            ("x=\"max-age=60\"", None),
            ("x=\"a, max-age=60\", y", None),
            ("x=\"a\\\", max-age=60\"", None),
            ("max-age=1, x=\"max-age=60\"", Some(1)),
            ("xmax-age=60", None),
        ] {
            assert_eq!(of_response(value).max_age, expected, "{value}");
        }
    }

    /// An unterminated quote may lose freshness, but never a prohibition.
    #[test]
    fn an_unterminated_quote_hides_no_directive() {
        assert!(of_response("max-age=60, x=\"abc, no-store").no_store);
        assert!(of_response("x=\"abc, private").private);
        assert!(of_response("private=\"a, b").private);
        assert!(of_response("x=\"a\", y=\"\\\"b, no-cache").no_cache);
        assert!(!of_response("x=\"abc, no-store\"").no_store);
        let read = |value: &'static str| {
            members(value.as_bytes()).map(|m| std::str::from_utf8(m).unwrap()).collect::<Vec<_>>()
        };
        let expected = ["a=\"1,2\"", "b=\"3", "c=\"4\"", "d"];
        assert_eq!(read("a=\"1,2\", b=\"3, c=\"4\", d"), expected);
        assert_eq!(read("a=\"1, b=2\", c=\"3"), ["a=\"1, b=2\"", "c=\"3"]);
        assert_eq!(read("\"a,\"b\",c"), ["\"a", "\"b\"", "c"]);
    }

    #[test]
    fn field_lists_of_rfc_9111_5_2_2_4_and_5_2_2_7() {
        let directives = of_response("no-cache=\"Set-Cookie, X-A\" , private=\"b\", public");
        assert!(!directives.no_cache && !directives.private && directives.public);
        assert_eq!(directives.withheld, [&b"set-cookie"[..], b"x-a", b"b"]);
        assert!(of_response("private=\"\"").private);
        assert!(of_response("no-cache=\" , \"").no_cache);
        for unreadable in ["*", "\"a b\"", "\"a; b\"", "\"a, *\"", "\"a\\\"b\"", "(a b)", "a:"] {
            assert!(of_response(&format!("private={unreadable}")).private, "{unreadable}");
            assert!(of_response(&format!("no-cache={unreadable}")).no_cache, "{unreadable}");
        }
        assert!(of_response("no-cache=\"a\", no-cache").no_cache);
        assert_eq!(of_response("no-cache=a").withheld, [b"a"]);
        // Regression: there was no limit.
        let many = |count: usize| (0..count).map(|n| format!("x{n}")).collect::<Vec<_>>().join(",");
        let longest = of_response(&format!("no-cache=\"{}\"", many(WITHHELD_MAX)));
        assert!(!longest.no_cache && longest.withheld.len() == WITHHELD_MAX);
        let longer = of_response(&format!("no-cache=\"{}\"", many(WITHHELD_MAX + 1)));
        assert!(longer.no_cache && longer.withheld.is_empty());
        assert!(of_response(&format!("private=a, private=\"{}\"", many(WITHHELD_MAX))).private);
    }

    #[test]
    fn flags_of_rfc_9111_5_2_2() {
        let all = of_response(
            ", NO-STORE,,must-revalidate,proxy-revalidate, must-understand ,s-maxage=1,\
             stale-while-revalidate=2,stale-if-error=3,no-transform,immutable",
        );
        assert!(all.no_store && all.must_revalidate && all.proxy_revalidate && all.must_understand);
        assert_eq!(all.s_maxage, Some(1));
        assert_eq!((all.stale_while_revalidate, all.stale_if_error), (Some(2), Some(3)));
    }
}
