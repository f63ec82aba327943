//! The running server, as the new process sees it.

use super::{VARIABLE, channel::Channel, message::Message};
use crate::transport::inherited::{self, InheritedListener, has_succeeded};
use anyhow::{Context, bail, ensure};
use pollux_sys as sys;
use std::{
    env,
    os::fd::OwnedFd,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The time for which the running server may be silent.
const PATIENCE: Duration = Duration::from_secs(60);
/// The maximum number of listeners that a server hands over.
const LISTENERS_MAX: u32 = 65_536;

/// The channel that this process was started with, if there is one.
static CHANNEL: OnceLock<Result<Option<Channel>, String>> = OnceLock::new();

/// The result of receiving the listeners.
static LISTENERS: OnceLock<Result<(), String>> = OnceLock::new();

/// Returns whether this process is to take over from another one that has not confirmed this yet.
pub(crate) fn is_in_progress() -> bool {
    !has_succeeded() && matches!(channel(), Ok(Some(_)))
}

/// An object that the former server hands over besides its listeners.
#[derive(Debug)]
pub(crate) enum TransferSocket {
    /// A channel from which connections are received.
    Channel(OwnedFd),
    /// The socket from which the hub's log is received.
    Hub(OwnedFd),
}

fn channel() -> anyhow::Result<Option<&'static Channel>> {
    let channel = CHANNEL.get_or_init(|| {
        let Some(number) = env::var_os(VARIABLE) else { return Ok(None) };
        let open = || {
            let number = number.to_str().and_then(|number| number.parse().ok());
            sys::inherited(number.context("no number")?).context("no descriptor")
        };
        let channel = open().map_err(|error| {
            format!(
                "{VARIABLE} does not name a channel ({error:#}): only an upgrade sets it, unset it"
            )
        });
        channel.map(|socket| Some(Channel::of(socket)))
    });
    channel.as_ref().map(Option::as_ref).map_err(|message| anyhow::anyhow!(message.clone()))
}

/// Reports to the server that started this process as its successor why this process cannot succeed
/// it. The operator who requested the upgrade sees this reason. Does nothing if this process was
/// started otherwise.
pub fn report_failure(error: &anyhow::Error) {
    if let Ok(Some(channel)) = channel() {
        // The server may have given up waiting, or may have confirmed already.
        let _ = channel.send(&Message::Failed { reason: format!("{error:#}") }, &[]);
    }
}

/// A server that waits for this process to be ready.
#[derive(Debug)]
pub(crate) struct Predecessor(&'static Channel);

impl Predecessor {
    /// Finds the server that has started this process as its successor, and stores its listeners
    /// for [`inherited::take`]. Returns `None` if this process was started otherwise. A second call
    /// finds the same server.
    ///
    /// # Errors
    /// The server sends invalid messages, or no message in time.
    pub(crate) fn find() -> anyhow::Result<Option<Self>> {
        let Some(channel) = channel()? else { return Ok(None) };
        let received = LISTENERS
            .get_or_init(|| receive_listeners(channel).map_err(|error| format!("{error:#}")));
        let received = received.as_ref().map_err(|message| anyhow::anyhow!(message.clone()));
        received.context("the server to succeed")?;
        Ok(Some(Self(channel)))
    }

    /// Takes over: `adopt` is called with each object that the former server hands over. Returns
    /// when that server has confirmed.
    ///
    /// # Errors
    /// The former server goes on serving; this process must end.
    pub(crate) fn succeed(
        self,
        mut adopt: impl FnMut(TransferSocket) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let outcome = (|| {
            self.0.send(&Message::Ready, &[])?;
            loop {
                match self.0.expect(Instant::now() + PATIENCE)? {
                    (Message::Channel, mut sockets) => {
                        adopt(TransferSocket::Channel(sockets.pop().context("a channel")?))?;
                    }
                    (Message::Hub, mut sockets) => {
                        adopt(TransferSocket::Hub(sockets.pop().context("a socket")?))?;
                    }
                    (Message::Confirm, _) => {
                        inherited::succeed();
                        return anyhow::Ok(());
                    }
                    _ => bail!("a message that does not belong here"),
                }
            }
        })();
        outcome.context("the upgrade is given up, the former server goes on")
    }
}

fn receive_listeners(channel: &Channel) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let (Message::Begin { listeners }, _) = channel.expect(deadline)? else {
        bail!("a message that does not belong here");
    };
    ensure!(listeners <= LISTENERS_MAX, "{listeners} listeners: {LISTENERS_MAX} are the most");
    let mut all = Vec::new();
    for _ in 0..listeners {
        match channel.expect(deadline)? {
            (Message::Listener { role, index, configured }, mut sockets) => {
                let socket = sockets.pop().context("a socket")?;
                all.push(InheritedListener { role, index, configured, socket });
            }
            _ => bail!("a message that does not belong here"),
        }
    }
    inherited::keep(all);
    Ok(())
}
