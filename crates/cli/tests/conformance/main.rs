//! Requests as suites, scanners and attackers send them, against `pollux serve`: a corpus as data
//! and a reader of replies that shares no code with the server.
//!
//! Each case is sent with one more request behind it, which shows whether the server is in step:
//! after `kept` it must be answered, after `closed` it must not, whatever the case made of the
//! octets in between. That is how smuggled requests show.

mod corpus;
mod ends;
mod files;
mod replies;
mod runner;
mod site;

use runner::{Pieces, check};
use site::{Site, serve};
use std::thread;

/// The corpus on each mechanism of this kernel, in both disciplines.
#[test]
fn the_corpus_on_every_mechanism() {
    let site = Site::new();

    let mechanisms = site::mechanisms();
    assert!(mechanisms.len() >= 4, "only {mechanisms:?}");
    thread::scope(|scope| {
        for mechanism in &mechanisms {
            for interest in ["eager", "per-state"] {
                let site = &site;
                scope.spawn(move || {
                    let server = serve(site, &["--mechanism", mechanism, "--interest", interest]);
                    let setting = format!("{mechanism}, {interest}");
                    check(&server, Pieces::Whole, &setting);
                });
            }
        }
    });
}

/// However the octets come, the replies are the same: one octet a segment, and halves.
#[test]
fn the_corpus_in_pieces() {
    let site = Site::new();

    thread::scope(|scope| {
        for interest in ["eager", "per-state"] {
            for mechanism in ["epoll", "epoll-et"] {
                let site = &site;
                scope.spawn(move || {
                    let server = serve(site, &["--mechanism", mechanism, "--interest", interest]);
                    for pieces in [Pieces::Octets, Pieces::Halves] {
                        check(&server, pieces, &format!("{mechanism}, {interest}, {pieces:?}"));
                    }
                });
            }
        }
    });
}

/// Whoever serves a connection, the replies are the same.
#[test]
fn the_corpus_in_every_architecture() {
    let site = Site::new();

    thread::scope(|scope| {
        for architecture in ["iterative", "forking", "preforked", "threaded", "prethreaded"] {
            let site = &site;
            scope.spawn(move || {
                let server = serve(site, &["--architecture", architecture]);
                assert_eq!(server.listening()["architecture"], architecture);
                for pieces in [Pieces::Whole, Pieces::Halves] {
                    check(&server, pieces, &format!("{architecture}, {pieces:?}"));
                }
            });
        }
    });
}

/// No cache, several workers, the other way to send large files: nothing of it may show.
#[test]
fn the_corpus_whatever_the_configuration() {
    let site = Site::new();

    for arguments in [&["--cache-size", "0"][..], &["--workers", "3"], &["--large-file", "cork"]] {
        let server = serve(&site, arguments);
        check(&server, Pieces::Whole, &arguments.join(" "));
    }
}
