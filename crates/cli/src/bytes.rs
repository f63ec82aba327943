//! Sizes on the command line.

use pollux_server::config::Size;

/// Parses `64M`, `512K`, `2G`, also `64MiB`, or a plain number of bytes, as a configuration file does.
/// The units are powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    text.parse().map(|Size(bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("64M", 64 << 20), ("2GiB", 2 << 30), ("1k", 1024), ("5B", 5)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1.5M", "3 parsecs", "99999999999G"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
