//! The input for the configuration of a peer: its role, its files, its address.

use super::program::Peer;
use crate::{archive::write_into, experiment::Encryption};
use anyhow::{Context as _, bail};
use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The role of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer serves the files of [`PeerSetup::documents`].
    Files,
    /// The peer caches the responses of an origin, to which it has persistent connections.
    Front {
        /// The origin.
        origin: SocketAddr,
    },
}

/// The files and directories of a peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerSetup<'a> {
    /// The document root.
    pub documents: &'a Path,
    /// A directory for this peer alone, for configuration, logs and process ids.
    pub scratch: &'a Path,
    /// Certificate and encryption for HTTPS; if absent, the peer serves plain HTTP.
    pub tls: Option<PeerTls<'a>>,
}

/// The settings of HTTPS.
#[derive(Clone, Copy, Debug)]
pub struct PeerTls<'a> {
    /// The certificate and its key, in one file or in two (PEM).
    pub files: &'a TlsFiles,
    /// Whether the server or the kernel encrypts.
    pub encryption: Encryption,
}

/// A self-signed certificate in files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The certificate, followed by the key.
    pub both: PathBuf,
}

impl TlsFiles {
    /// Creates a certificate for the loopback address, in files below `directory`.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn write(directory: &Path) -> anyhow::Result<Self> {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let (certificate, key) = pollux_tls::self_signed_pem(names)?;
        Ok(Self {
            certificate: write_into(directory, "tls.pem", &certificate)?,
            key: write_into(directory, "tls.key", &key)?,
            both: write_into(directory, "tls.both", certificate + &key)?,
        })
    }
}

/// A program with its arguments.
pub(super) type CommandLine = Vec<OsString>;

/// The input for a peer's configuration.
pub(super) struct ConfigInput<'a> {
    pub(super) peer: Peer,
    pub(super) executable: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) role: Role,
    pub(super) setup: PeerSetup<'a>,
}

impl ConfigInput<'_> {
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        write_into(self.setup.scratch, name, text)
    }

    /// Creates a directory below the scratch directory.
    pub(super) fn directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.setup.scratch.join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Creates a directory below the scratch directory to which any user may write.
    pub(super) fn shared_directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.directory(name)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(path)
    }

    /// Gives other users access to the temporary directories: if the user is root, the workers run as
    /// another user.
    pub(super) fn open_to_workers(&self) -> anyhow::Result<()> {
        let temporary = std::env::temp_dir();
        for directory in [self.setup.documents, self.setup.scratch] {
            for part in directory.ancestors().take_while(|part| *part != temporary) {
                if !part.starts_with(&temporary) {
                    break;
                }
                let mode = fs::metadata(part)?.permissions().mode() | 0o055;
                fs::set_permissions(part, fs::Permissions::from_mode(mode))
                    .with_context(|| part.display().to_string())?;
            }
        }
        Ok(())
    }

    pub(super) fn origin(&self) -> anyhow::Result<SocketAddr> {
        match self.role {
            Role::Front { origin } => Ok(origin),
            Role::Files => bail!("{} serves no files here", self.peer.name()),
        }
    }

    pub(super) fn only_files(&self) -> anyhow::Result<()> {
        match self.role {
            Role::Files => Ok(()),
            Role::Front { .. } => bail!("{} has no cache for an origin", self.peer.name()),
        }
    }

    /// Returns the command line with these arguments.
    pub(super) fn command_line<const N: usize>(&self, arguments: [&str; N]) -> CommandLine {
        let arguments = arguments.iter().map(OsString::from);
        std::iter::once(self.executable.clone().into()).chain(arguments).collect()
    }
}
