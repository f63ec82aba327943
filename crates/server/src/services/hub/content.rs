//! Forms in the content of requests: an update, or the topics of a QUERY.

use pollux_http::request::{Framing, KnownField, Request};
use pollux_hub::{form, limits::Limits, reject::Reject};

/// The kind of content that a form contains.
pub(super) struct Content {
    name: &'static str,
    /// The advice to a client whose form is too large.
    advice: &'static str,
    /// The number of bytes that it may have.
    most: fn(&Limits) -> usize,
}

pub(super) const UPDATE: Content = Content {
    name: "the update",
    advice: "send a smaller one",
    most: |limits| limits.update_bytes,
};
pub(super) const QUERY: Content = Content {
    name: "the query",
    advice: "name fewer topics, or a pattern",
    most: Limits::query_bytes,
};

impl Content {
    /// Checks the description of the form in the head of a request.
    pub(super) fn check_head(&self, request: &Request<'_>, limits: &Limits) -> Result<(), Reject> {
        let is_form = request.single(KnownField::ContentType).is_some_and(form::is_form);
        if !is_form || request.field(b"content-encoding").is_some() {
            let name = self.name;
            let message =
                format!("{name} is sent as application/x-www-form-urlencoded, uncompressed");
            return Err(Reject { status: 415, code: None, message: message.into() });
        }
        match request.framing {
            Framing::Length(length) if length > (self.most)(limits) as u64 => {
                Err(self.too_large(limits))
            }
            _ => Ok(()),
        }
    }

    /// Appends a part of the content to `bytes`.
    pub(super) fn append(
        &self,
        bytes: &mut Vec<u8>,
        part: &[u8],
        limits: &Limits,
    ) -> Result<(), Reject> {
        if bytes.len() + part.len() > (self.most)(limits) {
            return Err(self.too_large(limits));
        }
        bytes.extend_from_slice(part);
        Ok(())
    }

    fn too_large(&self, limits: &Limits) -> Reject {
        let Self { name, advice, most } = self;
        Reject::too_large(format!("{name} is larger than {} bytes: {advice}", most(limits)))
    }
}
