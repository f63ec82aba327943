//! Metrics of certificates that are ordered by ACME.

use super::{Family, Snapshot, by, counter, gauge};

/// Appends the metrics, if certificates are ordered.
pub(super) fn families(snapshot: &Snapshot, all: &mut Vec<Family>) {
    let Some(status) = &snapshot.info.acme else { return };
    let expiries = status
        .certificates()
        .into_iter()
        .filter_map(|certificate| Some((certificate.name, certificate.expires_unix_s?)));
    all.extend([
        counter(
            "pollux_acme_orders",
            "Orders for certificates, by what became of them.",
            by("outcome", [("ok", status.succeeded()), ("failed", status.failed())]),
        ),
        gauge(
            "pollux_certificate_expiry_timestamp_seconds",
            "When the certificate of a name expires, as a UNIX time.",
            by("name", expiries),
        ),
    ]);
}
