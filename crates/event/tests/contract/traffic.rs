//! A peer that reads and writes at the same time: readiness that changes while it is examined.

use crate::{
    fixture::{Fixture, SILENCE, patience},
    subject::Subject,
};
use pollux_event::{Interest, Mechanism, Readiness};
use pollux_testkit::{
    Pair, drain,
    pairs::{Kind, poll_within},
};
use rustix::{event::PollFlags, io::Errno};
use std::{
    io::{Read, Write},
    net::TcpStream,
    os::{fd::OwnedFd, unix::net::UnixStream},
    thread,
    time::{Duration, Instant},
};

/// Answers, each larger than all buffers together.
const ANSWER: usize = 6 << 20;
const ANSWERS: usize = 6;

/// Sends a request, reads the response in pieces, and sends the next request before it has read all.
fn client(mut stream: impl Read + Write) {
    let mut buffer = vec![0; 64 * 1024];
    stream.write_all(b"?").expect("send a request");
    for round in 0..ANSWERS {
        let mut left = ANSWER;
        let mut is_sent = round + 1 == ANSWERS;
        while left > 0 {
            if !is_sent && left < ANSWER / 2 {
                stream.write_all(b"?").expect("send a request");
                is_sent = true;
            }
            let most = buffer.len().min(left);
            left -= match stream.read(&mut buffer[..most]).expect("read a response") {
                0 => panic!("{left} bytes of answer {round} did not come"),
                taken => taken,
            };
        }
    }
}

/// The far end, blocking, which gives up when it makes no progress.
fn far_end(kind: Kind, far: OwnedFd) -> thread::JoinHandle<()> {
    rustix::io::ioctl_fionbio(&far, false).expect("make it blocking");
    let stuck = Some(patience());
    thread::spawn(move || match kind {
        Kind::Tcp => {
            let stream = TcpStream::from(far);
            stream.set_read_timeout(stuck).expect("SO_RCVTIMEO");
            client(stream);
        }
        _ => {
            let stream = UnixStream::from(far);
            stream.set_read_timeout(stuck).expect("SO_RCVTIMEO");
            client(stream);
        }
    })
}

/// The interest follows the state: in reading while a request is awaited, in writing while it is
/// answered. Writes until the write would block.
fn per_state<M: Mechanism>(subject: &Subject, kind: Kind) {
    let Pair { near, far } = Pair::new(kind);
    let mut fixture = Fixture::<M>::new(subject);
    let token = fixture.add_fd(&near, Interest::READ);
    let far = far_end(kind, far);
    let block = vec![0; 256 * 1024];
    let until = Instant::now() + patience() * 2;
    let (mut questions, mut left) = (0, 0);
    while questions < ANSWERS || left > 0 {
        assert!(Instant::now() < until, "stuck: {questions} questions, {left} bytes left");
        let events = fixture.events_within(Duration::from_millis(500));
        for event in events.into_iter().filter(|event| event.token == token) {
            if left == 0 && event.readiness.is_readable() {
                let mut question = [0; 1];
                match rustix::io::read(&near, &mut question) {
                    Ok(1) => (questions, left) = (questions + 1, ANSWER),
                    Ok(_) => panic!("the far end is gone"),
                    Err(error) => assert_eq!(error, Errno::AGAIN),
                }
                if left > 0 {
                    fixture.modify(token, Interest::WRITE).expect("modify");
                }
            } else if left > 0 && event.readiness.contains(Readiness::WRITABLE) {
                while left > 0 {
                    match rustix::io::write(&near, &block[..block.len().min(left)]) {
                        Ok(written) => left -= written,
                        Err(Errno::AGAIN) => break,
                        Err(error) => panic!("write: {error}"),
                    }
                }
                if left == 0 {
                    fixture.modify(token, Interest::READ).expect("modify");
                }
            }
        }
    }
    far.join().expect("the far end got every answer");
}

/// A send that succeeds although the last poll found too little room: the kernel then forgets the
/// waiter (it clears SOCKWQ_ASYNC_NOSPACE), so the set must poll again.
pub fn level_after_a_send_unasked<M: Mechanism>(subject: &Subject) {
    let pair = Pair::tcp();
    let mut fixture = Fixture::<M>::new(subject);
    let token = fixture.add_fd(&pair.near, Interest::WRITE);
    fixture.expect_writable(token);
    for _ in 0..3 {
        let until = Instant::now() + patience();
        let mut written = 0;
        // Written bytes leave the buffer slowly, so the buffer is full only if it is still full after a
        // while.
        while !poll_within(&pair.near, PollFlags::OUT, SILENCE).is_empty() {
            assert!(Instant::now() < until, "never full");
            written += rustix::io::write(&pair.near, &[0; 1024]).expect("write");
        }
        fixture.events_within(Duration::ZERO);
        written += rustix::io::write(&pair.near, &[0; 1024]).expect("a third is still free");
        // The test does not use poll(2) on the near end, because that would register a waiter again.
        while written > 0 {
            assert!(Instant::now() < until, "{written} bytes did not arrive");
            poll_within(&pair.far, PollFlags::IN, SILENCE);
            written -= drain(&pair.far).0;
        }
        fixture.expect_writable(token);
    }
}

pub fn answers_to_a_busy_tcp_peer<M: Mechanism>(subject: &Subject) {
    per_state::<M>(subject, Kind::Tcp);
}

pub fn answers_to_a_busy_unix_peer<M: Mechanism>(subject: &Subject) {
    per_state::<M>(subject, Kind::Unix);
}
