//! Descriptors that are not TCP connections. A mechanism may refuse a kind (epoll refuses regular
//! files, RT signals refuse eventfds), with EPERM: it must not accept a descriptor and then report
//! nothing.

use crate::{fixture::Fixture, subject::Subject};
use pollux_event::{Capabilities, Error, Event, Interest, Mechanism, Readiness};
use pollux_testkit::{
    Pair, drain,
    pairs::{self, End, Mailbox},
};
use rustix::io::Errno;
use std::{
    fs::File,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// Adds `fd`, makes it ready twice, and expects an event for each time.
fn check<M: Mechanism>(
    subject: &Subject,
    fd: BorrowedFd<'_>,
    mut make_ready: impl FnMut(),
    mut come_to_rest: impl FnMut(),
) -> Result<(), String> {
    let mut fixture = Fixture::<M>::new(subject);
    let token = match fixture.add(fd, Interest::READ) {
        Ok(token) => token,
        Err(error @ Error::CannotWait { .. }) => {
            assert_eq!(error.raw_os_error(), Some(Errno::PERM.raw_os_error()));
            assert!(fixture.is_empty(), "refused, and yet in the set");
            return Err(format!("refused, as it may be: {error}"));
        }
        Err(error) => panic!("add: {error}"),
    };
    fixture.expect_silence();
    for _ in 0..2 {
        make_ready();
        fixture.expect(token, Readiness::READABLE);
        come_to_rest();
        fixture.expect_silence();
    }
    Ok(())
}

fn check_pair<M: Mechanism>(subject: &Subject, pair: &Pair) -> Result<(), String> {
    let rest = || assert_eq!(drain(&pair.near), (2, End::WouldBlock));
    check::<M>(subject, pair.near.as_fd(), || pair.send(b"xy"), rest)
}

pub fn unix_stream<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    check_pair::<M>(subject, &Pair::unix())
}

pub fn pipe<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    check_pair::<M>(subject, &Pair::pipe())
}

pub fn eventfd<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    let eventfd = pairs::eventfd();
    let write = || assert_eq!(rustix::io::write(&eventfd, &1u64.to_ne_bytes()), Ok(8));
    let rest = || assert_eq!(drain(&eventfd), (8, End::WouldBlock));
    check::<M>(subject, eventfd.as_fd(), write, rest)
}

pub fn datagram<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    let mailbox = Mailbox::new();
    let rest = || assert_eq!(drain(&mailbox.socket).0, 1);
    check::<M>(subject, mailbox.socket.as_fd(), || mailbox.post(), rest)
}

pub fn listener<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    listener.set_nonblocking(true).expect("set O_NONBLOCK");
    let address = listener.local_addr().expect("the listener's address");
    let mut clients = Vec::new();
    check::<M>(
        subject,
        listener.as_fd(),
        || clients.push(TcpStream::connect(address).expect("connect")),
        || drop(listener.accept().expect("accept")),
    )
}

/// "Regular files and directories can be added; they are reported ready at every wait, as poll(2)
/// does. Without it they are refused": by `add`, or at the next wait as an event with ERROR and
/// nothing else, once.
pub fn regular_file<M: Mechanism>(subject: &Subject) {
    always_ready::<M>(subject, tempfile::tempfile().expect("a file"));
}

/// The same holds for devices without a wait queue: a mechanism with edges once reported them at every
/// wait.
pub fn device_without_a_wait_queue<M: Mechanism>(subject: &Subject) {
    always_ready::<M>(subject, File::open("/dev/null").expect("the device"));
}

fn always_ready<M: Mechanism>(subject: &Subject, file: File) {
    let mut fixture = Fixture::<M>::new(subject);
    // Events of the supported descriptors still arrive.
    let pair = Pair::unix();
    let other = fixture.add_near(&pair);
    fixture.expect_silence();

    let added = fixture.add(file.as_fd(), Interest::READ);

    match added {
        Err(error) => {
            assert!(!subject.has(Capabilities::TAKES_FILES), "refused: {error}");
            assert!(matches!(error, Error::CannotWait { .. }), "{error}");
            assert!(error.to_string().contains("regular files"), "{error}");
            assert_eq!(fixture.len(), 1, "refused, and yet in the set");
        }
        Ok(token) if subject.has(Capabilities::TAKES_FILES) => {
            for _ in 0..3 {
                let events = fixture.events_within(Duration::from_secs(20));
                assert_eq!(events, [Event { token, readiness: Readiness::READABLE }]);
            }
            fixture.remove(token).expect("remove");
        }
        Ok(token) => {
            assert!(subject.has(Capabilities::BATCHED_CHANGES), "taken, and not refused at once");
            let events = fixture.events_within(Duration::from_secs(20));
            assert_eq!(events, [Event { token, readiness: Readiness::ERROR }]);
            fixture.expect_silence();
            fixture.remove(token).expect("remove");
        }
    }
    fixture.expect_silence();
    pair.send(b"xy");
    fixture.expect(other, Readiness::READABLE);
}
