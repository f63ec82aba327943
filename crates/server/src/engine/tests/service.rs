//! A service that can answer in every possible way; the path selects the way.

use crate::{
    protocol::KeepAlive,
    reactor::{Endpoint, EventTarget, ExchangeId, LookupGroup, LookupId, Question, UpstreamId},
    service::{
        Event, Flow, Page, Part, RequestContext, ResponseWriter, Service, ServiceContext,
        WakeReason,
    },
    transport::outbox::Outbox,
};
use pollux_http::{
    Status,
    request::{Request, Target},
    response::{self, Head, LAST_CHUNK},
};
use pollux_testkit::Port;
use std::{
    collections::VecDeque,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
};

/// The timeout of a dial, in ticks.
const DIAL: u32 = 100;

pub(super) struct Tester {
    upstream: SocketAddr,
    unix: PathBuf,
    waiting: Vec<ExchangeId>,
    /// An upstream connection that all exchanges share, and the exchanges that wait for a byte of its echo,
    /// in order.
    pool: Option<UpstreamId>,
    queue: VecDeque<ExchangeId>,
    /// The bytes that were received for the exchanges of the pool.
    pooled: std::collections::HashMap<ExchangeId, u8>,
    /// Exchanges that were cancelled.
    gone: usize,
    /// The maximum number of bytes in an outbox of a client or of an upstream connection.
    most: u64,
    /// A listener whose queue is full, so that a dial is not answered.
    full: (TcpListener, Vec<TcpStream>),
    /// A port on which no socket listens.
    nobody: Port,
}

/// The task of an exchange.
pub(super) enum TestJob {
    /// The response is the echo from this upstream connection.
    Echo(UpstreamId),
    Late,
    /// The exchange waits for the second alarm; the first was cancelled.
    Second,
    Dial,
    Stream(usize),
    /// The request body goes to the upstream connection, and its echo to the client.
    Upload {
        upstream: UpstreamId,
        is_whole: bool,
    },
    Wait,
    UntilEnd,
    Pooled,
    Tunnel,
    Resolve(LookupId),
}

fn ok(context: &mut RequestContext<'_>, outbox: &mut Outbox, content: &str) {
    Head::new(outbox.bytes(), Status::Ok)
        .date(context.worker.clock.date())
        .content_length(content.len() as u64)
        .lines(context.keep_alive().line())
        .end();
    outbox.bytes().extend_from_slice(content.as_bytes());
}

fn chunked(keep: KeepAlive, outbox: &mut Outbox) {
    Head::new(outbox.bytes(), Status::Ok).chunked().lines(keep.line()).end();
}

fn bad_gateway(context: &mut RequestContext<'_>, response: &mut ResponseWriter<'_>, reason: &str) {
    Page { status: Status::BadGateway, reason, fields: b"" }.put(context, response);
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
            pooled: Default::default(),
            gone: 0,
            most: 0,
            full: (listener, vec![first]),
            nobody: Port::reserve(),
        }
    }

    fn stream(&mut self, mut left: usize, outbox: &mut Outbox) -> Flow<TestJob> {
        while left > 0 {
            if outbox.is_full() {
                self.most = self.most.max(outbox.len());
                return Flow::Waiting(TestJob::Stream(left));
            }
            response::chunk(outbox.bytes(), &[b'~'; 1 << 16]);
            left -= 1;
        }
        outbox.bytes().extend_from_slice(LAST_CHUNK);
        Flow::Done
    }

    /// Continues a transfer in both directions, as far as both ends take the bytes.
    fn upload(
        &mut self,
        context: &mut RequestContext<'_>,
        upstream: UpstreamId,
        is_whole: bool,
        outbox: &Outbox,
    ) -> Flow<TestJob> {
        self.most = self.most.max(outbox.len()).max(context.reactor.send(upstream).len());
        if outbox.is_full() {
            context.reactor.pause(upstream);
        }
        if is_whole || context.reactor.is_full(upstream) {
            return Flow::Waiting(TestJob::Upload { upstream, is_whole });
        }
        Flow::NeedBody(TestJob::Upload { upstream, is_whole })
    }
}

impl Service for Tester {
    type Exchange = TestJob;

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<TestJob> {
        let outbox = response.raw();
        let Target::Path { path, .. } = request.target else { panic!("{:?}", request.target) };
        let path = std::str::from_utf8(path).unwrap();
        let mut words = path[1..].split('/');
        let (what, rest) = (words.next().unwrap(), words.next().unwrap_or_default());
        let to = EventTarget::Exchange(context.id());
        match what {
            "echo" | "unix" => {
                let endpoint = match what {
                    "echo" => Endpoint::Tcp(self.upstream),
                    _ => Endpoint::Unix(self.unix.clone()),
                };
                let upstream = context.reactor.dial(endpoint, DIAL, to);
                context.reactor.send(upstream).bytes().extend_from_slice(rest.as_bytes());
                context.reactor.finish(upstream);
                chunked(context.keep_alive(), outbox);
                Flow::Waiting(TestJob::Echo(upstream))
            }
            "late" => {
                context.reactor.timer(rest.parse().unwrap(), to);
                Flow::Waiting(TestJob::Late)
            }
            "cancelled-alarm" => {
                let first = context.reactor.timer(1, to);
                context.reactor.timer(3, to);
                context.reactor.cancel(first);
                Flow::Waiting(TestJob::Second)
            }
            "refused" => {
                context.reactor.dial(Endpoint::Tcp(self.nobody.address()), DIAL, to);
                Flow::Waiting(TestJob::Dial)
            }
            "no-socket" => {
                context.reactor.dial(Endpoint::Unix("/nonexistent".into()), DIAL, to);
                Flow::Waiting(TestJob::Dial)
            }
            "unanswered" => {
                let address = self.full.0.local_addr().unwrap();
                context.reactor.dial(Endpoint::Tcp(address), 2, to);
                Flow::Waiting(TestJob::Dial)
            }
            "stream" => {
                chunked(context.keep_alive(), outbox);
                self.stream(rest.parse().unwrap(), outbox)
            }
            "upload" => {
                let upstream = context.reactor.dial(Endpoint::Tcp(self.upstream), DIAL, to);
                chunked(context.keep_alive(), outbox);
                Flow::NeedBody(TestJob::Upload { upstream, is_whole: false })
            }
            "wait" => {
                self.waiting.push(context.id());
                Flow::Waiting(TestJob::Wait)
            }
            "event" => {
                let waiting = std::mem::take(&mut self.waiting);
                ok(context, outbox, &waiting.len().to_string());
                for exchange in waiting {
                    context.reactor.wake(exchange, WakeReason::Ready);
                }
                Flow::Done
            }
            "pooled" => {
                let upstream = self.upstream;
                let upstream = *self.pool.get_or_insert_with(|| {
                    let upstream = context.reactor.dial(Endpoint::Tcp(upstream), DIAL, to);
                    context.reactor.give(upstream, EventTarget::Service);
                    upstream
                });
                context.reactor.send(upstream).bytes().push(b'p');
                self.queue.push_back(context.id());
                Flow::Waiting(TestJob::Pooled)
            }
            "until-end" => Flow::Waiting(TestJob::UntilEnd),
            "tunnel" => {
                context.reactor.dial(Endpoint::Tcp(self.upstream), DIAL, to);
                Flow::Waiting(TestJob::Tunnel)
            }
            "resolve" => {
                let id = LookupGroup::new().lookup(3);
                context.reactor.resolve(Question { name: rest.into(), port: 80, to, id });
                Flow::Waiting(TestJob::Resolve(id))
            }
            "waiting" => {
                ok(context, outbox, &self.waiting.len().to_string());
                Flow::Done
            }
            "gone" => {
                ok(context, outbox, &self.gone.to_string());
                Flow::Done
            }
            "most" => {
                ok(context, outbox, &self.most.to_string());
                Flow::Done
            }
            other => panic!("{other:?} is not a valid path"),
        }
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        job: TestJob,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<TestJob> {
        let outbox = response.raw();
        let TestJob::Upload { upstream, .. } = job else { panic!("no body was requested") };
        match part {
            Part::Data(bytes) => {
                context.reactor.send(upstream).bytes().extend_from_slice(bytes);
                self.upload(context, upstream, false, outbox)
            }
            Part::End { .. } => {
                context.reactor.finish(upstream);
                self.upload(context, upstream, true, outbox)
            }
        }
    }

    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        job: TestJob,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<TestJob> {
        let outbox = response.raw();
        match (job, event) {
            (TestJob::Echo(upstream), Event::Connected(connected)) => {
                assert_eq!(upstream, connected);
                Flow::Waiting(TestJob::Echo(upstream))
            }
            (TestJob::Echo(upstream), Event::Received(_, bytes)) => {
                response::chunk(outbox.bytes(), bytes);
                Flow::Waiting(TestJob::Echo(upstream))
            }
            (TestJob::Echo(upstream), Event::Ended(_)) => {
                context.reactor.close(upstream);
                outbox.bytes().extend_from_slice(LAST_CHUNK);
                Flow::Done
            }
            (TestJob::Upload { upstream, is_whole }, Event::Received(_, bytes)) => {
                response::chunk(outbox.bytes(), bytes);
                self.upload(context, upstream, is_whole, outbox)
            }
            (
                TestJob::Upload { upstream, is_whole },
                Event::Connected(_) | Event::UpstreamRoom(_),
            ) => self.upload(context, upstream, is_whole, outbox),
            (TestJob::Upload { upstream, is_whole }, Event::Room) => {
                context.reactor.go_on(upstream);
                self.upload(context, upstream, is_whole, outbox)
            }
            (TestJob::Upload { upstream, is_whole: true }, Event::Ended(_)) => {
                context.reactor.close(upstream);
                outbox.bytes().extend_from_slice(LAST_CHUNK);
                Flow::Done
            }
            (TestJob::Late, Event::Time(_)) => {
                ok(context, outbox, "late");
                Flow::Done
            }
            (TestJob::Second, Event::Time(_)) => {
                ok(context, outbox, "second");
                Flow::Done
            }
            (TestJob::Dial, Event::Failed(_, why)) => {
                bad_gateway(context, response, &why.to_string());
                Flow::Done
            }
            (TestJob::Stream(left), Event::Room) => self.stream(left, outbox),
            (TestJob::Wait, Event::Woken(WakeReason::Ready)) => {
                ok(context, outbox, "woken");
                Flow::Done
            }
            (TestJob::Pooled, Event::Woken(WakeReason::Ready)) => {
                let byte = self.pooled.remove(&context.id()).expect("an answer");
                ok(context, outbox, &format!("pooled {byte}"));
                Flow::Done
            }
            (TestJob::UntilEnd, Event::ClientEnded) => {
                ok(context, outbox, "ended");
                Flow::Done
            }
            (TestJob::Tunnel, Event::Connected(upstream)) => {
                outbox.bytes().extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
                let id = context.id();
                context.reactor.tunnel(id, upstream);
                Flow::Waiting(TestJob::Tunnel)
            }
            (TestJob::Resolve(id), Event::Resolved(answered, answer)) => {
                assert_eq!(answered, id);
                let text = match answer {
                    Ok(addresses) => {
                        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                    }
                    Err(error) => error.to_string(),
                };
                ok(context, outbox, &text);
                Flow::Done
            }
            // Other exchanges ignore a half-close.
            (job, Event::ClientEnded) => Flow::Waiting(job),
            (_, event) => panic!("{event:?} was not expected"),
        }
    }

    fn cancel(&mut self, context: &mut RequestContext<'_>, job: TestJob) {
        self.gone += 1;
        let id = context.id();
        self.waiting.retain(|waiting| *waiting != id);
        if let TestJob::Echo(upstream) | TestJob::Upload { upstream, .. } = job {
            context.reactor.close(upstream);
        }
    }

    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        match event {
            Event::Connected(upstream) => assert_eq!(Some(upstream), self.pool),
            Event::Received(upstream, bytes) => {
                assert_eq!(Some(upstream), self.pool);
                for byte in bytes {
                    let exchange = self.queue.pop_front().expect("somebody waits for it");
                    self.pooled.insert(exchange, *byte);
                    context.reactor.wake(exchange, WakeReason::Ready);
                }
            }
            other => panic!("{other:?} was not expected"),
        }
    }
}
