//! The services that need event loops, as errors of the other architectures; and services that cannot be
//! together.

use super::{ALL, BINARY};
use pollux_testkit::serve::describe;
use std::{fs, process::Command};

/// Runs the program, which must refuse its arguments. Returns its error output.
fn refusal(arguments: &[&str]) -> String {
    let output = Command::new("timeout").arg("20").arg(BINARY).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    assert!(matches!(code, Some(1 | 2)), "{arguments:?}: {}: {stderr}", describe(output.status));
    stderr
}

#[test]
fn only_event_loops_have_origins_a_cache_hand_overs_and_a_hub() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.toml");
    for architecture in ALL.into_iter().filter(|name| *name != "event") {
        for (name, flags, text) in [
            ("origin", &["--origin", "http://a"][..], "[[site]]\norigin = [\"http://a\"]"),
            ("handover", &["--handover", "unix:/x"], "[[site]]\nhandover = [\"unix:/x\"]"),
            (
                "cache",
                &["--origin", "http://a", "--cache", "1M"],
                "[[site]]\norigin = [\"http://a\"]\ncache = \"1M\"",
            ),
            (
                "hub",
                &["--hub", "--hub-anonymous", "--hub-publish-anonymous"],
                "[hub]\nanonymous = true\npublish-anonymous = true",
            ),
        ] {
            let words = [
                format!("{architecture} serves files and the guestbook only"),
                format!("use the architecture event (--architecture event), or leave out `{name}`"),
            ];
            let arguments = [&["serve", "--architecture", architecture][..], flags].concat();
            let stderr = refusal(&arguments);
            assert!(stderr.contains(&format!("--{name}: ")), "{arguments:?}: {stderr}");
            assert!(words.iter().all(|word| stderr.contains(word)), "{arguments:?}: {stderr}");
            fs::write(&path, format!("architecture = \"{architecture}\"\n{text}\n")).unwrap();
            let stderr = refusal(&["config", "check", path.to_str().unwrap()]);
            assert!(stderr.contains("p.toml:"), "{text:?}: {stderr}");
            assert!(words.iter().all(|word| stderr.contains(word)), "{text:?}: {stderr}");
        }
    }
}

#[test]
fn what_makes_no_sense_together_is_refused() {
    for (arguments, expected) in [
        (&["--origin", "http://a", "--handover", "unix:/x"][..], "forwarded to an origin"),
        (&["--origin", "/a=http://a", "--handover", "/a=unix:/x"], "forwarded to an origin"),
        (&["--handover", "unix:/x", "--handover", "unix:/y"], "already"),
        (&["--handover", "http://a"], "expected unix:PATH"),
        (&["--handover", "unix:/x", "--cache", "1M"], "--origin"),
    ] {
        let stderr = refusal(&[&["serve"][..], arguments].concat());
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}
