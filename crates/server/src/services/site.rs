//! The static site: files below one directory. Every request is answered at once.

mod answer;
mod compress;
mod files;
mod missing;

pub(crate) use files::{Contents, Tree};

use crate::config::SiteConfig;
use crate::service::{
    Event, Flow, Page, Part, RequestContext, ResponseWriter, Service, worker_state::Answer,
};
use files::{Files, Miss};
use pollux_http::{
    Status,
    request::{Framing, Method, ParseStatus, Request, Target, parse},
};
use std::sync::Arc;

/// Serves the files of one directory.
#[derive(Debug)]
pub(crate) struct Site {
    files: Files,
}

/// The head of a request whose body is being received. No resource here uses a body, but a request is
/// answered only when it is complete: then a malformed body is refused like any other malformed request, and
/// the division of the input into pieces makes no difference. The bytes of the head are kept meanwhile; the
/// body is discarded.
#[derive(Debug)]
pub(crate) struct Head(Box<[u8]>);

impl Site {
    /// Serves the files in `tree`. Other workers may share their contents through `contents`. `common_fields`
    /// are part of every head: lines with CRLF.
    ///
    /// # Errors
    /// The errors of [`Files::new`].
    pub(crate) fn new(
        tree: Arc<Tree>,
        contents: Arc<Contents>,
        config: &SiteConfig,
        common_fields: Vec<u8>,
    ) -> anyhow::Result<Self> {
        Ok(Self { files: Files::new(tree, contents, config, common_fields)? })
    }

    /// Returns whether the site can answer a request: with a file, or with a response other than that there
    /// is none.
    pub(crate) fn has(&mut self, request: &Request<'_>, now_tick: u32) -> bool {
        let (Method::Get | Method::Head, Target::Path { path, .. }) =
            (request.method, request.target)
        else {
            return false;
        };
        self.has_path(path, now_tick)
    }

    fn has_path(&mut self, path: &[u8], now_tick: u32) -> bool {
        // A path that is not valid for a file may be valid for an origin.
        const NOT_HERE: [Status; 2] = [Status::NotFound, Status::BadRequest];
        match self.files.find(path, now_tick) {
            Err(Miss::Status(status)) => !NOT_HERE.contains(&status),
            Err(Miss::NoIndex) => self.files.rules().listing,
            // The redirect is for the site only if the path with the slash is: an origin may redirect that
            // path back, and the client would never arrive.
            Err(Miss::NeedsSlash) => {
                !path.ends_with(b"/") && self.has_path(&[path, b"/"].concat(), now_tick)
            }
            Ok(_) => true,
        }
    }

    /// Answers with the site's page for the status of `page`, or with `page` itself.
    pub(crate) fn put_page(
        &mut self,
        context: &RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        page: Page<'_>,
    ) -> Answer {
        missing::put_page(&mut self.files, context, response, page)
    }
}

impl Service for Site {
    type Exchange = Head;

    #[inline]
    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Head> {
        // A client that expects 100 (Continue) gets its final answer at once, except for methods
        // that take a body (RFC 9110 §10.1.1).
        let reads_body = request.framing != Framing::None
            && (!request.expect_continue || matches!(request.method, Method::Get | Method::Head));
        if reads_body {
            return Flow::NeedBody(Head(request.to_head().into()));
        }
        answer::answer(&mut self.files, context, response, request);
        Flow::Done
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        head: Head,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Head> {
        if let Part::Data(_) = part {
            return Flow::NeedBody(head);
        }
        match parse(&head.0, &context.rules.limits) {
            Ok(ParseStatus::Complete { request, .. }) => {
                answer::answer(&mut self.files, context, response, &request);
                Flow::Done
            }
            // The head was parsed before. If it cannot be parsed now, there is no sensible response.
            _ => Flow::Cut,
        }
    }

    /// The site waits for bodies only.
    fn resume(
        &mut self,
        _turn: &mut RequestContext<'_>,
        head: Head,
        _wake: Event<'_>,
        _response: &mut ResponseWriter<'_>,
    ) -> Flow<Head> {
        Flow::NeedBody(head)
    }

    fn cancel(&mut self, _turn: &mut RequestContext<'_>, _head: Head) {}
}
