//! The protocol of one connection to Redis, without I/O: requests to bytes, and bytes to answers.

use super::{Url, command, reply::Reply, scanner::ReplyScanner};
use crate::{Answer, Request, StoreError, limits};
use std::collections::VecDeque;

/// The command that the next reply answers.
#[derive(Debug)]
enum PendingReply<T> {
    /// AUTH or SELECT. Other commands must not be sent before it succeeds.
    Login,
    /// LRANGE, the first command of a visit.
    Remarks(T),
    /// INCR, the second command of a visit, with the result of the first.
    Visitor(T, Result<Vec<Vec<u8>>, StoreError>),
    /// RPUSH.
    Posted(T),
}

/// The protocol of one connection. The caller identifies a request by a `T`.
///
/// Requests are pipelined: a request may begin while others are pending, and Redis answers in
/// order. The two commands of a visit are sent together.
///
/// Nothing else is sent until the login has succeeded, because Redis would execute commands after a
/// rejected `AUTH` or `SELECT` as another user or in another database. A connection without a login
/// sends commands at once.
#[derive(Debug)]
pub struct Session<T> {
    output: Vec<u8>,
    sent: usize,
    /// Commands to send after the login has succeeded.
    queued: Vec<u8>,
    /// The number of missing replies of the login.
    logins_pending: usize,
    input: Vec<u8>,
    /// The number of processed bytes of `input`.
    consumed: usize,
    scanner: ReplyScanner,
    pending: VecDeque<PendingReply<T>>,
    answers: VecDeque<(T, Result<Answer, StoreError>)>,
    /// The number of requests without an answer.
    pending_requests: usize,
}

impl<T: Copy> Session<T> {
    /// Creates the protocol of a new connection. Its first output logs in and selects the database.
    pub fn new(url: &Url) -> Self {
        let mut session = Self {
            output: Vec::new(),
            sent: 0,
            queued: Vec::new(),
            logins_pending: 0,
            input: Vec::new(),
            consumed: 0,
            scanner: ReplyScanner::default(),
            pending: VecDeque::new(),
            answers: VecDeque::new(),
            pending_requests: 0,
        };
        if url.user.is_some() || url.password.is_some() {
            let password = url.password.as_deref().unwrap_or_default();
            command::put_auth(&mut session.output, url.user.as_deref(), password);
            session.expect_login_reply();
        }
        if url.database != 0 {
            command::put_select(&mut session.output, url.database);
            session.expect_login_reply();
        }
        session
    }

    /// Begins a request. Its answer or error will carry this ticket.
    pub fn begin(&mut self, ticket: T, request: &Request) {
        if self.is_full() {
            return self.answers.push_back((ticket, Err(StoreError::Busy)));
        }
        self.pending_requests += 1;
        let output = if self.logins_pending == 0 { &mut self.output } else { &mut self.queued };
        match request {
            Request::Visit { shown } => {
                command::put_newest(output, *shown);
                command::put_visit(output);
                self.pending.push_back(PendingReply::Remarks(ticket));
            }
            Request::Post { remark } => {
                command::put_remark(output, remark);
                self.pending.push_back(PendingReply::Posted(ticket));
            }
        }
    }

    fn expect_login_reply(&mut self) {
        self.pending.push_back(PendingReply::Login);
        self.logins_pending += 1;
    }

    /// Handles a successful reply of the login. After the last one the queued commands may be sent.
    fn login_step_done(&mut self) {
        self.logins_pending -= 1;
        if self.logins_pending == 0 {
            self.output.append(&mut self.queued);
            self.queued = Vec::new();
        }
    }

    /// Whether the maximum number of requests, [`limits::PIPELINE`], is pending.
    pub fn is_full(&self) -> bool {
        self.pending_requests >= limits::PIPELINE
    }

    /// The number of requests without an answer.
    pub fn pending_requests(&self) -> usize {
        self.pending_requests
    }

    /// Whether this request is pending here.
    pub fn has(&self, ticket: T) -> bool
    where
        T: PartialEq,
    {
        self.tickets().any(|other| other == ticket)
    }

    /// The pending requests in order.
    pub fn tickets(&self) -> impl Iterator<Item = T> + '_ {
        self.pending.iter().filter_map(|pending| match pending {
            PendingReply::Login => None,
            PendingReply::Remarks(ticket)
            | PendingReply::Visitor(ticket, _)
            | PendingReply::Posted(ticket) => Some(*ticket),
        })
    }

    /// Whether a reply, including those of the login, is pending, so that a timeout applies.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The bytes to send now. There may be more after [`Session::receive`].
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Removes `count` bytes of [`Session::output`], which were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
    }

    /// Processes received bytes. Answers are then available from [`Session::next_answer`].
    ///
    /// # Errors
    /// The server does not use the Redis protocol, or rejects the login: the connection cannot be
    /// used any longer. Call [`Session::fail`] to answer the pending requests.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.input.extend_from_slice(bytes);
        loop {
            let rest = &self.input[self.consumed..];
            if rest.is_empty() {
                break;
            }
            let len = match self.scanner.scan(rest) {
                Ok(Some(len)) => len,
                Ok(None) => break,
                Err(what) => return Err(StoreError::Protocol(what.to_owned())),
            };
            let reply = Reply::decode(&rest[..len])?;
            let Some(pending) = self.pending.pop_front() else {
                return Err(StoreError::Protocol("an unexpected reply".to_owned()));
            };
            match pending {
                PendingReply::Login => {
                    reply.ok()?;
                    self.login_step_done();
                }
                PendingReply::Remarks(ticket) => {
                    let remarks = reply.strings();
                    self.pending.push_front(PendingReply::Visitor(ticket, remarks));
                }
                PendingReply::Visitor(ticket, remarks) => {
                    let visitor = reply.number();
                    let answer = remarks.and_then(|remarks| {
                        let remarks = remarks.into();
                        visitor.map(|visitor| Answer::Visit { remarks, visitor })
                    });
                    self.answer(ticket, answer);
                }
                PendingReply::Posted(ticket) => {
                    let answer = reply.number().map(|_| Answer::Posted);
                    self.answer(ticket, answer);
                }
            }
            self.consumed += len;
        }
        self.input.drain(..self.consumed);
        self.consumed = 0;
        if self.input.is_empty() && self.input.capacity() > 64 << 10 {
            self.input = Vec::new();
        }
        Ok(())
    }

    /// Ends the connection: all pending requests fail with `why`.
    pub fn fail(&mut self, why: &StoreError) {
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                PendingReply::Login => {}
                // An earlier error reply of the server is more precise.
                PendingReply::Visitor(ticket, Err(reply)) => self.answer(ticket, Err(reply)),
                PendingReply::Remarks(ticket)
                | PendingReply::Visitor(ticket, Ok(_))
                | PendingReply::Posted(ticket) => {
                    self.answer(ticket, Err(why.clone()));
                }
            }
        }
        self.output.clear();
        self.sent = 0;
        self.queued = Vec::new();
        self.logins_pending = 0;
        self.input = Vec::new();
        self.consumed = 0;
    }

    /// Returns the next available answer.
    pub fn next_answer(&mut self) -> Option<(T, Result<Answer, StoreError>)> {
        self.answers.pop_front()
    }

    fn answer(&mut self, ticket: T, answer: Result<Answer, StoreError>) {
        self.pending_requests -= 1;
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

    const VISIT_COMMANDS: &str =
        "*4 $6 LRANGE $17 guestbook_remarks $2 -2 $2 -1 *2 $4 INCR $13 visitor_count ";

    #[test]
    fn nothing_is_sent_before_the_login_succeeds() {
        let mut session = session("redis://ada:pw@a/3");
        session.begin(1, &VISIT);
        assert_eq!(output(&mut session), "*3 $4 AUTH $3 ada $2 pw *2 $6 SELECT $1 3 ");
        session.receive(b"+OK\r\n").unwrap();
        assert_eq!(output(&mut session), "");
        session.receive(b"+OK\r\n").unwrap();
        assert_eq!(output(&mut session), VISIT_COMMANDS);
        session.receive(b"*2\r\n$1\r\na\r\n$2\r\nb\n\r\n:7\r\n").unwrap();
        let remarks = vec![b"a".to_vec(), b"b\n".to_vec()].into();
        assert_eq!(answers(&mut session), [(1, Ok(Answer::Visit { remarks, visitor: 7 }))]);
        assert!(!session.is_waiting() && session.pending_requests() == 0);
        // After that, commands are sent at once, as without a login.
        session.begin(2, &VISIT);
        assert_eq!(output(&mut session), VISIT_COMMANDS);
    }

    #[test]
    fn a_rejected_login_fails_the_queued_requests() {
        let mut session = session("redis://a/99");
        session.begin(1, &Request::Post { remark: b"x".to_vec() });
        output(&mut session);
        let refused = session.receive(b"-ERR DB index is out of range\r\n").unwrap_err();
        session.fail(&refused);
        assert_eq!(output(&mut session), "");
        assert_eq!(answers(&mut session), [(1, Err(refused))]);
    }

    #[test]
    fn a_user_without_a_password_logs_in_with_an_empty_one() {
        let mut session = session("redis://ada@a");
        assert_eq!(output(&mut session), "*3 $4 AUTH $3 ada $0  ");
    }

    #[test]
    fn the_last_error_reply_before_a_close_is_the_reason() {
        let mut session = session("redis://a");
        session.begin(1, &VISIT);
        session.begin(2, &VISIT);
        session.receive(b"-ERR max number of \x1b[31mclients reached\r\n").unwrap();
        session.fail(&StoreError::TimedOut);
        let reply = r"ERR max number of \u{1b}[31mclients reached".to_owned();
        let all = answers(&mut session);
        assert_eq!(all[0], (1, Err(StoreError::Protocol(reply))));
        assert_eq!(all[1], (2, Err(StoreError::TimedOut)));
    }

    #[test]
    fn answers_are_in_order_and_each_has_its_own_error() {
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
                (3, Ok(Answer::Visit { remarks: Vec::new().into(), visitor: 9 })),
            ]
        );
    }

    #[test]
    fn a_failed_connection_fails_all_pending_requests() {
        for (reply, why) in [
            ("-NOAUTH Authentication required.\r\n", None),
            ("-WRONGPASS no\r\n", None),
            ("-ERR invalid password\r\n", None),
            ("HTTP/1.1 400 Bad Request\r\n\r\n", Some("a line has no valid Redis type")),
        ] {
            let mut session = session("redis://:pw@a");
            session.begin(1, &VISIT);
            session.begin(2, &VISIT);
            let error = session.receive(reply.as_bytes()).unwrap_err();
            match why {
                None => assert!(matches!(error, StoreError::Refused(_)), "{reply}: {error}"),
                Some(why) => assert_eq!(error, StoreError::Protocol(why.to_owned())),
            }
            session.fail(&error);
            let all: Vec<_> = answers(&mut session);
            assert_eq!(all, [(1, Err(error.clone())), (2, Err(error))]);
            assert_eq!(session.pending_requests(), 0);
        }
    }

    #[test]
    fn error_replies_are_distinguished() {
        for (reply, is_right) in [
            ("LOADING Redis is loading", matches_loading as fn(&StoreError) -> bool),
            ("READONLY You can't write", |e| matches!(e, StoreError::ReadOnly(_))),
            ("MISCONF disk", |e| matches!(e, StoreError::ReadOnly(_))),
            ("NOAUTH x", |e| matches!(e, StoreError::Refused(_))),
            ("DENIED Redis is running in protected mode", |e| matches!(e, StoreError::Refused(_))),
            ("MOVED 1 a:1", |e| matches!(e, StoreError::Cluster(_))),
            ("ERR max number of clients reached", |e| matches!(e, StoreError::Unreachable(_))),
            ("WRONGTYPE x", |e| matches!(e, StoreError::Protocol(_))),
        ] {
            let mut session = session("redis://a");
            session.begin(1, &Request::Post { remark: Vec::new() });
            session.receive(format!("-{reply}\r\n").as_bytes()).unwrap();
            let (_, answer) = session.next_answer().unwrap();
            assert!(is_right(&answer.unwrap_err()), "{reply}");
        }
    }

    fn matches_loading(error: &StoreError) -> bool {
        *error == StoreError::Loading
    }

    #[test]
    fn wrong_and_unexpected_replies_are_protocol_errors() {
        let mut wrong = session("redis://a");
        wrong.begin(1, &VISIT);
        wrong.receive(b":1\r\n$1\r\na\r\n").unwrap();
        assert!(matches!(wrong.next_answer(), Some((1, Err(StoreError::Protocol(_))))));
        let mut unasked = session("redis://a");
        assert!(matches!(unasked.receive(b"+OK\r\n"), Err(StoreError::Protocol(_))));
    }

    #[test]
    fn requests_beyond_the_pipeline_limit_are_rejected_as_busy() {
        let mut session = session("redis://a");
        for ticket in 0..limits::PIPELINE as u32 {
            assert!(!session.is_full());
            session.begin(ticket, &VISIT);
        }
        session.begin(u32::MAX, &VISIT);
        assert_eq!(answers(&mut session), [(u32::MAX, Err(StoreError::Busy))]);
    }

    proptest! {
        /// The answers do not depend on how the stream is split.
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
                prop_assert_eq!(session.pending_requests(), 0);
            }
        }
    }
}
