//! The corpus of `pollux_testkit::conformance` where processes serve, which the server's own tests,
//! having threads, cannot fork; and once as the program serves when nobody says how.

use super::{BINARY, PROCESSES, in_each};
use pollux_testkit::{
    conformance::{Segmentation, Site, check},
    serve::Serve,
};

/// Whichever process serves a connection, the replies are the same.
#[test]
fn the_corpus_in_every_architecture_of_processes() {
    let site = Site::make();
    in_each(&PROCESSES, |architecture| {
        let server = Serve::start(BINARY, &site.root(), &["--architecture", architecture]);
        assert_eq!(server.listening()["architecture"], architecture);
        for pieces in [Segmentation::Whole, Segmentation::Halves] {
            check(server.address(), pieces, &format!("{architecture}, {pieces:?}"));
        }
    });
}

/// What people run is what is held to it elsewhere.
#[test]
fn the_corpus_as_the_program_serves_by_default() {
    let site = Site::make();
    let server = Serve::start(BINARY, &site.root(), &[]);
    check(server.address(), Segmentation::Whole, "pollux serve");
}
