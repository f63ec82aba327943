//! Compression of files at their first request: the choice of the files and codings, and the encoders.
//!
//! A file is compressed once for all workers of a process, and the result is kept in the file cache. Short
//! files are compressed at once. Longer ones are compressed by a thread beside the event loops
//! ([`background`]), and are sent uncompressed until the result is available.

pub(crate) mod background;

use flate2::{Compression, write::GzEncoder};
use pollux_http::accept_encoding::Coding;
use std::io::{self, Write};

/// The minimum length of files that are compressed: with its head, the response with a shorter file fits into
/// one packet without compression.
pub(crate) const FILE_MIN: u64 = 1 << 10;
/// The maximum length of files that are compressed: the results of longer ones would evict everything else
/// from the cache.
pub(crate) const FILE_MAX: u64 = 8 << 20;
/// The maximum length of files that are compressed by the worker that has the request; longer ones would
/// delay its other connections.
pub(crate) const INLINE_MAX: u64 = 8 << 10;
/// A result is used if it saves at least one byte in this many: a smaller gain is not worth a second copy in
/// the cache.
const GAIN: usize = 10;

/// Levels that need about the same time: a result is used many times, but a client waits for the first one.
const ZSTD_LEVEL: i32 = 9;
const BROTLI_LEVEL: u32 = 6;
const GZIP_LEVEL: u32 = 6;
/// The window of brotli as a power of two; every decoder supports it.
const BROTLI_WINDOW: u32 = 22;
/// The number of bytes that the encoder of brotli accumulates before it writes.
const BROTLI_BUFFER: usize = 4096;

/// Returns whether a file of this Content-Type normally becomes shorter. Images, videos, archives and similar
/// files are compressed already.
pub(crate) fn is_compressible(content_type: &str) -> bool {
    const TYPES: [&str; 14] = [
        // What the table of suffixes has for `.otf`.
        "application/font-sfnt",
        "application/javascript",
        "application/json",
        "application/manifest+json",
        "application/rtf",
        "application/vnd.ms-fontobject",
        "application/wasm",
        "application/x-javascript",
        "application/x-ndjson",
        "application/xml",
        "font/otf",
        "font/ttf",
        "image/bmp",
        "image/x-icon",
    ];
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || TYPES.contains(&essence)
}

/// Compresses `bytes`. Returns `None` if the result saves too little. The same bytes always have the same
/// result, so that its entity tag is strong.
///
/// # Errors
/// The encoder cannot allocate memory.
pub(crate) fn compress(coding: Coding, bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let result = match coding {
        Coding::Identity => return Ok(None),
        Coding::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL)?,
        Coding::Brotli => {
            let (level, window) = (BROTLI_LEVEL, BROTLI_WINDOW);
            let mut encoder =
                brotli::CompressorWriter::new(Vec::new(), BROTLI_BUFFER, level, window);
            encoder.write_all(bytes)?;
            encoder.into_inner()
        }
        Coding::Gzip => {
            // The gzip header contains no time and no file name.
            let mut encoder = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
            encoder.write_all(bytes)?;
            encoder.finish()?
        }
    };
    Ok((result.len() <= bytes.len() - bytes.len() / GAIN).then_some(result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn results_decode_to_what_was_there() {
        let text = "a line that is there many times\n".repeat(500);
        for coding in [Coding::Zstd, Coding::Brotli, Coding::Gzip] {
            let packed = compress(coding, text.as_bytes()).unwrap().unwrap();
            assert_eq!(compress(coding, text.as_bytes()).unwrap().unwrap(), packed);
            let mut decoded = Vec::new();
            match coding {
                Coding::Zstd => decoded = zstd::bulk::decompress(&packed, 1 << 20).unwrap(),
                Coding::Brotli => {
                    let mut decoder = brotli::Decompressor::new(&packed[..], 4096);
                    decoder.read_to_end(&mut decoded).map(|_| ()).unwrap();
                }
                _ => {
                    let mut decoder = flate2::read::GzDecoder::new(&packed[..]);
                    decoder.read_to_end(&mut decoded).map(|_| ()).unwrap();
                }
            }
            assert!(decoded == text.as_bytes(), "{}", coding.name());
            let noise: Vec<u8> = (0..4000).map(|_| rand::random()).collect();
            assert_eq!(compress(coding, &noise).unwrap(), None, "{}", coding.name());
        }
    }

    #[test]
    fn what_is_compressed_already_is_left_alone() {
        for name in ["text/html; charset=utf-8", "image/svg+xml", "application/json"] {
            assert!(is_compressible(name), "{name}");
        }
        for name in ["image/png", "application/zip", "video/mp4", "font/woff2", "x"] {
            assert!(!is_compressible(name), "{name}");
        }
    }
}
