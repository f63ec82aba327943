//! The reasons for which services are called again, and the data that they send to streams.

use crate::reactor::{
    AlarmId, HandoverError, LookupId, ResolveError, UpstreamError, UpstreamId, WakeReason,
};
use pollux_http::response::SharedChunk;
use std::net::SocketAddr;

/// Data for a stream.
#[derive(Clone, Debug)]
pub enum StreamSend<'a> {
    /// Content, in the framing of the stream's response. Bytes that the connection does not accept at once
    /// stay queued for it, by reference.
    Chunk(&'a SharedChunk),
    /// Content without meaning that shows that the stream is open. It does not wake a parked exchange.
    Heartbeat(&'a SharedChunk),
    /// The end of the content, if it can be sent at once; then the connection is closed.
    End,
}

/// The reason why an exchange, or a service, is called again.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'b> {
    /// The output was full when the exchange last wrote, and is low now.
    Room,
    /// The client has closed its side of the connection. It may still read: HTTP lets a client close its side
    /// after its last request. The client may also have disconnected; only a send would show that.
    ClientEnded,
    /// An upstream connection is established.
    Connected(UpstreamId),
    /// Bytes have arrived on an upstream connection. The call must consume all of them. To receive no more
    /// bytes, pause the connection.
    Received(UpstreamId, &'b [u8]),
    /// The peer of an upstream connection has closed its side. Our side is still open.
    Ended(UpstreamId),
    /// The output of an upstream connection was full, and is low now.
    UpstreamRoom(UpstreamId),
    /// An upstream connection could not be established, or has broken. It no longer exists.
    Failed(UpstreamId, UpstreamError),
    /// An alarm has expired.
    Time(AlarmId),
    /// The result of a name lookup: addresses, or the reason why there are none.
    Resolved(LookupId, Result<Vec<SocketAddr>, ResolveError>),
    /// The service itself has woken the exchange with [`Reactor::wake`](crate::service::Reactor::wake).
    Woken(WakeReason),
    /// The client could not be handed over to another process.
    NotTaken(HandoverError),
}
