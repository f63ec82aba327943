//! Slow peers, and programs that must not be busy: what takes its time on purpose. Tests wait for
//! everything else by the functions of `wait`.

use std::{
    io::{self, Read, Write},
    thread,
    time::Duration,
};

/// Writes pieces as a slow peer does, with a pause before each. Returns the first error.
pub fn write_slowly(
    mut stream: impl Write,
    pause: Duration,
    pieces: impl IntoIterator<Item = impl AsRef<[u8]>>,
) -> io::Result<()> {
    for piece in pieces {
        // The pace of a slow sender.
        thread::sleep(pause);
        stream.write_all(piece.as_ref())?;
    }
    Ok(())
}

/// Reads to the end as a slow peer does: at most `piece` bytes at a time, with a pause after each.
pub fn read_slowly(mut stream: impl Read, pause: Duration, piece: usize) -> io::Result<Vec<u8>> {
    let (mut received, mut buffer) = (Vec::new(), vec![0; piece]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(received),
            len => received.extend_from_slice(&buffer[..len]),
        }
        // The pace of a slow reader.
        thread::sleep(pause);
    }
}

/// Returns how much `counter` grows within `time`. A program that spins counts very much.
pub fn growth_within(time: Duration, mut counter: impl FnMut() -> u64) -> u64 {
    let before = counter();
    // The time in which a program that spins would count.
    thread::sleep(time);
    counter() - before
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const PAUSE: Duration = Duration::from_millis(2);

    #[test]
    fn slow_peers_transfer_everything_and_take_their_time() {
        let started_at = Instant::now();
        let mut written = Vec::new();
        write_slowly(&mut written, PAUSE, ["ab", "c"]).unwrap();
        assert_eq!(written, b"abc");
        assert_eq!(read_slowly(&b"abcde"[..], PAUSE, 2).unwrap(), b"abcde");
        assert!(started_at.elapsed() >= 5 * PAUSE);
    }

    #[test]
    fn growth_is_that_of_the_time_between() {
        let mut values = [7, 10].into_iter();
        assert_eq!(growth_within(PAUSE, || values.next().unwrap()), 3);
    }
}
