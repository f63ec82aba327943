//! Forms in the content of requests: an update, or the topics of a QUERY.

use pollux_http::request::{Framing, KnownField, Request};
use pollux_hub::{form, limits::Limits, reject::Reject};

/// Checks what the head of a request says about its form. `what` is what the form contains, such as "the update".
pub(super) fn check_head(request: &Request<'_>, limits: &Limits, what: &str) -> Result<(), Reject> {
    let is_form = request.single(KnownField::ContentType).is_some_and(form::is_form);
    if !is_form || request.field(b"content-encoding").is_some() {
        return Err(Reject {
            status: 415,
            code: None,
            message: format!("{what} is sent as application/x-www-form-urlencoded, uncompressed")
                .into(),
        });
    }
    match request.framing {
        Framing::Length(length) if length > limits.update_bytes as u64 => {
            Err(too_large(limits, what))
        }
        _ => Ok(()),
    }
}

/// Appends a part of the content to `bytes`.
pub(super) fn append(
    bytes: &mut Vec<u8>,
    part: &[u8],
    limits: &Limits,
    what: &str,
) -> Result<(), Reject> {
    if bytes.len() + part.len() > limits.update_bytes {
        return Err(too_large(limits, what));
    }
    bytes.extend_from_slice(part);
    Ok(())
}

fn too_large(limits: &Limits, what: &str) -> Reject {
    Reject::too_large(format!("{what} is larger than {} bytes", limits.update_bytes))
}
