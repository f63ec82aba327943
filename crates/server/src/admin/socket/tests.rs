use super::*;
use crate::admin::protocol::{ControlRequest, What};
use crate::admin::stores::Stores;
use pollux_cache::{Config, Store};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const PATIENCE: Duration = Duration::from_secs(60);

fn started(path: &Path) -> anyhow::Result<Operator> {
    let store = Store::new(Config::default());
    Operator::start(path, Stores::shared(vec![store]), None)
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn say(&mut self, bytes: &[u8]) {
        let _ = self.0.get_mut().write_all(bytes);
    }

    fn event(&mut self) -> Option<ControlEvent> {
        let mut line = String::new();
        if let Err(error) = self.0.read_line(&mut line) {
            // The server has closed the connection without reading everything.
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    fn request(&mut self, request: &ControlRequest) -> Vec<ControlEvent> {
        let line = serde_json::to_string(request).unwrap() + "\n";
        self.say(line.as_bytes());
        let mut events = Vec::new();
        loop {
            events.push(self.event().unwrap());
            if matches!(events.last(), Some(ControlEvent::End { .. } | ControlEvent::Error { .. }))
            {
                return events;
            }
        }
    }
}

#[test]
fn its_owner_alone_may_open_it_and_it_goes_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    // The file of a dead server is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let operator = started(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let message = format!("{:#}", started(&path).unwrap_err());
    assert!(
        message.contains("--control") && message.contains("a running server listens"),
        "{message}"
    );
    assert!(path.exists(), "a refusal takes nothing away");
    drop(operator);
    assert!(!path.exists());
    // A server does not remove the file that another server has put there meanwhile.
    let operator = started(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let other = started(&path).unwrap();
    drop(operator);
    assert_eq!(Client::new(&path).request(&ControlRequest::Statistics {}).len(), 2);
    drop(other);
}

/// If several servers start at the same time on a dead server's file, one gets it, and no other one
/// removes it again.
#[test]
fn of_servers_that_start_at_once_one_has_the_socket() {
    const SERVERS: usize = 4;
    let directory = tempfile::tempdir().unwrap();
    for round in 0..50 {
        let path = directory.path().join(round.to_string());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let together = std::sync::Barrier::new(SERVERS);
        let servers: Vec<_> = thread::scope(|scope| {
            let start = || {
                together.wait();
                started(&path)
            };
            let threads: Vec<_> = (0..SERVERS).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let running = servers.iter().filter(|server| server.is_ok()).count();
        assert_eq!(running, 1, "round {round}");
        assert_eq!(
            Client::new(&path).request(&ControlRequest::Statistics {}).len(),
            2,
            "round {round}"
        );
        for error in servers.into_iter().filter_map(Result::err) {
            let message = format!("{error:#}");
            assert!(message.contains("a running server listens"), "{message}");
        }
        assert!(!path.exists(), "round {round}: it goes with its server");
    }
}

/// A lock on the directory that another program holds does not prevent a server from starting.
#[test]
fn a_directory_that_is_locked_for_long_is_used_nevertheless() {
    let directory = tempfile::tempdir().unwrap();
    let lock = fs::File::open(directory.path()).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared).unwrap();
    let path = directory.path().join("control");
    let _operator = started(&path).unwrap();
    assert_eq!(Client::new(&path).request(&ControlRequest::Statistics {}).len(), 2);
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    fs::write(&path, "precious").unwrap();
    let message = format!("{:#}", started(&path).unwrap_err());
    assert!(message.contains("is no socket"), "{message}");
    assert!(listener::unix(&path, 1).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn several_requests_and_what_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let _operator = started(&path).unwrap();
    let mut client = Client::new(&path);
    let is_bad = |event: Option<ControlEvent>| {
        matches!(event, Some(ControlEvent::Error { kind: ErrorKind::BadRequest, .. }))
    };
    client.say(b"nonsense\n{\"command\":\"dance\"}\n");
    assert!(is_bad(client.event()) && is_bad(client.event()));
    let all = client.request(&ControlRequest::Purge { what: What::All });
    assert_eq!(all, [ControlEvent::Purged { responses: 0 }, ControlEvent::End { count: 1 }]);
    let shown = client.request(&ControlRequest::Show { url: "http://a/".into() });
    assert!(
        matches!(shown[..], [ControlEvent::Error { kind: ErrorKind::NotStored, .. }]),
        "{shown:?}"
    );
    let shown = client.request(&ControlRequest::Show { url: "ftp://a/".into() });
    assert!(
        matches!(shown[..], [ControlEvent::Error { kind: ErrorKind::BadRequest, .. }]),
        "{shown:?}"
    );
    client.say(&vec![b' '; REQUEST_MAX as usize + 10]);
    assert!(is_bad(client.event()));
    assert_eq!(client.event(), None);
}

#[test]
fn silent_clients_do_not_delay_others_up_to_a_limit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let _operator = started(&path).unwrap();
    let mut silent: Vec<_> = (1..CLIENTS_MAX).map(|_| Client::new(&path)).collect();
    // A client that has an answer has been accepted.
    silent.iter_mut().for_each(|client| drop(client.request(&ControlRequest::Statistics {})));
    let mut last = Client::new(&path);
    assert_eq!(last.request(&ControlRequest::List { prefix: String::new(), limit: None }).len(), 1);
    let event = Client::new(&path).event();
    assert!(matches!(event, Some(ControlEvent::Error { kind: ErrorKind::Busy, .. })), "{event:?}");
    drop(silent);
    pollux_testkit::wait_until("room for another client", || {
        let events = Client::new(&path).request(&ControlRequest::Statistics {});
        !matches!(events[..], [ControlEvent::Error { .. }])
    });
}
