//! The examples of README and of the help of `serve`, `load` and `idle` are run as they are written:
//! this test replaces only addresses, paths below /run and durations. (`src/examples.rs` tests that
//! all other examples are accepted.)

#[path = "../../src/examples/shown.rs"]
#[allow(dead_code, reason = "the unit tests alone name where an example stands")]
mod shown;

use pollux_testkit::{http::Client, serve::Serve};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
};

/// How long a generator runs if its example sets another duration, or none.
const LASTS: &str = "500ms";
/// The maximum number of requests or connections of an example.
const MOST: u32 = 200;

/// Returns the examples of `pollux COMMAND` in its help and in README, without the program's name.
fn examples(command: &str) -> Vec<Vec<String>> {
    let help = Command::new(env!("CARGO_BIN_EXE_pollux")).args([command, "--help"]).output();
    let help = String::from_utf8(help.expect("it runs").stdout).expect("help in UTF-8");
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).expect("README.md");
    help.lines()
        .chain(readme.lines())
        .filter_map(|line| shown::shown(command, line))
        .map(|example| example.words[1..].to_vec())
        .filter(|words| words[0] == command)
        .collect()
}

/// Creates a directory with the files that the examples serve.
fn directory() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for site in ["public", "site"] {
        fs::create_dir_all(root.path().join(site).join("a")).expect("a directory");
        for page in ["index.html", "a/page"] {
            fs::write(root.path().join(site).join(page), "hello").expect("a page");
        }
    }
    // The secret that hubs and their publishers share.
    fs::write(root.path().join("key"), "a secret of at least thirty-two bytes").expect("a key");
    root
}

fn start(directory: &Path, words: &[String]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_pollux"))
        .args(words)
        .current_dir(directory)
        .env("HOME", directory)
        .env_remove("XDG_STATE_HOME")
        .env_remove("XDG_DATA_HOME")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started")
}

/// Sets the value of `flag`, or appends the flag with the value.
fn set(words: &mut Vec<String>, flag: &str, value: &str) {
    match words.iter().position(|word| word == flag) {
        Some(at) => words[at + 1] = value.into(),
        None => words.extend([flag.into(), value.into()]),
    }
}

#[test]
fn a_server_of_each_example_answers_and_stops() {
    let examples = examples("serve");
    assert!(examples.len() >= 10, "only {examples:?}");
    for mut words in examples {
        let directory = directory();
        let shown = words.join(" ");
        if shown.contains("site.pem") {
            crate::tls::openssl(directory.path(), "site", "localhost");
        }
        let listen = match words
            .iter()
            .find(|word| word.starts_with([':', '[']) || word.contains("unix:"))
        {
            Some(word) if word.starts_with("unix:") => {
                format!("unix:{}/site.sock", directory.path().display())
            }
            Some(_) => ":0".into(),
            None => "127.0.0.1:0".into(),
        };
        set(&mut words, "--listen", &listen);
        // The directory of the package's service is not there.
        for word in &mut words {
            if let Some(name) = word.strip_prefix("/run/pollux/") {
                *word = name.into();
            }
        }
        // This test reads the address from standard output.
        if let Some(log) = words.iter_mut().find(|word| *word == "-") {
            *log = "access.log".into();
        }
        if !words.iter().any(|word| word == "--json") {
            words.push("--json".into());
        }
        let mut server = start(directory.path(), &words);
        let mut first = String::new();
        let mut stdout = BufReader::new(server.stdout.take().expect("a pipe"));
        stdout.read_line(&mut first).expect("a line");
        let Ok(event) = serde_json::from_str::<serde_json::Value>(&first) else {
            let output = server.wait_with_output().expect("it ends");
            panic!("{shown}: {}", String::from_utf8_lossy(&output.stderr));
        };
        assert_eq!(event["event"], "listening", "{shown}: {event}");
        let address = event["addresses"][0].as_str().expect("an address");
        // No server runs at the addresses of the examples' origins, and this client does not support
        // TLS.
        let has_files = !words[1].starts_with("--") && !shown.contains("--tls");
        if has_files && !address.starts_with("unix:") {
            assert_eq!(Client::connect(address).get("/").text(), "hello", "{shown}");
        }
        kill_process(Pid::from_child(&server), Signal::TERM).expect("it runs");
        let output = server.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{shown}: {output:?}");
    }
}

/// Runs each example of a generator, all at once, against `address`, or against `tls_address` if its
/// URL is `https`.
fn run(command: &str, address: &str, tls_address: &str) -> Vec<(String, Output)> {
    let directory = directory();
    thread::scope(|scope| {
        let run = |mut words: Vec<String>| {
            let shown = words.join(" ");
            for word in &mut words {
                if word.starts_with("https:") {
                    *word = format!("https://{tls_address}/");
                } else if word.contains("127.0.0.1:8080") {
                    *word = word.replace("127.0.0.1:8080", address);
                } else if word.contains("127.0.0.1/") {
                    *word = word.replace("127.0.0.1", address);
                } else if word.parse().is_ok_and(|number: u32| number > MOST) {
                    *word = MOST.to_string();
                }
            }
            let flag = if words.iter().any(|word| word == "-z") { "-z" } else { "--duration" };
            if !words.iter().any(|word| word == "-n") {
                set(&mut words, flag, LASTS);
            } else {
                set(&mut words, "-n", "200");
            }
            (shown, start(directory.path(), &words).wait_with_output().expect("it ends"))
        };
        let running: Vec<_> =
            examples(command).into_iter().map(|words| scope.spawn(move || run(words))).collect();
        running.into_iter().map(|thread| thread.join().expect("it ran")).collect()
    })
}

#[test]
fn a_generator_of_each_example_is_answered() {
    let site = directory();
    // A generator that opens all of its connections before it sends is silent on the first ones for
    // some time.
    let arguments = ["--workers", "3", "--header-timeout", "300s", "--keep-alive", "300s"];
    let hub = ["--hub", "--hub-anonymous", "--hub-publish-anonymous"];
    let plain = [&arguments[..], &hub].concat();
    let server = Serve::start(env!("CARGO_BIN_EXE_pollux"), &site.path().join("site"), &plain);
    let over_tls = [&arguments[..], &["--tls", "self-signed"]].concat();
    let over_tls = Serve::start(env!("CARGO_BIN_EXE_pollux"), &site.path().join("site"), &over_tls);
    for (command, at_least) in [("load", 8), ("idle", 3)] {
        let all = run(command, server.address(), over_tls.address());
        assert!(all.len() >= at_least, "only {all:?}");
        for (shown, output) in all {
            // With so many generators at once on two CPUs, a generator may report that it was the
            // bottleneck (3).
            let status = output.status.code();
            assert!(
                status == Some(0) || command == "load" && status == Some(3),
                "{shown}: {status:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(server.stop().0.success());
    assert!(over_tls.stop().0.success());
}
