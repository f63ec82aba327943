//! The file of secrets for Wireshark, which the environment variable SSLKEYLOGFILE names.

use crate::ConfigError;
use std::{
    env,
    fmt::Write as _,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

const VARIABLE: &str = "SSLKEYLOGFILE";
/// More than a line has: its label, the client's random number and a secret of SHA-384.
const LINE_BYTES: usize = 256;

/// Checks that the environment variable SSLKEYLOGFILE names a file in a folder that exists. The file is not created
/// yet: it would belong to root if the program gives up root's rights later.
///
/// # Errors
/// The variable is not set, or there is no such folder.
pub fn check_secret_log() -> Result<(), ConfigError> {
    let Some(SecretLog { path }) = SecretLog::from_environment() else {
        return Err(ConfigError::new(format!(
            "the environment variable {VARIABLE} must name the file for the secrets"
        )));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let is_folder = fs::metadata(folder).and_then(|metadata| match metadata.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    is_folder
        .map_err(|error| ConfigError::new(format!("{VARIABLE}: {}: {error}", folder.display())))
}

/// Appends secrets to a file, a line for each.
///
/// It opens the file for each line. rustls' `KeyLogFile` keeps a descriptor instead, but a worker with a file table of
/// its own, or a forked process, has closed it, and may have another file or a connection under this number.
#[derive(Debug)]
pub(crate) struct SecretLog {
    path: PathBuf,
}

impl SecretLog {
    /// The file that the environment variable names; `None` if it names none.
    pub(crate) fn from_environment() -> Option<Self> {
        let path = env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        Some(Self { path: path.into() })
    }

    /// Appends a line. A failure must not end a handshake, and is not reported.
    pub(crate) fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let mut line = Zeroizing::new(String::with_capacity(LINE_BYTES));
        line.push_str(label);
        for bytes in [client_random, secret] {
            line.push(' ');
            for byte in bytes {
                let _ = write!(line, "{byte:02x}");
            }
        }
        line.push('\n');
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        // One call of write(2) for a whole line: several workers append to the file.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
