//! Sizes on the command line.

/// Parses `64M`, `512K`, `2G`, also `64MiB`, or a plain number of bytes.
/// The units are powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
        "" => Some(0),
        "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        _ => None,
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .zip(shift)
        .and_then(|(number, shift)| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a size such as 512K, 64M or 2G, or a number of bytes".into())
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
