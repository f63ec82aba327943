//! The output of the guest's init on its virtio port: frames of a kind, a length and a payload.
//! `guest/init.h` is the other side.

use anyhow::bail;

/// The longest payload; `FRAME_PAYLOAD_MAX` in `guest/init.h`.
const PAYLOAD_MAX: usize = 65536;
const HEADER: usize = 5;

/// One message from the guest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The guest is set up and starts the command; the text is its kernel's release.
    Ready(String),
    /// Bytes of the command's standard output.
    Stdout(Vec<u8>),
    /// Bytes of the command's standard error.
    Stderr(Vec<u8>),
    /// The command ended, and all its data is written back; the number is its status, as in a shell.
    Exit(i32),
    /// The guest could not be set up; the text is the reason.
    Fatal(String),
}

/// Reassembles frames from pieces of any size.
#[derive(Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// The next complete frame, if there is one.
    ///
    /// # Errors
    /// The bytes are not frames; the guest's init is not ours, or is broken.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        let Some((header, rest)) = self.bytes.split_at_checked(HEADER) else { return Ok(None) };
        let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if length > PAYLOAD_MAX {
            bail!("the guest sent a frame of {length} bytes, above the limit of {PAYLOAD_MAX}");
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let text = || String::from_utf8_lossy(payload).into_owned();
        let frame = match (header[0], payload) {
            (b'r', _) => Frame::Ready(text()),
            (b'o', _) => Frame::Stdout(payload.to_vec()),
            (b'e', _) => Frame::Stderr(payload.to_vec()),
            (b'f', _) => Frame::Fatal(text()),
            (b'x', &[a, b, c, d]) => Frame::Exit(i32::from_le_bytes([a, b, c, d])),
            (kind, _) => bail!("the guest sent a frame of kind {kind:#x}, which is unknown"),
        };
        self.bytes.drain(..HEADER + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn frames_survive_any_cut() {
        let stream: Vec<u8> = [
            frame(b'r', b"6.1.0-56-amd64"),
            frame(b'o', b"a\0\xff\n"),
            frame(b'e', b""),
            frame(b'x', &137i32.to_le_bytes()),
        ]
        .concat();
        for size in 1..stream.len() {
            let mut decoder = Decoder::default();
            let mut frames = Vec::new();
            for piece in stream.chunks(size) {
                decoder.push(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(
                frames,
                [
                    Frame::Ready("6.1.0-56-amd64".into()),
                    Frame::Stdout(b"a\0\xff\n".to_vec()),
                    Frame::Stderr(Vec::new()),
                    Frame::Exit(137),
                ]
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [frame(b'?', b""), frame(b'x', b"123"), vec![b'o', 0xff, 0xff, 0xff, 0x7f]] {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            assert!(decoder.next().is_err());
        }
    }
}
