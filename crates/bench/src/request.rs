//! Repeats parts of a request, so that their instructions can be counted:
//!
//! ```text
//! cargo build --release --bin pollux-bench
//! for n in 1000 2000; do
//!   valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/pollux-bench request wrk $n
//! done
//! ```
//!
//! The difference of the two counts, divided by 1000, is the cost of one repetition, exactly. (A request as a whole,
//! system calls and all, is counted in a guest: `crates/cli/tests/suite/instructions.rs`.)

use pollux_http::{
    Limits, Status,
    date::DateCache,
    path::SafePath,
    reply::Decoder,
    request::{self, HeadParser, ParseStatus, Version},
    response::Head,
};
use std::hint::black_box;

const WRK: &[u8] = b"GET /1.html HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

const BROWSER: &[u8] = b"GET /assets/app.js?v=3 HTTP/1.1\r\nHost: www.example.org\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
Referer: https://www.example.org/index.html\r\nConnection: keep-alive\r\n\
Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
Upgrade-Insecure-Requests: 1\r\nSec-Fetch-Dest: document\r\nSec-Fetch-Mode: navigate\r\n\
Sec-Fetch-Site: same-origin\r\nIf-None-Match: \"5f3e-1a2b3c\"\r\nPriority: u=0, i\r\n\r\n";

const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: pollux\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
Content-Type: text/html\r\nContent-Length: 1\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
ETag: \"5f3e-1\"\r\nAccept-Ranges: bytes\r\n\r\nx";

fn parse(text: &[u8]) {
    let Ok(ParseStatus::Complete { request, len }) =
        request::parse(black_box(text), black_box(&Limits::DEFAULT))
    else {
        panic!("the request is whole and valid");
    };
    black_box((&request, len));
}

fn parse_bytewise(text: &[u8]) {
    let mut resume = HeadParser::new();
    for end in 1..=text.len() {
        black_box(resume.parse(&text[..end], &Limits::DEFAULT)).expect("the request is valid");
    }
}

fn write_head(out: &mut Vec<u8>, date: &DateCache) {
    out.clear();
    Head::new(out, Status::Ok)
        .lines(b"Server: pollux\r\n")
        .date(date)
        .lines(black_box(b"Content-Type: text/html\r\nETag: \"5f3e-1\"\r\n"))
        .content_length(black_box(6144))
        .connection(true, Version::Http11)
        .end();
    black_box(&out[..]);
}

/// One part of a request, repeated, so that callgrind counts its instructions
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Part to repeat
    part: RequestPart,
    /// Number of repetitions
    times: u32,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RequestPart {
    /// Parsing the short request of a generator
    Wrk,
    /// Parsing the long one of a browser
    Browser,
    /// Parsing a request with 40 fields
    Many,
    /// Parsing a browser's request that arrives byte by byte
    Bytewise,
    /// Writing the head of a reply
    Head,
    /// Cleaning a path
    Path,
    /// Parsing a reply
    Reply,
}

/// Repeats the chosen part.
pub(crate) fn repeat(options: &Options) {
    let date = DateCache::new(784_111_777);
    let mut out = Vec::with_capacity(1024);
    let mut scratch = Vec::new();
    let mut decoder = Decoder::new();
    let fields: String = (0..40).map(|i| format!("X-Field-{i}: value {i}\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes();
    for _ in 0..options.times {
        match options.part {
            RequestPart::Wrk => parse(WRK),
            RequestPart::Browser => parse(BROWSER),
            RequestPart::Many => parse(&many),
            RequestPart::Bytewise => parse_bytewise(BROWSER),
            RequestPart::Head => write_head(&mut out, &date),
            RequestPart::Path => {
                black_box(SafePath::new(black_box(b"/assets/app.js"), &mut scratch))
                    .expect("the path is plain");
            }
            RequestPart::Reply => {
                decoder.begin(false);
                black_box(decoder.feed(black_box(REPLY))).expect("the reply is valid");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    /// Each part panics if its sample text is invalid.
    #[test]
    fn every_part_can_be_repeated() {
        for &part in RequestPart::value_variants() {
            repeat(&Options { part, times: 3 });
        }
    }
}
