//! HTTP dates (RFC 9110 §5.6.7) from and to Unix seconds.

use crate::syntax::decimal;
use std::{
    io::Write,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// 9999-12-31 23:59:59, the last second that the format can express.
const LAST_SECOND: u64 = 253_402_300_799;

/// The length of an IMF-fixdate.
pub const LEN: usize = 29;

/// Formats `unix_second` as an IMF-fixdate: `Sun, 06 Nov 1994 08:49:37 GMT`.
///
/// A second after the year 9999 is formatted as the last second of that year.
pub fn format(unix_second: u64) -> [u8; LEN] {
    let time = UNIX_EPOCH + Duration::from_secs(unix_second.min(LAST_SECOND));
    let mut text = [b' '; LEN];
    // The date has exactly 29 bytes, so the write cannot fail and fills the array.
    let _ = write!(&mut text[..], "{}", httpdate::HttpDate::from(time));
    text
}

/// Parses any of the three forms that a recipient must accept: IMF-fixdate, RFC 850, asctime.
/// Returns `None` for anything else and for dates that do not exist. A leap second (`23:59:60`) is
/// the second after it, as in UNIX time. The two digits of a year in RFC 850 mean a year that is at most 50 years
/// after the present one.
///
/// ```
/// use pollux_http::date;
///
/// assert_eq!(date::parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
/// assert_eq!(&date::format(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
/// ```
pub fn parse(text: &[u8]) -> Option<u64> {
    parse_plain(text).or_else(|| parse_leap_second(text))
}

fn parse_plain(text: &[u8]) -> Option<u64> {
    // The form of RFC 850 alone has the full name of the day: the other two forms have a comma or a space here.
    let is_rfc_850 = text.get(3).is_some_and(u8::is_ascii_alphabetic);
    let with_year = if is_rfc_850 { Some(with_full_year(text, this_year())?) } else { None };
    let text = with_year.as_ref().map_or(text, |date| &date[..]);
    let date: httpdate::HttpDate = std::str::from_utf8(text).ok()?.parse().ok()?;
    SystemTime::from(date).duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Returns a date of RFC 850 as an IMF-fixdate. Its year is the one with these two digits that is at most 50 years
/// after `this_year`, and later than 50 years before it (RFC 9110 §5.6.7).
#[cold]
fn with_full_year(text: &[u8], this_year: u64) -> Option<[u8; LEN]> {
    const REST_LEN: usize = "06-Nov-94 08:49:37 GMT".len();
    let comma = text.iter().position(|&b| b == b',')?;
    let day = std::str::from_utf8(&text[..comma]).ok().filter(|day| DAYS.contains(day))?;
    let rest: &[u8; REST_LEN] = text[comma..].strip_prefix(b", ")?.try_into().ok()?;
    let (b"-", b"-") = (&rest[2..3], &rest[6..7]) else { return None };
    let latest = this_year + 50;
    let year = latest - (latest - decimal(&rest[7..9])?) % 100;
    let mut date = [b' '; LEN];
    date[..3].copy_from_slice(&day.as_bytes()[..3]);
    date[3] = b',';
    date[5..7].copy_from_slice(&rest[..2]);
    date[8..11].copy_from_slice(&rest[3..6]);
    // A year before 10000 has four digits, so the write cannot fail.
    write!(&mut date[12..16], "{year:04}").ok()?;
    date[16..].copy_from_slice(&rest[9..]);
    Some(date)
}

/// Returns the present year; in the first hours of a year it may be the last one.
fn this_year() -> u64 {
    /// The mean length of a year of the Gregorian calendar in seconds.
    const YEAR_S: u64 = 31_556_952;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    1970 + now.as_secs() / YEAR_S
}

/// Parses a date in a leap second, which httpdate refuses although the grammar has it.
#[cold]
fn parse_leap_second(text: &[u8]) -> Option<u64> {
    const LEAP: &[u8; 8] = b"23:59:60";
    const BEFORE: &[u8; 8] = b"23:59:59";
    let at = text.windows(LEAP.len()).position(|part| part == LEAP)?;
    let mut buffer = [0; LONGEST];
    let date = buffer.get_mut(..text.len())?;
    date.copy_from_slice(text);
    date[at..at + BEFORE.len()].copy_from_slice(BEFORE);
    parse_plain(date).map(|second| (second + 1).min(LAST_SECOND))
}

/// Returns whether `text` is a date before 1970, which [`parse`] cannot return. A date of RFC 850
/// is never that old, because its year has two digits.
pub fn is_before_1970(text: &[u8]) -> bool {
    /// Dates and their days of the week repeat after this number of years.
    const CYCLE: u64 = 400;
    /// The length of `Sun Nov  6 08:49:37 1994`.
    const ASCTIME_LEN: usize = 24;
    let year = match text.len() {
        LEN => 12..16,
        ASCTIME_LEN => 20..24,
        _ => return false,
    };
    let Some(years) = decimal(&text[year.clone()]).and_then(|number| 1970u64.checked_sub(number))
    else {
        return false;
    };
    // The same date in a later cycle exists if this one does.
    let later = 1970 - years + CYCLE * years.div_ceil(CYCLE);
    let mut buffer = [0; LEN];
    let date = &mut buffer[..text.len()];
    date.copy_from_slice(text);
    // The year has exactly four digits, so the write cannot fail.
    let _ = write!(&mut date[year], "{later}");
    years > 0 && parse(date).is_some()
}

/// Like [`parse`], with the leniency of caches: letters in any case (RFC 9111 §4.2), and any day of
/// the week, since the rest of the date does not depend on it.
pub fn parse_in_any_case(text: &[u8]) -> Option<u64> {
    parse(text).or_else(|| {
        let (day, rest) = text.split_at(text.iter().position(|b| !b.is_ascii_alphabetic())?);
        let is_named = |name: &&str| name.as_bytes().eq_ignore_ascii_case(day);
        let names = [DAYS, DAYS_IN_SHORT].into_iter().find(|names| names.iter().any(is_named))?;
        let mut buffer = [0; LONGEST];
        names.iter().find_map(|name| {
            let date = buffer.get_mut(..name.len() + rest.len())?;
            date[..name.len()].copy_from_slice(name.as_bytes());
            date[name.len()..].copy_from_slice(rest);
            set_case(&mut date[name.len()..]);
            parse(date)
        })
    })
}

/// Restores the case that the grammar requires: `GMT`, and `Nov`.
fn set_case(rest: &mut [u8]) {
    for word in rest.split_mut(|b| !b.is_ascii_alphabetic()) {
        if word.eq_ignore_ascii_case(b"gmt") {
            word.make_ascii_uppercase();
        } else if let [first, rest @ ..] = word {
            first.make_ascii_uppercase();
            rest.make_ascii_lowercase();
        }
    }
}

const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const DAYS_IN_SHORT: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// The length of the longest date: `Wednesday, 09-Nov-94 08:49:37 GMT`.
const LONGEST: usize = 33;

const NAME: &[u8] = b"Date: ";
const LINE_LEN: usize = NAME.len() + LEN + 2;

/// The `Date` field line, formatted once per second.
///
/// It has no clock: the caller passes the time with [`DateCache::update`].
#[derive(Clone, Debug)]
pub struct DateCache {
    unix_second: u64,
    line: [u8; LINE_LEN],
}

impl DateCache {
    /// Creates the line for the given second.
    pub fn new(unix_second: u64) -> Self {
        let mut line = [0; LINE_LEN];
        let (name, rest) = line.split_at_mut(NAME.len());
        name.copy_from_slice(NAME);
        rest[..LEN].copy_from_slice(&format(unix_second));
        rest[LEN..].copy_from_slice(b"\r\n");
        Self { unix_second, line }
    }

    /// Sets the current time. Costs one comparison unless the second has changed.
    #[inline]
    pub fn update(&mut self, unix_second: u64) {
        if unix_second != self.unix_second {
            *self = Self::new(unix_second);
        }
    }

    /// The second that [`DateCache::line`] shows.
    #[inline]
    pub fn unix_second(&self) -> u64 {
        self.unix_second
    }

    /// `Date: … GMT CRLF`.
    #[inline]
    pub fn line(&self) -> &[u8; LINE_LEN] {
        &self.line
    }

    /// The date without field name and CRLF.
    pub fn value(&self) -> &[u8] {
        &self.line[NAME.len()..NAME.len() + LEN]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RFC_EXAMPLE: u64 = 784_111_777;

    #[test]
    fn the_three_forms_of_rfc_9110_5_6_7() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(RFC_EXAMPLE), "{text}");
        }
        assert_eq!(&format(RFC_EXAMPLE), b"Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn invalid_dates_are_rejected() {
        for text in [
            "",
            "0",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "\u{e9}",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(b"\xff"), None);
    }

    #[test]
    fn two_digits_mean_a_year_at_most_50_years_ahead_rfc_9110_5_6_7() {
        let of = |text: &str, this_year| {
            let date = with_full_year(text.as_bytes(), this_year)?;
            Some(String::from_utf8(date.to_vec()).unwrap())
        };
        for (year, this_year, expected) in [
            ("76", 2026, "2076"),
            ("77", 2026, "1977"),
            ("26", 2026, "2026"),
            ("00", 2026, "2000"),
            ("99", 2026, "1999"),
            ("01", 2076, "2101"),
            ("44", 1994, "2044"),
            ("45", 1994, "1945"),
        ] {
            let text = format!("Monday, 30-Nov-{year} 00:00:00 GMT");
            let expected = format!("Mon, 30 Nov {expected} 00:00:00 GMT");
            assert_eq!(of(&text, this_year), Some(expected), "{text} in {this_year}");
        }
        for text in [
            "Monday, 30-Nov-2076 00:00:00 GMT",
            "Monday, 30 Nov 76 00:00:00 GMT",
            "Monday 30-Nov-76 00:00:00 GMT",
            "Day, 30-Nov-76 00:00:00 GMT",
            "Monday, 30-Nov-x6 00:00:00 GMT",
            "Monday, 30-Nov-76 00:00:00 GMT ",
            "Monday",
        ] {
            assert_eq!(of(text, 2026), None, "{text}");
        }
        // 30 November 2050 is a Wednesday; in 1950 it was a Thursday.
        assert_eq!(parse(b"Wednesday, 30-Nov-50 00:00:00 GMT"), Some(2_553_379_200));
        assert_eq!(parse(b"Thursday, 30-Nov-50 00:00:00 GMT"), None);
    }

    /// Regression: a date in a leap second counted as none.
    #[test]
    fn a_leap_second_is_the_one_after_it() {
        const MIDNIGHT: Option<u64> = Some(1_483_228_800);
        for text in [
            "Sat, 31 Dec 2016 23:59:60 GMT",
            "Saturday, 31-Dec-16 23:59:60 GMT",
            "Sat Dec 31 23:59:60 2016",
        ] {
            assert_eq!(parse(text.as_bytes()), MIDNIGHT, "{text}");
            assert_eq!(parse_in_any_case(text.to_ascii_lowercase().as_bytes()), MIDNIGHT, "{text}");
        }
        assert_eq!(parse(b"Fri, 31 Dec 9999 23:59:60 GMT"), Some(LAST_SECOND));
        assert!(is_before_1970(b"Sat, 31 Dec 1966 23:59:60 GMT"));
        for text in [
            "Sat, 31 Dec 2016 23:59:61 GMT",
            "Sat, 31 Dec 2016 23:58:60 GMT",
            "Sat, 31 Dec 2016 22:59:60 GMT",
            "Sun, 31 Dec 2016 23:59:60 GMT",
            "23:59:60",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn caches_read_dates_in_any_case_rfc_9111_4_2() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "SUN, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 NOV 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 gMT",
            "sUNDAY, 06-nov-94 08:49:37 gmt",
            "SUN NOV  6 08:49:37 1994",
            "Thu, 06 Nov 1994 08:49:37 GMT",
            "Wednesday, 06-Nov-94 08:49:37 GMT",
            "Mon Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse_in_any_case(text.as_bytes()), Some(RFC_EXAMPLE), "{text}");
        }
        for text in [
            "",
            "0",
            "Sun",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06-Nov-1994 08:49:37 GMT",
            "Day, 06 Nov 1994 08:49:37 GMT",
            ", 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06 Nov 1994 08:49:37 GMT",
            "Mon, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT and a day that is very long",
            "\u{e9}",
        ] {
            assert_eq!(parse_in_any_case(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_in_any_case(b"Sun, \xff"), None);
    }

    #[test]
    fn formatted_dates_are_parsed_back() {
        for second in [0, 1, 951_782_400, 1_709_164_800, 4_102_444_799, LAST_SECOND] {
            assert_eq!(parse(&format(second)), Some(second));
        }
        assert_eq!(format(u64::MAX), format(LAST_SECOND));
    }

    #[test]
    fn the_cache_follows_the_clock_both_ways() {
        let mut cache = DateCache::new(RFC_EXAMPLE);
        assert_eq!(&cache.line()[..], b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        cache.update(RFC_EXAMPLE + 1);
        assert_eq!(cache.value(), b"Sun, 06 Nov 1994 08:49:38 GMT");
        cache.update(RFC_EXAMPLE);
        assert_eq!(cache.value(), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(cache.unix_second(), RFC_EXAMPLE);
    }
}
