//! The corpus of `pollux_testkit::conformance` in the architectures with processes: the server's own
//! tests have threads, and so must not fork. The corpus is also run once with the program's default
//! settings.

use super::{BINARY, PROCESSES, in_each};
use pollux_testkit::{
    conformance::{Segmentation, Site, check},
    serve::Serve,
};

/// The replies do not depend on the process that serves a connection.
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

/// The default settings of the program must pass the same corpus as the configurations of the other
/// tests.
#[test]
fn the_corpus_as_the_program_serves_by_default() {
    let site = Site::make();
    let server = Serve::start(BINARY, &site.root(), &[]);
    check(server.address(), Segmentation::Whole, "pollux serve");
}
