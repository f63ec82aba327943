//! The smallest service: it answers every request with a line of text.
//!
//! `cargo run -p pollux-server --example hello`, then `curl http://127.0.0.1:8080/`.

use pollux_server::service::{Flow, Request, RequestContext, ResponseWriter, Service, Status};
use pollux_server::{Server, Settings, config::Listen};

pub(crate) struct Hello;

impl Service for Hello {
    type Exchange = ();

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        _request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<()> {
        let head = response.head(context, Status::Ok).field("Content-Type", b"text/plain");
        let mut body = head.length(6);
        body.data(b"hello\n");
        body.end()
    }
}

fn main() -> anyhow::Result<()> {
    let listen = vec![Listen::Tcp("127.0.0.1:8080".parse()?)];
    Server::start_with(Settings { listen, ..Settings::new(".") }, || Ok(Hello))?.wait().map(drop)
}
