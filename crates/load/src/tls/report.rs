//! The results of a run about TLS.

use super::HandshakeCounts;
use crate::{record::Recorder, times::Times};
use serde::Serialize;

/// The TLS handshakes of the set-up and the measured part.
#[derive(Clone, Debug, Serialize)]
pub struct TlsReport {
    /// The number of completed handshakes.
    pub handshakes: HandshakeCounts,
    /// Completed handshakes per second, from the start of the measured part until the last request had
    /// its outcome. Connections that were opened before do not count.
    pub handshakes_per_s: f64,
    /// From the end of the TCP handshake to the end of the TLS handshake. It is no part of
    /// `connect_us`; the latency of a request that waits for its connection contains both.
    pub handshake_us: Times,
    /// The reason of the first failure counted as `tls`.
    pub first_error: Option<String>,
}

impl TlsReport {
    pub(crate) fn new(recorder: &Recorder, elapsed_s: f64) -> Self {
        let per_s = recorder.measured_handshakes as f64 / elapsed_s;
        Self {
            handshakes: recorder.handshakes,
            handshakes_per_s: if elapsed_s > 0.0 { per_s } else { 0.0 },
            handshake_us: Times::from(&recorder.handshake),
            first_error: recorder.first_tls.clone(),
        }
    }
}
