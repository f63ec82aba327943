//! Behaviour that only the mechanisms on io_uring have: overflow, refusals at the wait, denial.

use pollux_event::{
    Error, Event, Interest, Mechanism, MechanismSpec, Options, Readiness,
    mechanism::{epoll::EpollCtlv, uring_poll::UringPoll},
    registry,
};
use pollux_testkit::denied;
use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{ErrorKind, Read, Write},
    net::TcpListener,
    os::{
        fd::AsFd,
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    thread,
    time::{Duration, Instant},
};

/// Far longer than any wait here takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

fn open<M: Mechanism>(spec: &str) -> Option<M> {
    let spec: MechanismSpec = spec.parse().expect("a spec");
    match M::open(&spec.options()) {
        Ok(set) => Some(set),
        Err(error @ Error::Unavailable { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn pairs(n: usize) -> Vec<(UnixStream, UnixStream)> {
    pollux_testkit::raise_descriptor_limit();
    (0..n)
        .map(|_| {
            let (near, far) = UnixStream::pair().expect("a pair");
            near.set_nonblocking(true).expect("non-blocking");
            (near, far)
        })
        .collect()
}

fn wait_once<M: Mechanism>(set: &mut M, timeout: Duration) -> Vec<Event> {
    set.wait(Some(timeout)).expect("a wait");
    std::iter::from_fn(|| set.next_event()).collect()
}

fn statistic<M: Mechanism>(set: &M, name: &str) -> u64 {
    let all = set.statistics();
    all.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name} in {all:?}")).1
}

/// 8 completions for 500 ready descriptors, twice: every descriptor is reported, and stays armed.
#[test]
fn uring_poll_recovers_from_overflow() {
    for spec in ["uring-poll:completions=8", "uring-poll:completions=8,taskrun=defer"] {
        let Some(mut set) = open::<UringPoll>(spec) else { return };
        let mut pairs = pairs(500);
        for (near, _) in &pairs {
            set.add(near.as_fd(), Interest::READ).expect("added");
        }
        assert_eq!(wait_once(&mut set, Duration::ZERO), []);
        for round in 0..2 {
            for (_, far) in &mut pairs {
                far.write_all(b"x").expect("written");
            }
            let mut seen = HashSet::new();
            let until = Instant::now() + PATIENCE;
            while seen.len() < pairs.len() && Instant::now() < until {
                seen.extend(
                    wait_once(&mut set, Duration::from_millis(100)).iter().map(|e| e.token),
                );
            }
            assert_eq!(seen.len(), pairs.len(), "{spec}, round {round}: {:?}", set.statistics());
            for (near, _) in &mut pairs {
                near.read_exact(&mut [0]).expect("read");
            }
            // Descriptors that were armed again while unread report once more; after that there are no
            // events.
            let until = Instant::now() + PATIENCE;
            while !wait_once(&mut set, Duration::from_millis(50)).is_empty() {
                assert!(Instant::now() < until, "{spec}: events without end");
            }
        }
        assert!(statistic(&set, "completion_queue_overflows") > 0, "{:?}", set.statistics());
        assert!(statistic(&set, "requests_armed_again") > 0, "{:?}", set.statistics());
    }
}

/// Descriptors that stay ready are all armed in the end, although there are more of them than
/// completions. Once those that did not fit were reported at each wait, without end.
#[test]
fn uring_poll_rests_with_more_ready_descriptors_than_completions() {
    for spec in ["uring-poll:completions=8", "uring-poll:completions=8,taskrun=defer"] {
        let Some(mut set) = open::<UringPoll>(spec) else { return };
        let pairs = pairs(100);
        for (near, _) in &pairs {
            set.add(near.as_fd(), Interest::WRITE).expect("added");
        }
        let (mut seen, mut quiet_waits) = (HashSet::new(), 0);
        let until = Instant::now() + PATIENCE;
        while quiet_waits < 3 {
            assert!(Instant::now() < until, "{spec}: no rest: {:?}", set.statistics());
            let events = wait_once(&mut set, Duration::from_millis(20));
            quiet_waits = if events.is_empty() { quiet_waits + 1 } else { 0 };
            seen.extend(events.iter().map(|event| event.token));
        }
        assert_eq!(seen.len(), pairs.len(), "{spec}: {:?}", set.statistics());
    }
}

/// "Mechanisms with BATCHED_CHANGES may report the kernel's refusal at the next wait, as an event
/// with ERROR."
#[test]
fn a_refusal_is_an_event() {
    fn refused<M: Mechanism>(spec: &str, counted_as: &str) {
        let Some(mut set) = open::<M>(spec) else { return };
        let (near, mut far) = pairs(1).pop().expect("one");
        let good = set.add(near.as_fd(), Interest::READ).expect("added");
        far.write_all(b"x").expect("written");
        // A descriptor that only names a file and cannot be waited for (open(2), O_PATH).
        let path = File::options().read(true).custom_flags(libc::O_PATH).open("/proc/self/exe");
        let path = path.expect("a path descriptor");
        let bad = set.add(path.as_fd(), Interest::READ).expect("gathered");
        // The wait has no timeout: the refusal itself ends it.
        set.wait(None).expect("a wait");
        let mut events: Vec<_> = std::iter::from_fn(|| set.next_event()).collect();
        events.extend(wait_once(&mut set, Duration::from_millis(20)));
        let of = |token| {
            let mine = events.iter().filter(move |event: &&Event| event.token == token);
            mine.fold(Readiness::empty(), |all, event| all | event.readiness)
        };
        assert_eq!(of(bad), Readiness::ERROR | Readiness::INVALID);
        assert!(of(good).contains(Readiness::READABLE));
        assert_eq!(statistic(&set, counted_as), 1);
        set.remove(bad).expect("what was refused can be removed");
        assert_eq!(set.len(), 1);
    }
    refused::<EpollCtlv>("epoll-ctlv", "changes_refused");
    refused::<UringPoll>("uring-poll", "requests_refused");
}

/// A set that is dropped closes its sockets at once, although requests are armed on them.
#[test]
fn uring_poll_lets_go_when_it_is_dropped() {
    let Some(mut set) = open::<UringPoll>("uring-poll") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    set.add(listener.as_fd(), Interest::READ).expect("added");
    let (near, mut far) = pairs(1).pop().expect("one");
    set.add(near.as_fd(), Interest::READ).expect("added");
    wait_once(&mut set, Duration::ZERO);
    drop(set);
    drop((listener, near));
    TcpListener::bind(address).expect("the address is free again");
    far.set_nonblocking(true).expect("non-blocking");
    assert_eq!(far.read(&mut [0]).expect("the end"), 0);
}

/// The requests of a thread end with it; the set is armed again from the thread that waits.
#[test]
fn uring_poll_survives_the_thread_that_armed_it() {
    let Some(mut set) = open::<UringPoll>("uring-poll") else { return };
    let (near, mut far) = pairs(1).pop().expect("one");
    let mut set = thread::spawn(move || {
        set.add(near.as_fd(), Interest::READ).expect("added");
        wait_once(&mut set, Duration::ZERO);
        (set, near)
    })
    .join()
    .expect("the thread ends well");
    let mut events = wait_once(&mut set.0, Duration::from_millis(10));
    far.write_all(b"x").expect("written");
    let until = Instant::now() + PATIENCE;
    while events.is_empty() && Instant::now() < until {
        events = wait_once(&mut set.0, Duration::from_millis(100));
    }
    assert_eq!(events.len(), 1);
}

/// Interests change while data arrive from another thread, so that changes apply to requests that are
/// about to complete: no change and no edge is lost.
#[test]
fn uring_poll_changes_while_data_arrive() {
    const BYTES: usize = 20_000;
    for spec in ["uring-poll", "uring-poll:taskrun=defer"] {
        let Some(mut set) = open::<UringPoll>(spec) else { return };
        let (mut nears, mut fars): (Vec<_>, Vec<_>) = pairs(32).into_iter().unzip();
        let add = |near: &UnixStream| set.add(near.as_fd(), Interest::READ).expect("added");
        let tokens: Vec<_> = nears.iter().map(add).collect();
        let place: BTreeMap<_, _> =
            tokens.iter().enumerate().map(|(place, token)| (token.fd, place)).collect();
        let writer = thread::spawn(move || {
            for number in 0..BYTES {
                let far = number * 7 % fars.len();
                fars[far].write_all(b"x").expect("written");
            }
            fars
        });
        let (mut taken, mut turns) = (0, 0);
        let until = Instant::now() + PATIENCE;
        while taken < BYTES {
            assert!(Instant::now() < until, "{taken} of {BYTES}: {:?}", set.statistics());
            // The interest is removed and added again: data that arrive in between are reported when it
            // is added.
            turns += 1;
            for (index, token) in tokens.iter().enumerate() {
                let interest = match (turns + index) % 4 {
                    0 => Interest::empty(),
                    1 => Interest::READ,
                    _ => continue,
                };
                set.modify(*token, interest).expect("modified");
            }
            for event in wait_once(&mut set, Duration::from_millis(1)) {
                let mut buffer = [0; 4096];
                // Reads until `WouldBlock`, as edges require; there are no more bytes than the socket
                // holds.
                for _ in 0..BYTES {
                    match nears[place[&event.token.fd]].read(&mut buffer) {
                        Ok(count) => taken += count,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => panic!("read: {error}"),
                    }
                }
            }
        }
        drop(writer.join().expect("the writer ends well"));
        assert_eq!(taken, BYTES);
    }
}

/// The kernel refuses (EALREADY) to change a request that is about to complete. With deferred
/// completions that is every request whose data arrived since the last wait. Such a request is changed
/// later.
#[test]
fn uring_poll_sends_a_refused_change_again() {
    let Some(mut set) = open::<UringPoll>("uring-poll:taskrun=defer") else { return };
    let (near, mut far) = pairs(1).pop().expect("one");
    let token = set.add(near.as_fd(), Interest::READ).expect("added");
    assert_eq!(wait_once(&mut set, Duration::ZERO), []);
    far.write_all(b"x").expect("written");
    set.modify(token, Interest::WRITE).expect("modified");
    let until = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    while !events.iter().any(|event: &Event| event.readiness.contains(Readiness::WRITABLE)) {
        assert!(Instant::now() < until, "{events:?}, {:?}", set.statistics());
        events.extend(wait_once(&mut set, Duration::from_millis(100)));
    }
    assert_eq!(statistic(&set, "changes_sent_again"), 1);
    assert!(events.iter().all(|event| !event.readiness.contains(Readiness::READABLE)));
}

#[test]
fn numbers_out_of_range_are_refused_with_the_range() {
    for bad in ["0", "65537", "99999999999"] {
        let error = UringPoll::open(&Options::default().with("completions", bad)).unwrap_err();
        assert!(matches!(error, Error::Spec(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains(bad) && text.contains("1 to 65536"), "{text}");
    }
}

/// "A mechanism that the kernel lacks is an error that says why": no other mechanism replaces it.
#[test]
fn denial_is_reported_with_a_remedy() {
    for name in ["epoll-ctlv", "uring-poll"] {
        for (errno, remedy) in [
            (libc::EPERM, "seccomp profile"),
            (libc::ENOSYS, "CONFIG_IO_URING"),
            (libc::EINVAL, "Linux 5.19"),
            (libc::ENOMEM, "RLIMIT_MEMLOCK"),
        ] {
            let spec: MechanismSpec = name.parse().expect("a spec");
            let error = denied(libc::SYS_io_uring_setup, errno, || registry::probe(&spec))
                .expect_err("denied");
            assert!(matches!(error, Error::Unavailable { mechanism, .. } if mechanism == name));
            let text = error.to_string();
            for part in [name, "io_uring_setup", remedy] {
                assert!(text.contains(part), "{part:?} is not in: {text}");
            }
        }
    }
    // The ring opens and cannot be used.
    let spec: MechanismSpec = "epoll-ctlv".parse().expect("a spec");
    if registry::probe(&spec).is_ok() {
        let error = denied(libc::SYS_io_uring_enter, libc::EPERM, || registry::probe(&spec));
        let text = error.expect_err("denied").to_string();
        assert!(text.contains("io_uring_enter"), "{text}");
    }
    // The lack of free descriptors is not a property of the kernel.
    let error = denied(libc::SYS_io_uring_setup, libc::EMFILE, || registry::probe(&spec));
    assert!(matches!(error, Err(Error::Io { call: "io_uring_setup", .. })), "{error:?}");
}

/// Waits in a thread whose io_uring_enter fails with `errno`; returns the set.
fn wait_denied<M: Mechanism + Send>(mut set: M, errno: i32) -> (M, Result<Vec<Event>, Error>) {
    denied(libc::SYS_io_uring_enter, errno, move || {
        let waited = set.wait(Some(Duration::ZERO));
        let events = waited.map(|_| std::iter::from_fn(|| set.next_event()).collect());
        (set, events)
    })
}

/// Writes to every one of `pairs` and checks that each is reported.
fn all_are_reported<M: Mechanism>(set: &mut M, pairs: &mut [(UnixStream, UnixStream)]) {
    for (_, far) in &mut *pairs {
        far.write_all(b"x").expect("written");
    }
    let mut seen = HashSet::new();
    let until = Instant::now() + PATIENCE;
    while seen.len() < pairs.len() {
        assert!(
            Instant::now() < until,
            "{} of {}: {:?}",
            seen.len(),
            pairs.len(),
            set.statistics()
        );
        seen.extend(wait_once(set, Duration::from_millis(100)).iter().map(|event| event.token));
    }
}

/// Some kernels accept no requests while completions wait for room (EBUSY): ready descriptors are then
/// handed out, and the changes are sent later. Once this panicked because the queue had no room.
#[test]
fn uring_poll_waits_for_room_that_the_kernel_does_not_make() {
    let Some(mut set) = open::<UringPoll>("uring-poll:completions=8") else { return };
    let mut pairs = pairs(40);
    let (armed, later) = pairs.split_at_mut(4);
    for (near, _) in armed.iter() {
        set.add(near.as_fd(), Interest::READ).expect("added");
    }
    assert_eq!(wait_once(&mut set, Duration::ZERO), []);
    for (_, far) in armed {
        far.write_all(b"x").expect("written");
    }
    let mut tokens = Vec::new();
    for (near, _) in later.iter() {
        tokens.push(set.add(near.as_fd(), Interest::READ).expect("gathered"));
    }
    let (mut set, events) = wait_denied(set, libc::EBUSY);
    assert!(!events.expect("there is something to hand out").is_empty());
    // With nothing to hand out, each further wait returns the error.
    for _ in 0..3 {
        let waited;
        (set, waited) = wait_denied(set, libc::EBUSY);
        let error = waited.expect_err("nothing can be submitted");
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{error}");
    }
    // The request of a registration that ends meanwhile is cancelled as soon as possible: the peer then
    // sees the end.
    let (closed, mut peer) = pairs.pop().expect("one");
    set.close(tokens.pop().expect("its token"), closed.into()).expect("closed");
    all_are_reported(&mut set, &mut pairs);
    assert_eq!(peer.read(&mut [0]).expect("the end"), 0);
}

/// A batch that could not be submitted is sent again. Once it was forgotten; the ring still held it and
/// had no room for the next batch, which caused a panic.
#[test]
fn epoll_ctlv_sends_a_batch_again_that_failed() {
    let Some(mut set) = open::<EpollCtlv>("epoll-ctlv") else { return };
    let mut pairs = pairs(1_300);
    let mut tokens = Vec::new();
    for part in [0..600, 600..1_200] {
        for (near, _) in &pairs[part] {
            tokens.push(set.add(near.as_fd(), Interest::READ).expect("gathered"));
        }
        let waited;
        (set, waited) = wait_denied(set, libc::ENOMEM);
        let error = waited.expect_err("nothing can be submitted");
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "{error}");
    }
    // Some registrations end meanwhile, and their numbers are used by other sockets.
    for (token, (near, _)) in tokens.drain(..100).zip(pairs.drain(..100)) {
        set.close(token, near.into()).expect("closed");
    }
    pairs.extend(self::pairs(100));
    for (near, _) in &pairs[1_100..] {
        set.add(near.as_fd(), Interest::READ).expect("gathered");
    }
    all_are_reported(&mut set, &mut pairs);
    assert_eq!(statistic(&set, "changes_refused"), 0);
}
