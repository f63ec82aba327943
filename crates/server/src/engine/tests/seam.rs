//! A worker on a mechanism whose calls fail as a test requests, and that counts the requests begun between
//! two waits.

use super::service::Tester;
use crate::{
    engine::{
        control::{Inbox, Remote, WorkerCommand},
        event::Engine,
    },
    protocol::rules::Rules,
    service::{
        Event, Flow, Part, RequestContext, ResponseWriter, Service, ServiceContext,
        worker_state::WorkerState,
    },
    settings::Settings,
    stats::Statistics,
    transport::listener,
};
use pollux_event::{
    Description, Error, Event as MechanismEvent, Interest, Mechanism, Options, Token, Waker,
    mechanism::epoll::EpollLevel,
};
use pollux_http::request::Request;
use pollux_testkit::wait_until;
use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

/// The calls that a test can make fail.
#[derive(Clone, Copy, Debug)]
pub(super) enum FaultAt {
    Wait,
    Add,
    Modify,
}

thread_local! {
    /// The number of calls of this thread that are still to fail, and their error number, by [`FaultAt`].
    static FAULTS: [Cell<(u32, i32)>; 3] = const { [const { Cell::new((0, 0)) }; 3] };
    /// The function that each call of `add` in this thread calls first.
    static BEFORE_ADD: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    /// The number of requests begun since the last wait, and the maximum between two waits.
    static BEGUN: Cell<u32> = const { Cell::new(0) };
    static MOST_BEGUN: Cell<u32> = const { Cell::new(0) };
    /// The token of the first descriptor added, which is the inbox, and whether its events are
    /// hidden.
    static FIRST: Cell<Option<Token>> = const { Cell::new(None) };
    static IS_FIRST_HIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// Hides the events of the first descriptor added in this thread, its inbox, from now on.
pub(super) fn hide_the_inbox() {
    IS_FIRST_HIDDEN.set(true);
}

/// Makes this thread's next `count` calls of the kind `at` fail with `errno`.
pub(super) fn fail(at: FaultAt, count: u32, errno: i32) {
    FAULTS.with(|faults| faults[at as usize].set((count, errno)));
}

/// Makes each call of `add` in this thread call `act` first, from now on.
pub(super) fn before_add(act: impl FnMut() + 'static) {
    BEFORE_ADD.set(Some(Box::new(act)));
}

fn pass(at: FaultAt, call: &'static str) -> Result<(), Error> {
    FAULTS.with(|faults| {
        let (left, errno) = faults[at as usize].get();
        if left == 0 {
            return Ok(());
        }
        faults[at as usize].set((left - 1, errno));
        Err(Error::Io { call, source: io::Error::from_raw_os_error(errno) })
    })
}

/// The epoll mechanism, whose calls fail as the thread's variables say.
struct Seam(EpollLevel);

impl Mechanism for Seam {
    const DESCRIPTION: &'static Description = EpollLevel::DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        EpollLevel::open(options).map(Self)
    }
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        BEFORE_ADD.with_borrow_mut(|act| act.as_mut().map(|act| act()));
        pass(FaultAt::Add, "epoll_ctl")?;
        let token = self.0.add(fd, interest)?;
        FIRST.set(FIRST.get().or(Some(token)));
        Ok(token)
    }
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        pass(FaultAt::Modify, "epoll_ctl")?;
        self.0.modify(token, interest)
    }
    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.0.remove(token)
    }
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        self.0.close(token, fd)
    }
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        MOST_BEGUN.set(MOST_BEGUN.get().max(BEGUN.take()));
        pass(FaultAt::Wait, "epoll_wait")?;
        self.0.wait(timeout)
    }
    fn next_event(&mut self) -> Option<MechanismEvent> {
        let is_visible =
            |event: &MechanismEvent| !(IS_FIRST_HIDDEN.get() && FIRST.get() == Some(event.token));
        std::iter::from_fn(|| self.0.next_event()).find(is_visible)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn waker(&mut self) -> Result<Waker, Error> {
        self.0.waker()
    }
    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        self.0.reopen_after_fork()
    }
}

/// A service whose requests are counted.
struct CountingService<A>(A);

impl<A: Service> Service for CountingService<A> {
    type Exchange = A::Exchange;

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<A::Exchange> {
        BEGUN.set(BEGUN.get() + 1);
        self.0.begin(context, request, response)
    }
    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: A::Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<A::Exchange> {
        self.0.body(context, exchange, part, response)
    }
    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: A::Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<A::Exchange> {
        self.0.resume(context, exchange, event, response)
    }
    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: A::Exchange) {
        self.0.cancel(context, exchange);
    }
    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        self.0.event(context, event);
    }
}

/// The results of a worker that has ended.
#[derive(Debug)]
pub(super) struct WorkerResults {
    pub(super) statistics: Statistics,
    /// The maximum number of requests that were begun between two waits.
    pub(super) most_begun: u32,
}

pub(super) struct Worker {
    pub(super) address: SocketAddr,
    remote: Remote,
    thread: JoinHandle<anyhow::Result<WorkerResults>>,
}

impl Worker {
    /// Starts an engine on a thread, with the tests' service. `spoil` is called on that thread before the
    /// engine runs.
    pub(super) fn start(spoil: impl FnOnce() + Send + 'static) -> Self {
        Self::start_with(Settings::new("."), spoil)
    }

    pub(super) fn start_with(config: Settings, spoil: impl FnOnce() + Send + 'static) -> Self {
        let service =
            |_: &Settings, _: &Rules, address| Tester::new(address, "/nonexistent".into());
        Self::serve(config, service, spoil)
    }

    /// Does the same with the service that `open` creates; `open` also gets the address of the worker.
    pub(super) fn serve<A: Service>(
        config: Settings,
        open: impl FnOnce(&Settings, &Rules, SocketAddr) -> A + Send + 'static,
        spoil: impl FnOnce() + Send + 'static,
    ) -> Self {
        let listener = listener::tcp("127.0.0.1:0".parse().unwrap(), 64, false).unwrap();
        let address = socket2::SockRef::from(&listener).local_addr().unwrap().as_socket().unwrap();
        let (remote, far_end, shared) = Remote::pair().unwrap();
        let thread = thread::spawn(move || {
            let rules = Arc::new(Rules::new(&config));
            let service = CountingService(open(&config, &rules, address));
            let own = (rules, WorkerState::new(None));
            let inbox = Inbox::new(far_end, shared);
            let listeners = (vec![listener], 100);
            let options = Options::default();
            let engine = Engine::<Seam, _>::new(&config, &options, service, own, listeners, inbox)?;
            spoil();
            let statistics = engine.run()?;
            Ok(WorkerResults { statistics, most_begun: MOST_BEGUN.get() })
        });
        Self { address, remote, thread }
    }

    /// Takes over the connections that arrive on this channel.
    pub(super) fn adopt(&self, channel: &impl AsFd) {
        self.remote.give(WorkerCommand::Adopt, channel.as_fd()).unwrap();
    }

    /// Requests the current statistics.
    pub(super) fn statistics(&self) -> Statistics {
        self.remote.request_statistics().wait().unwrap()
    }

    /// Requests a stop.
    pub(super) fn begin_stop(&self) {
        self.remote.stop(Duration::ZERO);
    }

    /// Requests a stop, and waits until the worker has ended.
    pub(super) fn stop(self) -> anyhow::Result<WorkerResults> {
        self.begin_stop();
        wait_until("the end of the worker", || self.thread.is_finished());
        self.thread.join().unwrap()
    }
}
