//! Answers each path of the admin listener.

use super::{
    exposition::Format,
    families::families,
    page,
    request::PageRequest,
    response::{self, begin, send},
    rows,
    snapshot::ServerView,
};
use pollux_http::Status;
use std::{
    io::{self, Write},
    thread,
    time::Duration,
};

/// The interval of server-sent events.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of events of a stream; the browser then opens it again. So a client that has
/// vanished without closing its connection does not occupy a slot for ever.
const EVENTS_MAX: u32 = 3600;

/// Answers a request.
///
/// # Errors
/// The errors of send(2): the client has disconnected, or accepts no bytes.
pub(super) fn answer(
    request: &PageRequest,
    view: &ServerView,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut whole =
        |status, kind: &str, body: &[u8]| send(out, status, kind, body, request.is_head);
    match request.path.as_str() {
        "/" => whole(Status::Ok, "text/html; charset=utf-8", page::render(view).as_bytes()),
        "/metrics" => {
            let format = Format::of_accept(&request.accept);
            let text = format.write(&families(&view.snapshot()));
            whole(Status::Ok, format.content_type(), text.as_bytes())
        }
        "/stats.json" => {
            let snapshot = view.snapshot();
            let mut line = snapshot.statistics.to_json(&view.info().mechanism);
            line.push('\n');
            whole(Status::Ok, "application/json", line.as_bytes())
        }
        "/healthz" => {
            let (running, all) = view.running_of();
            let healthy = running >= all;
            let text = if healthy {
                "ok\n".to_owned()
            } else {
                format!("{running} of {all} workers run\n")
            };
            whole(status_of(healthy), "text/plain; charset=utf-8", text.as_bytes())
        }
        "/readyz" => {
            let is_ready = !view.is_stopping();
            let text = if is_ready { "ready\n" } else { "stopping\n" };
            whole(status_of(is_ready), "text/plain; charset=utf-8", text.as_bytes())
        }
        // Like the stream itself, its head has no length (RFC 9110 §8.6).
        "/events" if request.is_head => begin(out, "text/event-stream"),
        "/events" => events(view, out),
        _ => response::refuse(
            out,
            Status::NotFound,
            "try /, /metrics, /stats.json, /healthz or /readyz",
            request.is_head,
        ),
    }
}

fn status_of(good: bool) -> Status {
    if good { Status::Ok } else { Status::ServiceUnavailable }
}

fn events(view: &ServerView, out: &mut impl Write) -> io::Result<()> {
    begin(out, "text/event-stream")?;
    let mut earlier = view.earlier();
    for _ in 0..EVENTS_MAX {
        let now = view.snapshot();
        let event = rows::event(&rows::rows(&earlier, &now));
        out.write_all(event.as_bytes())?;
        earlier = now;
        thread::sleep(EVENT_INTERVAL);
        if view.is_stopping() {
            break;
        }
    }
    Ok(())
}
