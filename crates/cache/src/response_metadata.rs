//! The caching properties of a response, read in one pass over its fields.

use crate::{
    config::Config,
    content_range::{PARTIAL, Part},
    directives::{self, ResponseDirectives, Seconds, is_name, parse, seconds},
    targeted,
};
use pollux_http::{
    date,
    etag::ETag,
    fields::{Field, Fields},
};

#[derive(Clone, Debug)]
pub(crate) struct ResponseMetadata<'b> {
    pub(crate) status: u16,
    pub(crate) directives: ResponseDirectives,
    /// The directives come from a targeted field, so `Expires` is ignored (RFC 9213 §2.2).
    pub(crate) is_targeted: bool,
    pub(crate) date: Option<u64>,
    /// `Expires` in Unix seconds; 0, which is in the past, for an invalid date (RFC 9111 §5.3).
    pub(crate) expires: Option<u64>,
    pub(crate) age: Seconds,
    pub(crate) last_modified: Option<u64>,
    pub(crate) etag: Option<ETag<'b>>,
    pub(crate) content_length: Option<u64>,
    pub(crate) varies: VaryFields,
    pub(crate) sets_cookies: bool,
    /// The range of a 206, if it is valid and consistent (RFC 9110 §15.3.7).
    pub(crate) part: Option<Part>,
    /// The request had `Cookie`. The caller sets this.
    pub(crate) is_for_cookie: bool,
}

/// The maximum number of fields that the `Vary` of a stored response names. Each request for its
/// URL is searched for each of them, while the shard is locked.
const VARY_NAMES_MAX: usize = 64;

/// The fields that `Vary` names, and those of [`Config::implied_vary`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VaryFields {
    /// No other request can match: `*`, an invalid field name, more than [`VARY_NAMES_MAX`] names,
    /// or a field whose forwarded value this cache does not know ([`Config::rewritten_fields`]).
    pub(crate) by_anything: bool,
    /// Field names in lower case, sorted, without duplicates.
    pub(crate) names: Vec<Vec<u8>>,
}

impl<'b> ResponseMetadata<'b> {
    pub(crate) fn read(status: u16, fields: Fields<'b>, config: &Config) -> Self {
        let mut metadata = Self {
            status,
            directives: ResponseDirectives::default(),
            is_targeted: false,
            date: None,
            expires: None,
            age: 0,
            last_modified: None,
            etag: None,
            content_length: None,
            varies: VaryFields::default(),
            sets_cookies: false,
            part: if status == PARTIAL { Part::of_fields(fields.clone()) } else { None },
            is_for_cookie: false,
        };
        let (mut has_age, mut has_targeted) = (false, false);
        for field in fields.clone() {
            match field.name.len() {
                3 if field.is(b"age") && !has_age => {
                    has_age = true;
                    metadata.age = age(field.value);
                }
                4 if field.is(b"date") => {
                    metadata.date = metadata.date.or(date::parse_in_any_case(field.value))
                }
                4 if field.is(b"vary") => metadata.varies.add(field.value),
                4 if field.is(b"etag") && metadata.etag.is_none() => {
                    metadata.etag = ETag::parse(field.value);
                }
                7 if field.is(b"expires") => metadata.add_expires(field.value),
                10 if field.is(b"set-cookie") => metadata.sets_cookies = true,
                13 if field.is(b"cache-control") => {
                    parse(field.value).for_each(|directive| metadata.directives.add(&directive));
                }
                12 if field.is(b"content-type") && is_multipart(field.value) => {
                    metadata.part = None;
                }
                13 if field.is(b"last-modified") && metadata.last_modified.is_none() => {
                    metadata.last_modified = date::parse_in_any_case(field.value);
                }
                14 if field.is(b"content-length") => {
                    metadata.content_length =
                        std::str::from_utf8(field.value).ok().and_then(|text| text.parse().ok());
                }
                _ => {}
            }
            has_targeted |= config.targeted_fields.iter().any(|name| field.is(name.as_bytes()));
        }
        if has_targeted && let Some(directives) = targeted::read(&config.targeted_fields, fields) {
            metadata.directives = directives;
            metadata.is_targeted = true;
        }
        let length = metadata.content_length;
        metadata.part =
            metadata.part.filter(|part| length.is_none_or(|len| len == part.range.len()));
        let implied = config.implied_vary.iter().map(|name| name.as_bytes().to_vec());
        metadata.varies.names.extend(implied);
        metadata.varies.names.sort_unstable();
        metadata.varies.names.dedup();
        metadata.varies.by_anything |= metadata.varies.names.len() > VARY_NAMES_MAX;
        let is_rewritten = |name: &Vec<u8>| {
            config.rewritten_fields.iter().any(|other| *other.as_bytes() == **name)
        };
        metadata.varies.by_anything |= metadata.varies.names.iter().any(is_rewritten);
        metadata
    }

    /// Two different values count as a date in the past (§4.2.1).
    fn add_expires(&mut self, value: &[u8]) {
        let second = date::parse_in_any_case(value).unwrap_or(0);
        self.expires = Some(match self.expires {
            Some(other) if other != second => 0,
            _ => second,
        });
    }

    /// Whether the response states a lifetime or permits storing explicitly (§3).
    pub(crate) fn is_explicit(&self) -> bool {
        self.directives.public || self.explicit_lifetime().is_some()
    }

    /// The lifetime that the response states for a shared cache (§4.2.1). The inner `None` means
    /// that `Expires` counts from the arrival, because the response has no `Date`.
    pub(crate) fn explicit_lifetime(&self) -> Option<Option<Seconds>> {
        if let Some(seconds) = self.directives.s_maxage.or(self.directives.max_age) {
            return Some(Some(seconds));
        }
        let expires = self.expires.filter(|_| !self.is_targeted)?;
        Some(self.date.map(|date| clamp(expires.saturating_sub(date))))
    }

    /// The freshness lifetime (§4.2.1, §4.2.2) of a response received at `now`.
    pub(crate) fn lifetime(&self, now: u64, config: &Config) -> Seconds {
        match self.explicit_lifetime() {
            Some(Some(seconds)) => seconds,
            Some(None) => clamp(self.expires.unwrap_or(0).saturating_sub(now)),
            None => self.heuristic_lifetime(now, config),
        }
    }

    /// The lifetime of a response that states none. With `Last-Modified` it is a tenth of the time since the last
    /// change, for statuses that permit heuristics or with `public`; 0 if the response may be for one user. Without
    /// `Last-Modified` it is [`Config::negative_lifetime_s`], for the statuses of that setting. It is always 0 for a
    /// response that sets a cookie, which was probably not meant for all clients.
    fn heuristic_lifetime(&self, now: u64, config: &Config) -> Seconds {
        let may = is_heuristic(self.status) || self.directives.public;
        if !may || self.sets_cookies {
            return 0;
        }
        if let Some(changed) = self.last_modified {
            if self.is_personal() {
                return 0;
            }
            let since = self.date.unwrap_or(now).saturating_sub(changed);
            return clamp(since / 10).min(config.heuristic_max_s);
        }
        let is_negative = is_heuristic(self.status) && !matches!(self.status, 200 | 203 | 206);
        if is_negative { config.negative_lifetime_s } else { 0 }
    }

    /// Whether the response may be for one user: its request had `Cookie`, and the response states no
    /// lifetime and is not `public`.
    pub(crate) fn is_personal(&self) -> bool {
        self.is_for_cookie && !self.is_explicit()
    }

    /// The time for which the response is used if the origin fails: as long as it states, or as long as the
    /// operator chose ([`Config::stale_if_error_s`]). The operator's choice does not apply with `s-maxage`,
    /// which implies `proxy-revalidate` (§5.2.2.10), and to a response that may be for one user.
    pub(crate) fn stale_if_error(&self, config: &Config) -> Seconds {
        let is_excluded = self.directives.s_maxage.is_some() || self.is_personal();
        let default = if is_excluded { 0 } else { config.stale_if_error_s };
        self.directives.stale_if_error.unwrap_or(default)
    }

    /// `corrected_initial_age` (§4.2.3) of a response requested at `requested_at` and received at
    /// `now`.
    pub(crate) fn initial_age(&self, requested_at: u64, now: u64) -> Seconds {
        let apparent = self.date.map_or(0, |date| now.saturating_sub(date));
        let corrected = u64::from(self.age) + now.saturating_sub(requested_at);
        clamp(apparent.max(corrected))
    }
}

impl VaryFields {
    fn add(&mut self, value: &[u8]) {
        for name in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
            if name.is_empty() {
                continue;
            }
            self.by_anything |= name == b"*" || !name.iter().all(|b| is_name(*b));
            self.names.push(name.to_ascii_lowercase());
        }
    }
}

/// Whether the type is `multipart/byteranges` (RFC 9110 §14.6).
fn is_multipart(content_type: &[u8]) -> bool {
    let end = content_type.iter().position(|&b| b == b';').unwrap_or(content_type.len());
    content_type[..end].trim_ascii().eq_ignore_ascii_case(b"multipart/byteranges")
}

/// Parses `Age`: the first member of a list counts; an invalid number is ignored (§5.1).
fn age(value: &[u8]) -> Seconds {
    let first = value.split(|&b| b == b',').next().unwrap_or(b"");
    seconds(first.trim_ascii()).unwrap_or(0)
}

fn clamp(span: u64) -> Seconds {
    span.min(u64::from(directives::FOREVER)) as Seconds
}

/// Whether the status is cacheable by heuristics (RFC 9110 §15.1).
pub(crate) fn is_heuristic(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Whether this cache implements the caching rules of the status (§3, §5.2.2.3). Excludes 304,
/// which refers to another response, 416, which refers to the range of one request, and 426, which
/// refers to one connection.
pub(crate) fn is_understood(status: u16) -> bool {
    is_heuristic(status)
        || matches!(
            status,
            201..=202
                | 302..=303
                | 307
                | 400..=403
                | 406..=409
                | 411..=413
                | 415
                | 417
                | 421..=422
                | 429
                | 431
                | 500
                | 502..=505
        )
}

/// Whether no cache stores the field (§3.1), or this cache writes it itself. Hop-by-hop fields were
/// removed before.
pub(crate) fn is_dropped(field: &Field<'_>) -> bool {
    const DROPPED: [&[u8]; 6] = [
        b"age",
        b"content-length",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"transfer-encoding",
    ];
    DROPPED.iter().any(|name| field.is_alias(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn with<T>(status: u16, lines: &str, check: impl FnOnce(ResponseMetadata<'_>) -> T) -> T {
        check(ResponseMetadata::read(status, Fields::new(lines.as_bytes()), &Config::default()))
    }

    fn lifetime(status: u16, lines: &str) -> Seconds {
        with(status, lines, |metadata| metadata.lifetime(NOW, &Config::default()))
    }

    fn at(second: u64) -> String {
        String::from_utf8(date::format(second).to_vec()).unwrap()
    }

    #[test]
    fn lifetimes_in_the_order_of_rfc_9111_4_2_1() {
        let expires = format!("Date: {}\r\nExpires: {}\r\n", at(NOW - 5), at(NOW + 95));
        let control = |value: &str| format!("Cache-Control: {value}\r\n{expires}");
        assert_eq!(lifetime(200, &control("max-age=1, s-maxage=2")), 2);
        assert_eq!(lifetime(200, &control("max-age=1")), 1);
        assert_eq!(lifetime(200, &control("public")), 100);
        assert_eq!(lifetime(200, &format!("CDN-Cache-Control: max-age=7\r\n{expires}")), 7);
        assert_eq!(lifetime(200, &format!("CDN-Cache-Control: foo\r\n{expires}")), 0);
        assert_eq!(lifetime(200, &format!("Expires: {}\r\n", at(NOW + 50))), 50);
        assert_eq!(lifetime(500, "Cache-Control: max-age=3\r\n"), 3);
    }

    #[test]
    fn dates_in_any_case_rfc_9111_4_2() {
        let upper = |second| at(second).to_ascii_uppercase();
        assert_eq!(lifetime(200, &format!("Expires: {}\r\n", upper(NOW + 50))), 50);
        let date = upper(NOW - 20);
        assert_eq!(lifetime(200, &format!("Date: {date}\r\nExpires: {}\r\n", at(NOW + 50))), 70);
        assert_eq!(lifetime(200, &format!("Last-Modified: {}\r\n", upper(NOW - 1000))), 100);
        // 12 January 1970 was a Monday, but the day of the week is ignored.
        assert_eq!(lifetime(200, "Expires: Thu, 12 Jan 1970 13:47:40 GMT\r\n"), 60);
        assert_eq!(lifetime(200, "Expires: Thu Jan 12 13:47:40 1970\r\n"), 60);
    }

    #[test]
    fn an_invalid_expires_is_in_the_past_rfc_9111_5_3() {
        let changed = format!("Last-Modified: {}\r\n", at(NOW - 1000));
        for value in ["0", "-1", "", "tomorrow", "Thu, 01 Jan 2030 00:00:00 UTC"] {
            assert_eq!(lifetime(200, &format!("{changed}Expires: {value}\r\n")), 0, "{value}");
        }
        let (one, two) = (at(NOW + 50), at(NOW + 60));
        assert_eq!(lifetime(200, &format!("Expires: {one}\r\nExpires: {one}\r\n")), 50);
        assert_eq!(lifetime(200, &format!("Expires: {one}\r\nExpires: {two}\r\n")), 0);
    }

    #[test]
    fn heuristics_of_rfc_9111_4_2_2() {
        let changed = |ago| format!("Date: {}\r\nLast-Modified: {}\r\n", at(NOW), at(NOW - ago));
        for status in [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501] {
            assert_eq!(lifetime(status, &changed(1000)), 100, "{status}");
        }
        for status in [201, 302, 307, 403, 500, 502, 503] {
            assert_eq!(lifetime(status, &changed(1000)), 0, "{status}");
        }
        assert_eq!(lifetime(302, &format!("{}Cache-Control: public\r\n", changed(1000))), 100);
        assert_eq!(lifetime(200, &format!("{}Set-Cookie: a=b\r\n", changed(1000))), 0);
        assert_eq!(lifetime(200, &changed(NOW)), 86_400);
        assert_eq!(lifetime(200, ""), 0);
        let config = Config { negative_lifetime_s: 9, ..Config::default() };
        let negative = |status| {
            ResponseMetadata::read(status, Fields::new(b""), &config).lifetime(NOW, &config)
        };
        assert_eq!([negative(404), negative(410), negative(200), negative(503)], [9, 9, 0, 0]);
    }

    #[test]
    fn age_of_rfc_9111_4_2_3_and_5_1() {
        let age = |lines: &str, delay| with(200, lines, |f| f.initial_age(NOW - delay, NOW));
        assert_eq!(age("", 0), 0);
        assert_eq!(age("", 3), 3);
        assert_eq!(age("Age: 30\r\n", 3), 33);
        assert_eq!(age(&format!("Date: {}\r\nAge: 30\r\n", at(NOW - 100)), 3), 100);
        assert_eq!(age(&format!("Date: {}\r\nAge: 30\r\n", at(NOW + 100)), 0), 30);
        for (value, expected) in [
            ("7200,0", 7200),
            ("0, 7200", 0),
            ("abc", 0),
            ("-7200", 0),
            ("7200.0", 0),
            ("", 0),
            ("99999999999999", directives::FOREVER),
        ] {
            assert_eq!(age(&format!("Age: {value}\r\n"), 0), expected, "{value}");
        }
        assert_eq!(age("Age: 5\r\nAge: 9\r\n", 0), 5);
    }

    #[test]
    fn vary_of_rfc_9110_12_5_5() {
        let varies = |lines: &str| with(200, lines, |metadata| metadata.varies);
        for star in ["*", "*, *", ", *", "*, Foo", "Foo, *", "a b", "\"x\""] {
            assert!(varies(&format!("Vary: {star}\r\n")).by_anything, "{star}");
        }
        assert!(varies("Vary: \r\nVary: *\r\n").by_anything);
        assert!(varies("Vary: a, X-Forwarded-For\r\n").by_anything);
        let named = varies("Vary: b, A,,B\r\nVary: c\r\n");
        assert!(!named.by_anything);
        assert_eq!(named.names, [b"a", b"b", b"c"]);
        // Regression: there was no limit.
        let many = |count: usize| (0..count).map(|n| format!("x{n}")).collect::<Vec<_>>().join(",");
        assert!(!varies(&format!("Vary: {}\r\n", many(VARY_NAMES_MAX))).by_anything);
        assert!(varies(&format!("Vary: {}\r\n", many(VARY_NAMES_MAX + 1))).by_anything);
    }
}
