//! The path rules of a site: redirects and rewrites, which are applied before any service handles a request,
//! and rules for files.
//!
//! Nothing here does I/O. A site without such rules has no [`Policy`], and its requests cost one comparison.

mod cors;
pub(crate) mod listing;
mod pattern;
mod preset;
mod rule;
mod site_rules;

pub use cors::Cors;
pub(crate) use cors::{OriginNumber, is_preflight};
pub use pattern::Pattern;
pub(crate) use preset::HSTS;
pub use preset::SecurityHeaders;
pub use rule::{Redirect, Rewrite};
pub use site_rules::{ErrorPage, PathField, SiteRules};

use pollux_http::{
    Status,
    request::{Request, Target},
};

/// The rules that are applied before a service handles a request.
#[derive(Debug)]
pub(crate) struct Policy {
    redirects: Vec<Redirect>,
    rewrites: Vec<Rewrite>,
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A service answers it.
    Serve,
    /// A service answers it, as if it were for this target.
    Rewrite(Vec<u8>),
    /// The client is redirected: the status, and the `Location` line with its CRLF.
    Redirect(Status, Vec<u8>),
}

impl Policy {
    /// Creates the policy of `rules`; `None` if they have no redirects and no rewrites.
    pub(crate) fn of(rules: &SiteRules) -> Option<Box<Self>> {
        let SiteRules { redirects, rewrites, .. } = rules;
        let is_empty = redirects.is_empty() && rewrites.is_empty();
        (!is_empty)
            .then(|| Box::new(Self { redirects: redirects.clone(), rewrites: rewrites.clone() }))
    }

    /// Decides about a request: applies the first redirect that matches it, else the first rewrite that
    /// matches it.
    pub(crate) fn decide(&self, request: &Request<'_>) -> Decision {
        let Target::Path { path, query } = request.target else { return Decision::Serve };
        for redirect in &self.redirects {
            if let Some(location) = redirect.apply(path, query) {
                let mut lines = b"Location: ".to_vec();
                lines.extend_from_slice(&location);
                lines.extend_from_slice(b"\r\n");
                return Decision::Redirect(redirect.status, lines);
            }
        }
        let rewritten = self.rewrites.iter().find_map(|rewrite| rewrite.apply(path, query));
        rewritten.map_or(Decision::Serve, Decision::Rewrite)
    }
}
