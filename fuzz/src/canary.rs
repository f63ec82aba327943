//! A deliberate fault. A fuzzer that does not see the branches of the program cannot guess six bytes in ten seconds.

/// Fails on the input `POLLUX`.
pub fn check(data: &[u8]) {
    let mut matched = 0;
    for (byte, wanted) in data.iter().zip(b"POLLUX") {
        if byte != wanted {
            return;
        }
        matched += 1;
    }
    assert!(matched < 6, "the canary is found, as it must be");
}
