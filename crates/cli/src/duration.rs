//! Durations on the command line.

use std::time::Duration;

/// The longest time. It is added to the present instant, and the sum must not overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Parses `10s`, `500ms`, `1m 30s` (the format of humantime), or a plain number of seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    let duration = match seconds {
        Some(duration) => duration,
        None => humantime::parse_duration(text)
            .map_err(|_| "expected a time such as 10s, 500ms or 2m, or a number of seconds")?,
    };
    if duration > LONGEST {
        return Err("at most 100 years".into());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_seconds_and_units_are_understood() {
        assert_eq!(parse("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "-1", "nan", "inf", "ten", "1 fortnight"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("36500days"), Ok(LONGEST));
        for text in ["1e19", "101y"] {
            assert_eq!(parse(text), Err("at most 100 years".into()), "{text}");
        }
    }
}
