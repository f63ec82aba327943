//! The command line in a real terminal of 80×24 (a pty), with and without colour, and without a
//! terminal.

use crate::load_server::Server;
use std::{
    fs,
    io::Read,
    net::TcpListener,
    num::NonZero,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

const COLUMNS: u16 = 80;
const ROWS: u16 = 24;
/// If a command prints nothing for this time, it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a terminal without a scrollback buffer.
fn parser(rows: u16) -> vt100::Parser {
    let size = |number| NonZero::new(number).expect("a terminal has rows and columns");
    vt100::Parser::new(size(rows), size(COLUMNS), 0)
}

/// The output of a command on its terminal.
struct TerminalOutput {
    bytes: Vec<u8>,
    status: ExitStatus,
}

impl TerminalOutput {
    /// Returns the whole output as rows of the terminal, up to the last row with text.
    fn rows(&self) -> Vec<String> {
        let (screen, _) = self.screen();
        let rows: Vec<String> = screen.rows(0, COLUMNS).map(|row| row.trim_end().into()).collect();
        let used = rows.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1);
        rows[..used].to_vec()
    }

    /// Returns the rows that were too wide and continue in the next row.
    fn wrapped(&self) -> Vec<String> {
        let (screen, height) = self.screen();
        let rows: Vec<String> = screen.rows(0, COLUMNS).collect();
        let wrapped = (0..height).filter(|&row| screen.row_wrapped(row));
        wrapped.map(|row| rows[usize::from(row)].clone()).collect()
    }

    /// Returns a screen that is high enough for the whole output.
    fn screen(&self) -> (vt100::Screen, u16) {
        let lines = self.bytes.iter().filter(|&&byte| byte == b'\n').count();
        let height = u16::try_from(2 * lines + 24).expect("a text of a few pages");
        let mut parser = parser(height);
        parser.process(&self.bytes);
        (parser.screen().clone(), height)
    }

    fn text(&self) -> String {
        self.rows().join("\n")
    }

    fn has_escapes(&self) -> bool {
        self.bytes.contains(&0x1b)
    }

    /// Returns whether the output contains colours: `ESC [ … m`.
    fn has_colours(&self) -> bool {
        self.bytes.split(|&byte| byte == 0x1b).skip(1).any(|sequence| {
            let end = sequence.iter().position(|byte| byte.is_ascii_alphabetic());
            sequence.first() == Some(&b'[') && end.is_some_and(|end| sequence[end] == b'm')
        })
    }
}

/// The environment variables that decide about colours.
const DECIDING: [&str; 8] =
    ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM", "COLUMNS", "CI", "RUST_LOG", "LINES"];

/// Runs `pollux` with all of its streams on a terminal. `seen` is called with all output so far at
/// each piece that arrives; when it returns true, the process is sent SIGINT.
fn on_terminal(
    arguments: &[&str],
    environment: &[(&str, &str)],
    mut seen: impl FnMut(&[u8]) -> bool,
) -> TerminalOutput {
    let (mut pty, terminal) = pty_process::blocking::open().unwrap();
    pty.resize(pty_process::Size::new(ROWS, COLUMNS)).unwrap();
    let mut command =
        pty_process::blocking::Command::new(env!("CARGO_BIN_EXE_pollux")).args(arguments);
    for name in DECIDING {
        command = command.env_remove(name);
    }
    command = command.env("TERM", "xterm-256color").envs(environment.iter().copied());
    let mut child = command.spawn(terminal).unwrap();
    let (sender, pieces) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut piece = [0; 4096];
        // Reading fails with EIO when no process has the terminal open any more.
        while let Ok(length @ 1..) = pty.read(&mut piece) {
            if sender.send(piece[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut bytes = Vec::new();
    let mut is_interrupted = false;
    loop {
        match pieces.recv_timeout(PATIENCE) {
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill().unwrap();
                panic!("{arguments:?} hangs: {}", String::from_utf8_lossy(&bytes));
            }
        }
        if seen(&bytes) && !is_interrupted {
            is_interrupted = true;
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
    }
    let status = child.wait().unwrap();
    reader.join().unwrap();
    TerminalOutput { bytes, status }
}

fn shown(arguments: &[&str], environment: &[(&str, &str)]) -> TerminalOutput {
    on_terminal(arguments, environment, |_| false)
}

const COMMANDS: [&[&str]; 12] = [
    &["--help"],
    &["serve", "--help"],
    &["load", "--help"],
    &["idle", "--help"],
    &["lab", "--help"],
    &["lab", "list"],
    &["lab", "run", "--help"],
    &["lab", "wait-cost", "--help"],
    &["doctor"],
    &["doctor", "--help"],
    &["vm", "--help"],
    &["--version"],
];

#[test]
fn no_text_is_wider_than_the_terminal() {
    for arguments in COMMANDS {
        let shown = shown(arguments, &[]);
        assert!(shown.status.success(), "{arguments:?}: {}", shown.text());
        assert!(!shown.rows().is_empty(), "{arguments:?} says nothing");
        assert!(shown.wrapped().is_empty(), "{arguments:?}: {:#?}", shown.wrapped());
    }
}

#[test]
fn no_mistake_is_answered_wider_than_the_terminal() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["lab", "run", "idel"], 2, "did you mean 'idle'?"),
        (&["serve", ".", "--mechanism", "kqueue"], 2, "uring-poll"),
        (&["serve", ".", "--json", "--access-log", "-"], 2, "would both write"),
        (&["lab", "run", "idle", "--paper-rates"], 2, "leave --paper-rates out"),
        (&["lod"], 2, "'load'"),
        (&["serve", ".", "--listen", &address], 1, "is held by"),
    ];
    for (arguments, status, words) in cases {
        let shown = shown(arguments, &[]);
        assert_eq!(shown.status.code(), Some(status), "{arguments:?}: {}", shown.text());
        assert!(shown.text().contains(words), "{arguments:?}: {}", shown.text());
        assert!(shown.wrapped().is_empty(), "{arguments:?}: {:#?}", shown.wrapped());
    }
}

#[test]
fn the_check_of_widths_can_fail() {
    let status = Command::new("true").status().unwrap();
    let of = |bytes: String| TerminalOutput { bytes: bytes.into_bytes(), status };
    assert_eq!(of(format!("{}\r\n", "x".repeat(81))).wrapped().len(), 1);
    assert!(of(format!("{}\r\n", "x".repeat(80))).wrapped().is_empty());
    assert!(of(format!("\x1b[1m{}\x1b[0m\r\n", "µ".repeat(80))).wrapped().is_empty());
}

/// Returns the help, an error, the output of the doctor, and the log lines of a server that is
/// stopped.
fn painted(environment: &[(&str, &str)]) -> Vec<TerminalOutput> {
    let site = tempfile::tempdir().unwrap();
    let site = site.path().to_str().unwrap();
    let is_up = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("127.0.0.1:");
    let serve = ["serve", site, "--listen", "127.0.0.1:0"];
    let shown = vec![
        shown(&["--help"], environment),
        shown(&["lod"], environment),
        shown(&["doctor"], environment),
        on_terminal(&serve, environment, is_up),
    ];
    assert_eq!(shown[3].status.code(), Some(0), "{}", shown[3].text());
    shown
}

#[test]
fn a_terminal_gets_colours() {
    for shown in painted(&[]) {
        assert!(shown.has_colours(), "{}", shown.text());
    }
}

#[test]
fn nothing_is_painted_where_no_colour_is_wanted() {
    for setting in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
        for shown in painted(&[setting]) {
            assert!(!shown.has_escapes(), "{setting:?}: {}", shown.text());
        }
    }
    // A setting that enables colours does not make a dumb terminal capable of them.
    for setting in [("CLICOLOR", "1"), ("CI", "true")] {
        for shown in painted(&[("TERM", "dumb"), setting]) {
            assert!(!shown.has_escapes(), "{setting:?}: {}", shown.text());
        }
    }
}

#[test]
fn a_pipe_gets_neither_colours_nor_progress() {
    let directory = experiment();
    let runs = [
        vec!["--help"],
        vec!["lod"],
        vec!["doctor"],
        vec!["lab", "list"],
        vec!["lab", "run", "tiny.toml", "--quick", "--out", "out"],
    ];
    for arguments in runs {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
        command.args(&arguments).current_dir(directory.path()).stdin(Stdio::null());
        for name in DECIDING {
            command.env_remove(name);
        }
        let output = command.env("TERM", "xterm-256color").output().unwrap();
        let all = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&all);
        assert!(!all.contains(&0x1b) && !all.contains(&b'\r'), "{arguments:?}: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{arguments:?}: {text}");
        assert!(!text.contains(" left "), "{arguments:?}: {text}");
    }
}

const TINY: &str = r#"
id = "tiny"
title = "A tiny experiment"
source = "this test"
summary = "One mechanism."
workload = "6-kb"
[load]
requests-per-connection = 1
max-lag = "10s"
[[variant]]
name = "edge"
mechanism = "epoll-et"
[[axis]]
name = "idle"
label = "idle connections"
values = [0, 20]
[rate]
fractions = [0.1]
saturation-connections = 4
[quick.budget]
blocks = 1
min-window-seconds = 0.3
max-window-seconds = 0.3
saturation-seconds = 0.3
[[figure]]
id = "cpu"
title = "CPU"
x = "idle"
y = "server_cpu_us_per_request"
in-terminal = true
"#;

fn experiment() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("tiny.toml"), TINY).unwrap();
    directory
}

fn run_in(directory: &Path, environment: &[(&str, &str)]) -> (TerminalOutput, bool) {
    let file = directory.join("tiny.toml");
    let out = directory.join("out");
    let arguments =
        ["lab", "run", file.to_str().unwrap(), "--quick", "--out", out.to_str().unwrap()];
    let mut had_progress = false;
    let started_at = Instant::now();
    let shown = on_terminal(&arguments, environment, |bytes| {
        let mut parser = parser(ROWS);
        parser.process(bytes);
        had_progress |= parser.screen().contents().contains(" left ");
        false
    });
    assert!(shown.status.success(), "after {:?}: {}", started_at.elapsed(), shown.text());
    (shown, had_progress)
}

#[test]
fn a_terminal_sees_progress_which_is_gone_at_the_end() {
    let directory = experiment();
    let (shown, had_progress) = run_in(directory.path(), &[]);
    assert!(had_progress, "{}", String::from_utf8_lossy(&shown.bytes));
    let text = shown.text();
    assert!(!text.contains(" left ") && text.contains("report    "), "{text}");
    assert!(shown.rows().iter().any(|row| row.contains("idle 20")), "{text}");
}

/// As in `pollux doctor --json | head -1`.
#[test]
fn a_reader_that_closes_the_pipe_is_no_error() {
    let server = Server::good("hello");
    let (url, address) = (server.url("/x").to_string(), server.address.to_string());
    let load = |format| {
        let run = ["load", &url, "-n", "3", "-c", "1", "--max-lag", "1h", "--max-starved", "100%"];
        [&run[..], format].concat()
    };
    let (json, text) = (load(&["--json"]), load(&[]));
    let commands: [&[&str]; 8] = [
        &["doctor"],
        &["doctor", "--json"],
        &["config", "schema"],
        &["generate", "completions", "bash"],
        &["lab", "list"],
        &json,
        &text,
        &["idle", &address, "-c", "1", "-z", "10ms", "--json"],
    ];
    for command in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut pollux = Command::new(env!("CARGO_BIN_EXE_pollux"));
        let output = pollux.args(command).stdout(writer).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{command:?}: {stderr}");
    }
}

#[test]
fn a_dumb_terminal_sees_no_progress() {
    let directory = experiment();
    let (shown, had_progress) = run_in(directory.path(), &[("TERM", "dumb")]);
    assert!(!had_progress && !shown.has_escapes(), "{}", shown.text());
}

/// Regression test: a help that could not be written once had exit status 0.
#[test]
fn a_help_that_cannot_be_written_is_an_error() {
    let run = |arguments: &[&str], output: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
        command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for arguments in
        [&["--help"][..], &["load", "--help"], &["lab", "-h"], &["help", "push"], &["-V"]]
    {
        let full = fs::File::create("/dev/full").unwrap();
        let (code, error) = run(arguments, full.into());
        assert_eq!(code, Some(1), "{arguments:?}: {error}");
        assert!(error.starts_with("pollux: standard output: "), "{arguments:?}: {error}");
        // As in `pollux --help | head -1`.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(run(arguments, writer.into()), (Some(0), String::new()), "{arguments:?}");
    }
}
