//! An application that answers in every way there is; the path says in which.

use crate::{
    reactor::{Endpoint, ExchangeId, LinkId, Question, To},
    service::{Application, Flow, Keep, Page, Part, Turn, Wake, World},
    transport::outbox::Outbox,
};
use pollux_http::{
    Status,
    request::{Method, Request, Target},
    response::{self, Head, LAST_CHUNK},
};
use pollux_testkit::Port;
use std::{
    collections::VecDeque,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
};

/// How long a dial may take, in ticks.
const DIAL: u32 = 100;

pub(super) struct Tester {
    upstream: SocketAddr,
    unix: PathBuf,
    waiting: Vec<ExchangeId>,
    /// A link that all share, and who waits for an octet of its echo, in order.
    pool: Option<LinkId>,
    queue: VecDeque<ExchangeId>,
    /// Exchanges that were cancelled.
    gone: usize,
    /// The most octets that an outbox or a link held.
    most: u64,
    /// Listens, but its queue is full: a dial is not answered.
    full: (TcpListener, Vec<TcpStream>),
    /// Nobody listens.
    nobody: Port,
}

/// What an exchange is about.
pub(super) enum Job {
    /// Echoes this through the link.
    Echo(LinkId),
    Late,
    /// An alarm that was cancelled, and one that was not.
    Second,
    Dial,
    Stream(usize),
    /// The body goes to the link, and its echo to the client.
    Upload {
        link: LinkId,
        is_whole: bool,
    },
    Wait,
    UntilEnd,
    Pooled,
    Tunnel,
    Resolve,
}

fn ok(turn: &mut Turn<'_>, outbox: &mut Outbox, content: &str) {
    Head::new(outbox.bytes(), Status::Ok)
        .date(turn.local.clock.date())
        .content_length(content.len() as u64)
        .lines(turn.keep().line())
        .end();
    outbox.bytes().extend_from_slice(content.as_bytes());
}

fn chunked(keep: Keep, outbox: &mut Outbox) {
    Head::new(outbox.bytes(), Status::Ok).chunked().lines(keep.line()).end();
}

fn bad_gateway(turn: &mut Turn<'_>, outbox: &mut Outbox, reason: &str) {
    let page = Page { status: Status::BadGateway, reason, fields: b"" };
    let keep = turn.keep();
    page.put(turn.rules, turn.local, outbox, Method::Get, keep);
}

impl Tester {
    pub(super) fn new(upstream: SocketAddr, unix: PathBuf) -> Self {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let first = TcpStream::connect(address).unwrap();
        Self {
            upstream,
            unix,
            waiting: Vec::new(),
            pool: None,
            queue: VecDeque::new(),
            gone: 0,
            most: 0,
            full: (listener, vec![first]),
            nobody: Port::reserve(),
        }
    }

    fn stream(&mut self, mut left: usize, outbox: &mut Outbox) -> Flow<Job> {
        while left > 0 {
            if outbox.is_full() {
                self.most = self.most.max(outbox.len());
                return Flow::Waiting(Job::Stream(left));
            }
            response::chunk(outbox.bytes(), &[b'~'; 1 << 16]);
            left -= 1;
        }
        outbox.bytes().extend_from_slice(LAST_CHUNK);
        Flow::Done
    }

    /// Goes on with a transfer in both directions, as far as both ends take it.
    fn upload(
        &mut self,
        turn: &mut Turn<'_>,
        link: LinkId,
        is_whole: bool,
        outbox: &Outbox,
    ) -> Flow<Job> {
        self.most = self.most.max(outbox.len()).max(turn.outside.send(link).len());
        if outbox.is_full() {
            turn.outside.pause(link);
        }
        if is_whole || turn.outside.is_full(link) {
            return Flow::Waiting(Job::Upload { link, is_whole });
        }
        Flow::NeedBody(Job::Upload { link, is_whole })
    }
}

impl Application for Tester {
    type Exchange = Job;

    fn begin(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Job> {
        let Target::Path { path, .. } = request.target else { panic!("{:?}", request.target) };
        let path = std::str::from_utf8(path).unwrap();
        let mut words = path[1..].split('/');
        let (what, rest) = (words.next().unwrap(), words.next().unwrap_or_default());
        let to = To::Exchange(turn.id());
        match what {
            "echo" | "unix" => {
                let endpoint = match what {
                    "echo" => Endpoint::Tcp(self.upstream),
                    _ => Endpoint::Unix(self.unix.clone()),
                };
                let link = turn.outside.dial(endpoint, DIAL, to);
                turn.outside.send(link).bytes().extend_from_slice(rest.as_bytes());
                turn.outside.finish(link);
                chunked(turn.keep(), outbox);
                Flow::Waiting(Job::Echo(link))
            }
            "late" => {
                turn.outside.timer(rest.parse().unwrap(), to);
                Flow::Waiting(Job::Late)
            }
            "cancelled-alarm" => {
                let first = turn.outside.timer(1, to);
                turn.outside.timer(3, to);
                turn.outside.cancel(first);
                Flow::Waiting(Job::Second)
            }
            "refused" => {
                turn.outside.dial(Endpoint::Tcp(self.nobody.address()), DIAL, to);
                Flow::Waiting(Job::Dial)
            }
            "no-socket" => {
                turn.outside.dial(Endpoint::Unix("/nonexistent".into()), DIAL, to);
                Flow::Waiting(Job::Dial)
            }
            "unanswered" => {
                let address = self.full.0.local_addr().unwrap();
                turn.outside.dial(Endpoint::Tcp(address), 2, to);
                Flow::Waiting(Job::Dial)
            }
            "stream" => {
                chunked(turn.keep(), outbox);
                self.stream(rest.parse().unwrap(), outbox)
            }
            "upload" => {
                let link = turn.outside.dial(Endpoint::Tcp(self.upstream), DIAL, to);
                chunked(turn.keep(), outbox);
                Flow::NeedBody(Job::Upload { link, is_whole: false })
            }
            "wait" => {
                self.waiting.push(turn.id());
                Flow::Waiting(Job::Wait)
            }
            "wake" => {
                let waiting = std::mem::take(&mut self.waiting);
                ok(turn, outbox, &waiting.len().to_string());
                for exchange in waiting {
                    turn.outside.wake(exchange, 7);
                }
                Flow::Done
            }
            "pooled" => {
                let upstream = self.upstream;
                let link = *self.pool.get_or_insert_with(|| {
                    let link = turn.outside.dial(Endpoint::Tcp(upstream), DIAL, to);
                    turn.outside.give(link, To::Application);
                    link
                });
                turn.outside.send(link).bytes().push(b'p');
                self.queue.push_back(turn.id());
                Flow::Waiting(Job::Pooled)
            }
            "until-end" => Flow::Waiting(Job::UntilEnd),
            "tunnel" => {
                turn.outside.dial(Endpoint::Tcp(self.upstream), DIAL, to);
                Flow::Waiting(Job::Tunnel)
            }
            "resolve" => {
                turn.outside.resolve(Question { name: rest.into(), port: 80, to, note: 3 });
                Flow::Waiting(Job::Resolve)
            }
            "waiting" => {
                ok(turn, outbox, &self.waiting.len().to_string());
                Flow::Done
            }
            "gone" => {
                ok(turn, outbox, &self.gone.to_string());
                Flow::Done
            }
            "most" => {
                ok(turn, outbox, &self.most.to_string());
                Flow::Done
            }
            other => panic!("{other:?} is not to be asked for"),
        }
    }

    fn body(
        &mut self,
        turn: &mut Turn<'_>,
        job: Job,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Job> {
        let Job::Upload { link, .. } = job else { panic!("no body was asked for") };
        match part {
            Part::Octets(octets) => {
                turn.outside.send(link).bytes().extend_from_slice(octets);
                self.upload(turn, link, false, outbox)
            }
            Part::End { .. } => {
                turn.outside.finish(link);
                self.upload(turn, link, true, outbox)
            }
        }
    }

    fn resume(
        &mut self,
        turn: &mut Turn<'_>,
        job: Job,
        wake: Wake<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Job> {
        match (job, wake) {
            (Job::Echo(link), Wake::Connected(connected)) => {
                assert_eq!(link, connected);
                Flow::Waiting(Job::Echo(link))
            }
            (Job::Echo(link), Wake::Received(_, octets)) => {
                response::chunk(outbox.bytes(), octets);
                Flow::Waiting(Job::Echo(link))
            }
            (Job::Echo(link), Wake::Ended(_)) => {
                turn.outside.close(link);
                outbox.bytes().extend_from_slice(LAST_CHUNK);
                Flow::Done
            }
            (Job::Upload { link, is_whole }, Wake::Received(_, octets)) => {
                response::chunk(outbox.bytes(), octets);
                self.upload(turn, link, is_whole, outbox)
            }
            (Job::Upload { link, is_whole }, Wake::Connected(_) | Wake::LinkRoom(_)) => {
                self.upload(turn, link, is_whole, outbox)
            }
            (Job::Upload { link, is_whole }, Wake::Room) => {
                turn.outside.go_on(link);
                self.upload(turn, link, is_whole, outbox)
            }
            (Job::Upload { link, is_whole: true }, Wake::Ended(_)) => {
                turn.outside.close(link);
                outbox.bytes().extend_from_slice(LAST_CHUNK);
                Flow::Done
            }
            (Job::Late, Wake::Time(_)) => {
                ok(turn, outbox, "late");
                Flow::Done
            }
            (Job::Second, Wake::Time(_)) => {
                ok(turn, outbox, "second");
                Flow::Done
            }
            (Job::Dial, Wake::Failed(_, why)) => {
                bad_gateway(turn, outbox, &why.to_string());
                Flow::Done
            }
            (Job::Stream(left), Wake::Room) => self.stream(left, outbox),
            (Job::Wait, Wake::Note(note)) => {
                assert_eq!(note, 7);
                ok(turn, outbox, "woken");
                Flow::Done
            }
            (Job::Pooled, Wake::Note(note)) => {
                ok(turn, outbox, &format!("pooled {note}"));
                Flow::Done
            }
            (Job::UntilEnd, Wake::ClientEnded) => {
                ok(turn, outbox, "ended");
                Flow::Done
            }
            (Job::Tunnel, Wake::Connected(link)) => {
                outbox.bytes().extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
                let id = turn.id();
                turn.outside.tunnel(id, link);
                Flow::Waiting(Job::Tunnel)
            }
            (Job::Resolve, Wake::Resolved(note, answer)) => {
                assert_eq!(note, 3);
                let text = match answer {
                    Ok(addresses) => {
                        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                    }
                    Err(reason) => reason,
                };
                ok(turn, outbox, &text);
                Flow::Done
            }
            // A half-close says nothing to the others.
            (job, Wake::ClientEnded) => Flow::Waiting(job),
            (_, wake) => panic!("{wake:?} was not asked for"),
        }
    }

    fn cancel(&mut self, turn: &mut Turn<'_>, job: Job) {
        self.gone += 1;
        let id = turn.id();
        self.waiting.retain(|waiting| *waiting != id);
        if let Job::Echo(link) | Job::Upload { link, .. } = job {
            turn.outside.close(link);
        }
    }

    fn event(&mut self, world: &mut World<'_>, wake: Wake<'_>) {
        match wake {
            Wake::Connected(link) => assert_eq!(Some(link), self.pool),
            Wake::Received(link, octets) => {
                assert_eq!(Some(link), self.pool);
                for octet in octets {
                    let exchange = self.queue.pop_front().expect("somebody waits for it");
                    world.outside.wake(exchange, u64::from(*octet));
                }
            }
            other => panic!("{other:?} was not asked for"),
        }
    }
}
