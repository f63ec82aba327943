//! Threads of the server, and their ends.

use super::{BINARY, LAST, site, stop};
use pollux_testkit::serve::Serve;
use std::{fs, process::Command};

/// Replaces the C library's function, and ends a program that calls it.
const NO_DETACH: &str = r"
#include <pthread.h>
#include <stdlib.h>

int pthread_detach(pthread_t thread)
{
    (void)thread;
    abort();
}
";

/// Regression: the thread of each connection was detached while it ran, and about one in a million
/// ended the server with SIGSEGV: glibc's pthread_detach(3) reads the thread's memory after the thread
/// may have ended.
#[test]
fn no_thread_is_detached_while_it_may_end() {
    let site = site(0);
    let directory = tempfile::tempdir().unwrap();
    let (source, library) = (directory.path().join("detach.c"), directory.path().join("detach.so"));
    fs::write(&source, NO_DETACH).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(cc.status().unwrap().success(), "{cc:?}");

    let mut command = Command::new(BINARY);
    command.arg("serve").arg(site.path()).args(["--json", "--listen", "127.0.0.1:0"]);
    command.args(["--architecture", "threaded"]).env("LD_PRELOAD", &library);
    let server = Serve::start_command(command);
    for _ in 0..20 {
        let mut client = server.client();
        client.send(LAST);
        assert_eq!(client.reply().text(), "hello");
    }
    assert_eq!(stop(server)["requests"], 20);
}
