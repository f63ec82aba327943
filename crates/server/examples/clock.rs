//! Server-sent events: every client gets the time once a second.
//!
//! `cargo run -p pollux-server --example clock`, then `curl -N http://127.0.0.1:8080/`.

use pollux_server::{Server, Settings, config::Listen, service::*};

const SECOND: u32 = 10; // in ticks of 100 ms

#[derive(Default)]
pub(crate) struct Clock(Vec<ExchangeId>);

impl Service for Clock {
    type Exchange = ();

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        _request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<()> {
        let head = response.head(context, Status::Ok).field("Content-Type", b"text/event-stream");
        let _open = head.stream();
        if self.0.is_empty() {
            context.reactor.timer(SECOND, EventTarget::Service);
        }
        self.0.push(context.id());
        Flow::Waiting(())
    }

    fn event(&mut self, context: &mut ServiceContext<'_>, _second_is_over: Event<'_>) {
        self.0.iter().for_each(|&client| context.reactor.wake(client, WakeReason::Ready));
        if !self.0.is_empty() {
            context.reactor.timer(SECOND, EventTarget::Service);
        }
    }

    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        (): (),
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<()> {
        if let (Event::Woken(_), Some(mut body)) = (event, response.body()) {
            body.data(format!("data: {}\n\n", context.unix_second()).as_bytes());
        }
        Flow::Waiting(())
    }

    fn cancel(&mut self, context: &mut RequestContext<'_>, (): ()) {
        self.0.retain(|&client| client != context.id());
    }
}

fn main() -> anyhow::Result<()> {
    let listen = vec![Listen::Tcp("127.0.0.1:8080".parse()?)];
    let config = Settings { listen, ..Settings::new(".") };
    Server::start_with(config, || Ok(Clock::default()))?.wait().map(drop)
}
