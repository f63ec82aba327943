//! Histograms of times in nanoseconds: their bounds, and their form in messages between ranks.
//!
//! The form is their own compact one, HdrHistogram V2; a field has it with
//! `#[serde(with = "crate::histogram")]`.

use hdrhistogram::{
    Counter, Histogram,
    serialization::{Deserializer as Reader, Serializer as _, V2Serializer},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

/// The longest time that is distinguished, an hour; longer times count as this.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

/// The resolution of times: three significant digits, 0.1 %.
const SIGNIFICANT_DIGITS: u8 = 3;

/// An empty histogram of times in nanoseconds.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS).expect("the bounds are valid")
}

pub(crate) fn serialize<T: Counter, S: Serializer>(
    histogram: &Histogram<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(histogram, &mut bytes).map_err(ser::Error::custom)?;
    bytes.serialize(to)
}

pub(crate) fn deserialize<'de, T: Counter, D: Deserializer<'de>>(
    from: D,
) -> Result<Histogram<T>, D::Error> {
    let bytes = Vec::<u8>::deserialize(from)?;
    Reader::new().deserialize(&mut &bytes[..]).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_keeps_every_count() {
        #[derive(Serialize, Deserialize)]
        struct Whole(#[serde(with = "crate::histogram")] Histogram<u64>);
        let mut before = histogram();
        for value in (0..5_000_000).step_by(777) {
            before.saturating_record(value);
        }
        let bytes = postcard::to_stdvec(&Whole(before.clone())).unwrap();
        let Whole(after) = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(before, after);
    }
}
