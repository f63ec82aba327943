//! The location of the clients: on the server's machine, or behind a network with delay and loss.

use super::value::Point;
use super::{Experiment, IDLE, Value};
use anyhow::ensure;
use serde::{Deserialize, Serialize};

/// The axis of [`Where`].
pub const CLIENTS: &str = "clients";

/// The flag of `pollux load` for the number of requests on a connection.
pub const SESSION: &str = "session-requests";

/// The longest delay in milliseconds: enough to reach the moon.
const MAX_DELAY_MS: f64 = 2_000.0;

/// The network between the server and far clients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Clients {
    /// The delay of each packet in one direction, in milliseconds.
    pub delay_ms: f64,
    /// The share of packets that are lost in each direction.
    pub loss: f64,
    /// How long the load lasts before it is measured: several round trips, until the final number of
    /// connections is open.
    pub settle_seconds: f64,
}

/// The location of the clients: a value of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Where {
    /// On loopback. The saturation is measured with these clients.
    Near,
    /// On loopback, beside as many idle connections as far clients would keep open.
    Idle,
    /// Behind the network that [`Clients`] describes.
    Far,
}

impl Where {
    /// Returns the location of the clients at this point; near by default.
    pub fn at(point: &Point) -> Self {
        point.get(CLIENTS).and_then(Value::named).unwrap_or(Self::Near)
    }
}

impl Clients {
    /// Returns how many connections far clients keep open at `rate_rps` (Little's law). To the server, the
    /// first request arrives together with the connection, and the connection ends with the last reply: it
    /// stays open for one round trip between each request and the next.
    pub fn kept_open(&self, rate_rps: f64, requests_per_connection: f64) -> f64 {
        let round_trips = (requests_per_connection - 1.0) / requests_per_connection;
        (rate_rps * round_trips * 2.0 * self.delay_ms / 1e3).round()
    }
}

impl Experiment {
    /// Checks the axis of clients.
    ///
    /// # Errors
    /// When the axis and the table do not match.
    pub(super) fn check_clients(&self) -> anyhow::Result<()> {
        let axis = self.find_axis(CLIENTS);
        ensure!(
            axis.is_some() == self.clients.is_some(),
            "[clients] and an axis called \"clients\" belong together"
        );
        let (Some(axis), Some(clients)) = (axis, &self.clients) else { return Ok(()) };
        let fits = clients.delay_ms > 0.0 && clients.delay_ms <= MAX_DELAY_MS;
        ensure!(fits, "[clients] delay-ms: above 0, at most {MAX_DELAY_MS}");
        ensure!((0.0..=0.5).contains(&clients.loss), "[clients] loss: a share, at most 0.5");
        let fits = (0.1..=600.0).contains(&clients.settle_seconds);
        ensure!(fits, "[clients] settle-seconds: 0.1 to 600");
        let requests = self.load.get(SESSION).and_then(Value::number).unwrap_or(1.0);
        ensure!(requests >= 2.0, "[load] {SESSION}: at least 2, or no connection stays open");
        for value in &axis.values {
            ensure!(
                value.named::<Where>().is_some(),
                "[[axis]] \"clients\": {value}: expected near, idle or far"
            );
        }
        ensure!(
            self.rate.is_some() && self.phase.is_empty(),
            "[clients] needs [rate], and no phases: how many do they keep open?"
        );
        ensure!(
            self.find_axis(IDLE).is_none(),
            "[clients] says how many connections are idle: no axis {IDLE:?} beside it"
        );
        Ok(())
    }
}
