//! What a listener is for.

/// The purpose of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The clients of the server.
    Clients,
    /// `--control`.
    Control,
    /// `--admin`.
    Admin,
}
