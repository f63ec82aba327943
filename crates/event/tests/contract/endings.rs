//! Half-close, close, reset, errors.

use crate::{fixture::Fixture, subject::Subject};
use pollux_event::{Capabilities, Interest, Mechanism, Readiness};
use pollux_testkit::{Pair, Port, drain, fill, pairs::End};
use rustix::{
    io::Errno,
    net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt},
};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::fd::OwnedFd,
};

pub fn half_close<M: Mechanism>(subject: &Subject) {
    for pair in [Pair::tcp(), Pair::unix()] {
        let mut fixture = Fixture::<M>::new(subject);
        let token = fixture.add_near(&pair);
        fixture.expect_silence();
        rustix::net::shutdown(&pair.far, Shutdown::Write).expect("shutdown");
        let found = fixture.expect_readable(token);
        assert!(!found.contains(Readiness::ERROR), "{found:?}");
        assert_eq!(drain(&pair.near), (0, End::Closed));
        // The other direction still works.
        assert_eq!(rustix::io::write(&pair.near, b"x"), Ok(1));
        fixture.modify(token, Interest::WRITE).expect("modify");
        fixture.expect_writable(token);
    }
}

/// A program may shut down a connection in one thread to end the reading in another.
pub fn own_shutdown<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    if subject.has(Capabilities::ONE_OWNER) {
        return Err("the kernel sends no signal to the side that shuts down".into());
    }
    for pair in [Pair::tcp(), Pair::unix()] {
        let mut fixture = Fixture::<M>::new(subject);
        let token = fixture.add_near(&pair);
        fixture.expect_silence();
        rustix::net::shutdown(&pair.near, Shutdown::Read).expect("shutdown");
        fixture.expect_readable(token);
        assert_eq!(drain(&pair.near), (0, End::Closed));
    }
    Ok(())
}

pub fn close_by_peer<M: Mechanism>(subject: &Subject) {
    for pair in [Pair::tcp(), Pair::unix()] {
        let mut fixture = Fixture::<M>::new(subject);
        let token = fixture.add_near(&pair);
        fixture.expect_silence();
        drop(pair.far);
        fixture.expect_readable(token);
        assert_eq!(drain(&pair.near), (0, End::Closed));
    }
}

/// Data that was sent before the close can be read, and the close does not hide it.
pub fn data_before_close<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"last words");
    drop(pair.far);
    fixture.expect_readable(token);
    // The FIN may arrive after the event for the data: with edges there is then a second event.
    let (mut taken, mut end) = drain(&pair.near);
    while end == End::WouldBlock {
        fixture.expect_readable(token);
        let more = drain(&pair.near);
        (taken, end) = (taken + more.0, more.1);
    }
    assert_eq!((taken, end), (10, End::Closed));
}

pub fn reset<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.reset_on_close();
    drop(pair.far);
    fixture.expect_readable(token);
    assert_eq!(drain(&pair.near), (0, End::Error(Errno::CONNRESET)));
}

/// "Errors and hang-ups are reported whatever the interest."
pub fn reset_with_empty_interest<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    if subject.has(Capabilities::ERRORS_NEED_INTEREST) {
        return Err("without an interest it does not see errors".into());
    }
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_fd(&pair.near, Interest::empty());
    fixture.expect_silence();
    pair.reset_on_close();
    drop(pair.far);
    fixture.expect(token, Readiness::ERROR | Readiness::HANGUP);
    Ok(())
}

/// The same for pipes, whose signals call a hang-up input and an error room.
pub fn pipe_ends_with_empty_interest<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    if subject.has(Capabilities::ERRORS_NEED_INTEREST) {
        return Err("without an interest it does not see errors".into());
    }
    for reader_stays in [true, false] {
        let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::pipe());
        let (stays, goes, sign) = match reader_stays {
            true => (pair.near, pair.far, Readiness::HANGUP),
            false => (pair.far, pair.near, Readiness::ERROR),
        };
        let token = fixture.add_fd(&stays, Interest::empty());
        fixture.expect_silence();
        drop(goes);
        fixture.expect(token, sign);
    }
    Ok(())
}

fn connecting(to: SocketAddr) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .expect("socket");
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => socket,
        Err(error) => panic!("connect: {error}"),
    }
}

pub fn refused_connection<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let unused = Port::reserve();
    let socket = connecting(unused.address());
    let token = fixture.add_fd(&socket, Interest::WRITE);
    let found = fixture.expect_writable(token);
    assert!(found.is_writable(), "{found:?}");
    assert_eq!(sockopt::socket_error(&socket).expect("SO_ERROR"), Err(Errno::CONNREFUSED));
}

pub fn connection_made<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let socket = connecting(listener.local_addr().expect("the listener's address"));
    let token = fixture.add_fd(&socket, Interest::WRITE);
    fixture.expect(token, Readiness::WRITABLE);
    assert_eq!(sockopt::socket_error(&socket).expect("SO_ERROR"), Ok(()));
}

pub fn pipe_writer_gone<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::pipe());
    let token = fixture.add_near(&pair);
    fixture.expect_silence();
    drop(pair.far);
    fixture.expect_readable(token);
    assert_eq!(drain(&pair.near), (0, End::Closed));
}

pub fn pipe_reader_gone<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::pipe());
    fill(&pair.far);
    let token = fixture.add_fd(&pair.far, Interest::WRITE);
    fixture.expect_silence();
    drop(pair.near);
    fixture.expect_writable(token);
    assert_eq!(rustix::io::write(&pair.far, b"x"), Err(Errno::PIPE));
}
