//! Changes to a running `pollux serve`: reload, upgrade, and workers that die.

mod guestbook;
mod reload;
mod replacement;
mod sandbox;
mod subscriber;
mod upgrade;

pub(crate) use upgrade::replace_program;

use pollux_testkit::{
    http::{Client, PATIENCE},
    serve::Serve,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, JoinHandle},
};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");

/// A directory with two sites, `a` and `b`, and with the paths of a configuration file and a control
/// socket.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for site in ["a", "b"] {
            let root = folder.path().join(site);
            fs::create_dir(&root).unwrap();
            fs::write(root.join("index.html"), format!("site {site}\n")).unwrap();
            fs::write(root.join("large"), vec![b'l'; 4 << 20]).unwrap();
        }
        Self(folder)
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("pollux.toml")
    }

    fn control(&self) -> PathBuf {
        self.0.path().join("ctl")
    }

    /// Writes the configuration file: `server` has the keys outside of the site, `site` those of the
    /// site.
    fn write(&self, server: &str, site: &str) {
        fs::write(self.config(), format!("{server}\n[[site]]\n{site}\n")).unwrap();
    }

    /// Starts a server with the configuration file.
    fn serve(&self, arguments: &[&str]) -> Serve {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(self.config()).arg("--control").arg(self.control()).args(arguments);
        Serve::start_command(command)
    }

    fn ctl(&self, command: &str) -> Output {
        ctl(&self.control(), command)
    }
}

/// Runs `pollux ctl`.
fn ctl(control: &Path, what: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["120", BINARY, "ctl", "--control"]).arg(control).arg(what);
    command.output().unwrap()
}

/// Returns the output of a command that must have succeeded.
fn printed(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the error message of a command that must have been refused.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Sends a request on an open connection, which must be the same one as before.
fn assert_answers(client: &mut Client, text: &str) {
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, reply.text().as_str()), (200, text));
}

/// Returns a function with which an origin holds a response back, and the sender that releases one response.
fn gate() -> (mpsc::Sender<()>, impl Fn() + Send + Sync + 'static) {
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    (release, move || {
        let _ = released.lock().unwrap().recv_timeout(PATIENCE);
    })
}

/// Clients that send requests: some on a kept connection, some on a new one for each request.
struct Load {
    ends: Arc<AtomicBool>,
    requests: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(address: &str) -> Self {
        let (ends, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let start = |keeps: bool| {
            let (ends, requests) = (ends.clone(), requests.clone());
            let address = address.to_owned();
            thread::spawn(move || {
                let mut client = Client::connect(&address);
                while !ends.load(SeqCst) {
                    if !keeps {
                        client = Client::connect(&address);
                    }
                    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
                    let reply = client.reply();
                    assert!(reply.status == 200 && reply.text().starts_with("site "));
                    assert!(!keeps || reply.field("connection").is_none(), "it is kept");
                    requests.fetch_add(1, SeqCst);
                }
            })
        };
        let threads = [true, true, false].map(start).into();
        Self { ends, requests, threads }
    }

    /// Ends the load, checks that no request has failed, and returns the number of requests.
    fn end(self) -> u64 {
        self.ends.store(true, SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.requests.load(SeqCst)
    }
}
