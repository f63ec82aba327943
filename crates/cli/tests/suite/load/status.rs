//! Exit statuses of runs in which nothing was measured.

use super::{load, text};
use crate::load_server::Server;
use serde_json::Value;

/// Regression test: such a run once had the status of success, because no request of its measured part failed.
#[test]
fn a_server_that_does_not_even_answer_the_warm_up_is_no_success() {
    let server = Server::start(|mut peer| peer.hang());
    let url = server.url("/").to_string();
    let out = load(&[
        &url,
        "--connections",
        "1",
        "--warm-up",
        "200ms",
        "--duration",
        "200ms",
        "--timeout",
        "1s",
        "--json",
    ]);
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(document["requests"]["completed"], 0);
    assert_eq!(out.status.code(), Some(4), "{document}{}", text(&out.stderr));
}
