//! The state of an exchange with respect to the cache.

use pollux_cache::{Conditions, Fetch, Forward, Ticket};

/// The state of an exchange with respect to the cache.
#[derive(Debug, Default)]
pub(super) struct CacheState {
    /// How often the exchange has waited for the fetch of another one.
    pub(super) waits: u8,
    pub(super) report: Report,
    /// How the cache wants the request to be sent; `None` if there is no cache.
    terms: Option<FetchTerms>,
}

/// What the exchange still has to report to the cache about its fetch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Report {
    /// Nothing: there is no fetch, or its outcome has been reported.
    #[default]
    None,
    /// The response head or a failure.
    Due(Ticket),
    /// The rest of the content, which the cache is storing, and whether it is complete.
    Storing(Ticket),
}

/// How the cache wants a request to be sent.
#[derive(Debug)]
struct FetchTerms {
    conditions: Conditions,
    /// The request is sent with GET, whatever the client's method.
    is_refresh: bool,
    /// Why the request is not answered from the cache.
    forward: Forward,
}

impl CacheState {
    /// The cache has no usable response: the request will be sent as `fetch` says.
    pub(super) fn start(&mut self, fetch: Fetch) {
        let Fetch { ticket, conditions, is_refresh, forward } = fetch;
        self.report = Report::Due(ticket);
        self.terms = Some(FetchTerms { conditions, is_refresh, forward });
    }

    /// Why the request is not answered from the cache; `None` if there is no cache.
    pub(super) fn forward(&self) -> Option<Forward> {
        self.terms.as_ref().map(|terms| terms.forward)
    }

    /// The field lines that replace the client's conditions (`If-None-Match` and others); `None` if the client's are
    /// kept.
    pub(super) fn conditions(&self) -> Option<&[u8]> {
        match &self.terms.as_ref()?.conditions {
            Conditions::Own => None,
            Conditions::Replaced(lines) => Some(lines),
        }
    }

    /// Whether the request is sent with GET, whatever the client's method.
    pub(super) fn is_refresh(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.is_refresh)
    }
}

impl Report {
    /// The fetch, if something is to be reported of it.
    pub(super) fn ticket(self) -> Option<Ticket> {
        match self {
            Self::None => None,
            Self::Due(ticket) | Self::Storing(ticket) => Some(ticket),
        }
    }

    /// Reports nothing more. Returns the fetch, if something was to be reported of it.
    pub(super) fn take(&mut self) -> Option<Ticket> {
        std::mem::take(self).ticket()
    }
}
