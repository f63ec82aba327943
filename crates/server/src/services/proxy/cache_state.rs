//! The state of an exchange with respect to the cache.

use pollux_cache::{Conditions, Fetch, Forward, Ticket};

/// The state of an exchange with respect to the cache.
#[derive(Debug, Default)]
pub(super) struct CacheState {
    /// The number of times that the exchange has waited for the fetch of another one.
    pub(super) waits: u8,
    pub(super) report: Report,
    /// The cache's terms for sending the request; `None` if there is no cache.
    terms: Option<FetchTerms>,
}

/// The report about its fetch that the exchange still owes to the cache.
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

/// The cache's terms for sending a request.
#[derive(Debug)]
struct FetchTerms {
    conditions: Conditions,
    /// Whether the request is sent with GET, regardless of the client's method.
    is_refresh: bool,
    /// The reason why the request is not answered from the cache.
    forward: Forward,
}

impl CacheState {
    /// Notes that the cache has no usable response, and that the request will be sent as `fetch` says.
    pub(super) fn start(&mut self, fetch: Fetch) {
        let Fetch { ticket, conditions, is_refresh, forward } = fetch;
        self.report = Report::Due(ticket);
        self.terms = Some(FetchTerms { conditions, is_refresh, forward });
    }

    /// Returns the reason why the request is not answered from the cache; `None` if there is no cache.
    pub(super) fn forward(&self) -> Option<Forward> {
        self.terms.as_ref().map(|terms| terms.forward)
    }

    /// Returns the field lines that replace the client's conditions (`If-None-Match` and others); `None` if
    /// the client's conditions are kept.
    pub(super) fn conditions(&self) -> Option<&[u8]> {
        match &self.terms.as_ref()?.conditions {
            Conditions::Own => None,
            Conditions::Replaced(lines) => Some(lines),
        }
    }

    /// Returns whether the request is sent with GET, regardless of the client's method.
    pub(super) fn is_refresh(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.is_refresh)
    }
}

impl Report {
    /// Returns the fetch, if a report about it is due.
    pub(super) fn ticket(self) -> Option<Ticket> {
        match self {
            Self::None => None,
            Self::Due(ticket) | Self::Storing(ticket) => Some(ticket),
        }
    }

    /// Ends the reports. Returns the fetch, if a report about it was due.
    pub(super) fn take(&mut self) -> Option<Ticket> {
        std::mem::take(self).ticket()
    }
}
