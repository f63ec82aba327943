//! `Range` and `Content-Range`: parts lie within the representation, are together not longer than it, and a field
//! that is written has the same value when it is read again.

use pollux_http::{
    multipart::Multipart,
    range::{MAX_RANGES, Selection, content_range, select},
    response::put_content_range,
};

/// The input is the size of the representation (eight bytes) and the field's value.
pub fn check(data: &[u8]) {
    let Some((size, value)) = data.split_first_chunk::<8>() else { return };
    // No file is longer than the maximum of off_t. Beyond it sums saturate, and the comparison of sizes is meaningless.
    let size = u64::from_le_bytes(*size) & i64::MAX as u64;
    if let Some((range, total)) = content_range(value) {
        assert!(range.first <= range.last && range.last < total, "{range:?} of {total}");
    }
    let Selection::Parts(parts) = select(value, size) else { return };
    let ranges = parts.as_slice();
    assert!((1..=MAX_RANGES).contains(&ranges.len()), "{ranges:?}");
    // The planted fault: the last byte is treated as one beyond the end.
    let end = if crate::planted() { size - 1 } else { size };
    for &range in ranges {
        assert!(range.first <= range.last && range.last < end, "{range:?} of {size}");
        let mut line = Vec::new();
        put_content_range(&mut line, range, size);
        let written = line.strip_prefix(b"Content-Range: ").and_then(|it| it.strip_suffix(b"\r\n"));
        let written = written.unwrap_or_else(|| panic!("a field line: {}", line.escape_ascii()));
        assert_eq!(content_range(written), Some((range, size)));
    }
    let sum: u128 = ranges.iter().map(|range| u128::from(range.len())).sum();
    assert!(sum <= u128::from(size), "{ranges:?} are longer than {size}");

    let multipart = Multipart::new(u128::from(size), b"text/plain", size);
    let mut framing = Vec::new();
    for (at, &range) in ranges.iter().enumerate() {
        multipart.put_part_head(&mut framing, range, at == 0);
    }
    multipart.put_end(&mut framing);
    let announced = u128::from(multipart.content_length(&parts));
    let real = (sum + framing.len() as u128).min(u128::from(u64::MAX));
    assert_eq!(announced, real, "Content-Length of {ranges:?}");
}
