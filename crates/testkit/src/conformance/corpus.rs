//! The corpus: requests, and the replies they must get. [`super::case`] explains the rows.
//!
//! Where the specifications leave a choice, the rows contain this server's choice; the
//! documentation of `pollux_http::request`, `body` and `path` lists the choices.

mod body;
mod conditions;
mod fields;
mod long;
mod methods;
mod paths;
mod request_line;

use super::case::Case;
use crate::http::Client;
use std::io::{Read, Write};

/// Returns every case; the entity tags are read from the server to which `connect` connects. `is_tls` tells
/// whether it connects over TLS.
pub(crate) fn all<S: Read + Write>(connect: impl Fn() -> S, is_tls: bool) -> Vec<Case> {
    let tag = |path: &str, fields: &[&str]| {
        let reply = Client::over(connect()).request("GET", path, fields);
        reply.field("etag").expect("an entity tag").to_owned()
    };
    let etag = tag("/digits", &[]);
    let gzip = tag("/page.txt", &["Accept-Encoding: gzip"]);
    let https = if is_tls { "200 open | =0123456789" } else { "421 closed" };
    let fill = |text: &str| {
        text.replace("{etag}", &etag).replace("{gzip}", &gzip).replace("{https}", https)
    };
    let mut cases = Vec::new();
    for (name, send, expected) in
        [request_line::ROWS, fields::ROWS, body::ROWS, methods::ROWS, paths::ROWS, conditions::ROWS]
            .concat()
    {
        let send = match std::str::from_utf8(send) {
            Ok(text) => fill(text).into_bytes(),
            Err(_) => send.to_vec(),
        };
        cases.push(Case::new(name, send, &fill(expected)));
    }
    cases.extend(long::cases());
    cases
}
