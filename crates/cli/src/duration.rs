//! Durations on the command line.

use std::time::Duration;

/// Parses `10s`, `500ms`, `1m 30s` (the format of humantime), or a plain number of seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    if let Some(duration) = seconds {
        return Ok(duration);
    }
    humantime::parse_duration(text)
        .map_err(|_| "expected a time such as 10s, 500ms or 2m, or a number of seconds".into())
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
    }
}
