//! One connection to Redis, without I/O: requests in, octets out; octets in, answers out.

use super::{Url, bounds::Bounds, command, reply::Reply};
use crate::{Answer, Request, StoreError, limits};
use std::collections::VecDeque;

/// What the next reply belongs to.
#[derive(Debug)]
enum Awaited<T> {
    /// AUTH or SELECT: without it nothing else can be answered.
    Login,
    /// LRANGE, the first half of a visit.
    Remarks(T),
    /// INCR, the second half, and what the first half came to.
    Visitor(T, Result<Vec<Vec<u8>>, StoreError>),
    /// RPUSH.
    Posted(T),
}

/// A connection's protocol. `T` is whatever the caller knows a request by.
///
/// Requests are pipelined: each may be begun while others are under way, and Redis answers in
/// order. A visit's two commands leave together.
#[derive(Debug)]
pub struct Session<T> {
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// Octets of `input` that are dealt with.
    taken: usize,
    bounds: Bounds,
    awaited: VecDeque<Awaited<T>>,
    answers: VecDeque<(T, Result<Answer, StoreError>)>,
    /// Requests begun and not answered.
    under_way: usize,
}

impl<T: Copy> Session<T> {
    /// A new connection's: the first octets that it has to send log in and choose the database.
    pub fn new(url: &Url) -> Self {
        let mut session = Self {
            output: Vec::new(),
            sent: 0,
            input: Vec::new(),
            taken: 0,
            bounds: Bounds::default(),
            awaited: VecDeque::new(),
            answers: VecDeque::new(),
            under_way: 0,
        };
        if let Some(password) = &url.password {
            command::put_auth(&mut session.output, url.user.as_deref(), password);
            session.awaited.push_back(Awaited::Login);
        }
        if url.database != 0 {
            command::put_select(&mut session.output, url.database);
            session.awaited.push_back(Awaited::Login);
        }
        session
    }

    /// Begins a request. Its answer, or why there is none, will come with this ticket.
    pub fn begin(&mut self, ticket: T, request: &Request) {
        if self.is_full() {
            return self.answers.push_back((ticket, Err(StoreError::Busy)));
        }
        self.under_way += 1;
        match request {
            Request::Visit { shown } => {
                command::put_newest(&mut self.output, *shown);
                command::put_visit(&mut self.output);
                self.awaited.push_back(Awaited::Remarks(ticket));
            }
            Request::Post { remark } => {
                command::put_remark(&mut self.output, remark);
                self.awaited.push_back(Awaited::Posted(ticket));
            }
        }
    }

    /// Whether no further request may be begun now: [`limits::PIPELINE`] are under way.
    pub fn is_full(&self) -> bool {
        self.under_way >= limits::PIPELINE
    }

    /// Requests that are begun and not answered.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether this request is under way here.
    pub fn has(&self, ticket: T) -> bool
    where
        T: PartialEq,
    {
        self.awaited.iter().any(|awaited| match awaited {
            Awaited::Login => false,
            Awaited::Remarks(other) | Awaited::Visitor(other, _) | Awaited::Posted(other) => {
                *other == ticket
            }
        })
    }

    /// Whether a reply is awaited, the login's included: if so, a silent server is a slow one.
    pub fn is_waiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// What is to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// So many octets of [`Session::output`] have left.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
    }

    /// Takes what has come. The answers in it are ready for [`Session::next_answer`] then.
    ///
    /// # Errors
    /// The server does not speak Redis, or does not let us in: the connection is of no use any
    /// more. [`Session::fail`] then answers what is under way.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.input.extend_from_slice(bytes);
        loop {
            let rest = &self.input[self.taken..];
            if rest.is_empty() {
                break;
            }
            let len = match self.bounds.measure(rest) {
                Ok(Some(len)) => len,
                Ok(None) => break,
                Err(what) => return Err(StoreError::Nonsense(what.to_owned())),
            };
            let reply = Reply::decode(&rest[..len])?;
            let Some(awaited) = self.awaited.pop_front() else {
                return Err(StoreError::Nonsense("a reply that nobody asked for".to_owned()));
            };
            match awaited {
                Awaited::Login => reply.ok()?,
                Awaited::Remarks(ticket) => {
                    let remarks = reply.strings();
                    self.awaited.push_front(Awaited::Visitor(ticket, remarks));
                }
                Awaited::Visitor(ticket, remarks) => {
                    let visitor = reply.number();
                    let answer = remarks.and_then(|remarks| {
                        visitor.map(|visitor| Answer::Visit { remarks, visitor })
                    });
                    self.answer(ticket, answer);
                }
                Awaited::Posted(ticket) => {
                    let answer = reply.number().map(|_| Answer::Posted);
                    self.answer(ticket, answer);
                }
            }
            self.taken += len;
        }
        self.input.drain(..self.taken);
        self.taken = 0;
        if self.input.is_empty() && self.input.capacity() > 64 << 10 {
            self.input = Vec::new();
        }
        Ok(())
    }

    /// The connection is over: all that is under way has no answer, for this reason.
    pub fn fail(&mut self, why: &StoreError) {
        for awaited in std::mem::take(&mut self.awaited) {
            match awaited {
                Awaited::Login => {}
                Awaited::Remarks(ticket)
                | Awaited::Visitor(ticket, _)
                | Awaited::Posted(ticket) => {
                    self.answer(ticket, Err(why.clone()));
                }
            }
        }
        self.output.clear();
        self.sent = 0;
        self.input = Vec::new();
        self.taken = 0;
    }

    /// The next answer that has come.
    pub fn next_answer(&mut self) -> Option<(T, Result<Answer, StoreError>)> {
        self.answers.pop_front()
    }

    fn answer(&mut self, ticket: T, answer: Result<Answer, StoreError>) {
        self.under_way -= 1;
        self.answers.push_back((ticket, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn session(url: &str) -> Session<u32> {
        Session::new(&url.parse().unwrap())
    }

    fn output(session: &mut Session<u32>) -> String {
        let output = String::from_utf8(session.output().to_vec()).unwrap();
        session.sent(output.len());
        output.replace("\r\n", " ")
    }

    fn answers(session: &mut Session<u32>) -> Vec<(u32, Result<Answer, StoreError>)> {
        std::iter::from_fn(|| session.next_answer()).collect()
    }

    const VISIT: Request = Request::Visit { shown: 2 };

    #[test]
    fn a_new_connection_logs_in_and_asks_without_waiting() {
        let mut session = session("redis://ada:pw@a/3");
        session.begin(1, &VISIT);
        assert_eq!(
            output(&mut session),
            "*3 $4 AUTH $3 ada $2 pw *2 $6 SELECT $1 3 \
             *4 $6 LRANGE $17 guestbook_remarks $2 -2 $2 -1 *2 $4 INCR $13 visitor_count "
        );
        session.receive(b"+OK\r\n+OK\r\n*2\r\n$1\r\na\r\n$2\r\nb\n\r\n:7\r\n").unwrap();
        let remarks = vec![b"a".to_vec(), b"b\n".to_vec()];
        assert_eq!(answers(&mut session), [(1, Ok(Answer::Visit { remarks, visitor: 7 }))]);
        assert!(!session.is_waiting() && session.under_way() == 0);
    }

    #[test]
    fn answers_come_in_order_and_each_has_its_own_error() {
        let mut session = session("redis://a");
        session.begin(1, &VISIT);
        session.begin(2, &Request::Post { remark: b"x".to_vec() });
        session.begin(3, &VISIT);
        session.receive(b"*0\r\n-OOM full\r\n:1\r\n*0\r\n:9\r\n").unwrap();
        assert_eq!(
            answers(&mut session),
            [
                (1, Err(StoreError::Full("OOM full".to_owned()))),
                (2, Ok(Answer::Posted)),
                (3, Ok(Answer::Visit { remarks: Vec::new(), visitor: 9 })),
            ]
        );
    }

    #[test]
    fn a_connection_that_is_of_no_use_fails_all_that_is_under_way() {
        for (said, why) in [
            ("-NOAUTH Authentication required.\r\n", None),
            ("-WRONGPASS no\r\n", None),
            ("-ERR invalid password\r\n", None),
            ("HTTP/1.1 400 Bad Request\r\n\r\n", Some("a line of no kind that Redis has")),
        ] {
            let mut session = session("redis://:pw@a");
            session.begin(1, &VISIT);
            session.begin(2, &VISIT);
            let error = session.receive(said.as_bytes()).unwrap_err();
            match why {
                None => assert!(matches!(error, StoreError::Refused(_)), "{said}: {error}"),
                Some(why) => assert_eq!(error, StoreError::Nonsense(why.to_owned())),
            }
            session.fail(&error);
            let all: Vec<_> = answers(&mut session);
            assert_eq!(all, [(1, Err(error.clone())), (2, Err(error))]);
            assert_eq!(session.under_way(), 0);
        }
    }

    #[test]
    fn what_redis_says_when_it_cannot_is_told_apart() {
        for (said, is_right) in [
            ("LOADING Redis is loading", matches_loading as fn(&StoreError) -> bool),
            ("READONLY You can't write", |e| matches!(e, StoreError::ReadOnly(_))),
            ("MISCONF disk", |e| matches!(e, StoreError::ReadOnly(_))),
            ("NOAUTH x", |e| matches!(e, StoreError::Refused(_))),
            ("WRONGTYPE x", |e| matches!(e, StoreError::Nonsense(_))),
        ] {
            let mut session = session("redis://a");
            session.begin(1, &Request::Post { remark: Vec::new() });
            session.receive(format!("-{said}\r\n").as_bytes()).unwrap();
            let (_, answer) = session.next_answer().unwrap();
            assert!(is_right(&answer.unwrap_err()), "{said}");
        }
    }

    fn matches_loading(error: &StoreError) -> bool {
        *error == StoreError::Loading
    }

    #[test]
    fn replies_of_the_wrong_kind_or_that_nobody_asked_for_are_nonsense() {
        let mut wrong = session("redis://a");
        wrong.begin(1, &VISIT);
        wrong.receive(b":1\r\n$1\r\na\r\n").unwrap();
        assert!(matches!(wrong.next_answer(), Some((1, Err(StoreError::Nonsense(_))))));
        let mut unasked = session("redis://a");
        assert!(matches!(unasked.receive(b"+OK\r\n"), Err(StoreError::Nonsense(_))));
    }

    #[test]
    fn more_than_a_pipeline_takes_is_told_to_come_back() {
        let mut session = session("redis://a");
        for ticket in 0..limits::PIPELINE as u32 {
            assert!(!session.is_full());
            session.begin(ticket, &VISIT);
        }
        session.begin(u32::MAX, &VISIT);
        assert_eq!(answers(&mut session), [(u32::MAX, Err(StoreError::Busy))]);
    }

    proptest! {
        /// However the stream is cut, the answers are the same.
        #[test]
        fn any_split_gives_the_same_answers(cuts in prop::collection::vec(1..30_usize, 1..50)) {
            let stream = b"+OK\r\n*2\r\n$5\r\nhello\r\n$0\r\n\r\n:1\r\n:3\r\n-OOM x\r\n-OOM x\r\n";
            let mut whole = session("redis://:pw@a");
            let mut split = session("redis://:pw@a");
            for session in [&mut whole, &mut split] {
                session.begin(1, &VISIT);
                session.begin(2, &Request::Post { remark: b"y".to_vec() });
                session.begin(3, &VISIT);
            }
            whole.receive(stream).unwrap();
            let mut rest = &stream[..];
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() { break }
                let (first, later) = rest.split_at(cut.min(rest.len()));
                split.receive(first).unwrap();
                rest = later;
            }
            prop_assert_eq!(answers(&mut whole), answers(&mut split));
        }

        #[test]
        fn nonsense_never_panics(input: Vec<u8>) {
            let mut session = session("redis://:pw@a/1");
            session.begin(1, &VISIT);
            if let Err(error) = session.receive(&input) {
                session.fail(&error);
                prop_assert_eq!(session.under_way(), 0);
            }
        }
    }
}
