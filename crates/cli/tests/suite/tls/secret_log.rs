//! The file of secrets for Wireshark (`--tls-key-log`).

use super::*;

fn command(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(POLLUX);
    command.arg("serve").arg(directory.path().join("site"));
    command.args(["--json", "--listen", "127.0.0.1:0", "--tls-key-log"]);
    command.arg("--tls-cert").arg(directory.path().join("a.pem"));
    command.arg("--tls-key").arg(directory.path().join("a.key")).args(arguments);
    command
}

/// Regression: workers with a file table of their own, and processes, wrote the secrets to other descriptors, such as
/// the connection to the main thread, and the file stayed empty.
#[test]
fn the_secrets_of_each_handshake_are_in_the_file() {
    let cases: [&[&str]; 4] = [
        &["--workers", "2"],
        &["--architecture", "threaded"],
        &["--architecture", "preforked", "--pool", "2"],
        &["--architecture", "forking"],
    ];
    for arguments in cases {
        let directory = site();
        let file = directory.path().join("secrets");
        let mut command = command(&directory, arguments);
        command.env("SSLKEYLOGFILE", &file);
        let serve = Serve::start_command(command);
        assert_eq!(curl(&directory, &serve, "/", &["--tlsv1.3"]), b"hello\n");
        assert_eq!(curl(&directory, &serve, "/", &["--tls-max", "1.2"]), b"hello\n");
        let text = fs::read_to_string(&file).unwrap();
        for label in ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0", "CLIENT_RANDOM"] {
            let mut lines = text.lines().filter(|line| line.split(' ').next() == Some(label));
            let fields: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
            // The client's random number, and a secret of SHA-256 or the master secret.
            let lens: Vec<_> = fields.iter().skip(1).map(|field| field.len()).collect();
            let secret_len = if label == "CLIENT_RANDOM" { 96 } else { 64 };
            assert_eq!(lens, [64, secret_len], "{arguments:?}: {text}");
            assert_eq!(lines.count(), 0, "{arguments:?}: {text}");
        }
    }
}

#[test]
fn a_file_that_cannot_exist_is_refused_at_the_start() {
    let directory = site();
    let fail = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let mut without = command(&directory, &[]);
    without.env_remove("SSLKEYLOGFILE");
    let text = fail(without);
    assert!(text.contains("--tls-key-log") && text.contains("SSLKEYLOGFILE"), "{text}");
    let mut missing = command(&directory, &[]);
    missing.env("SSLKEYLOGFILE", directory.path().join("missing/secrets"));
    let text = fail(missing);
    assert!(text.contains("missing"), "{text}");
}
