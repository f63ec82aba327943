//! Flags about TLS.

use crate::{duration, usage::UsageError};
use clap::{ArgAction, ValueEnum};
use pollux_server::{
    Config,
    config::{CertificateFiles, ClientCertificates, Listen, MinVersion, Tls, TlsConfig},
    sandbox::Domain,
};
use std::{env, path::PathBuf, sync::Arc, time::Duration};

#[derive(Clone, clap::Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// Serve HTTPS with the certificate chain in FILE (PEM); may be repeated, each with its --tls-key.
    /// A client gets the certificate that has the name it requests (wildcards count), else the first.
    /// Files that change are read again
    #[arg(long, value_name = "FILE", action = ArgAction::Append)]
    tls_cert: Vec<PathBuf>,

    /// The private key of the --tls-cert at the same place (PEM) [default: in the file of the
    /// certificate]
    #[arg(long, value_name = "FILE", action = ArgAction::Append, requires = "tls_cert")]
    tls_key: Vec<PathBuf>,

    /// Serve HTTPS with a certificate made for this run (self-signed), for trials; its fingerprint is
    /// logged
    #[arg(long, value_name = "KIND", conflicts_with = "tls_cert")]
    tls: Option<KindArg>,

    /// The oldest version of TLS that is accepted [default: 1.2]
    #[arg(long, value_name = "VERSION")]
    tls_min: Option<VersionArg>,

    /// Request from clients a certificate of an authority in FILE (PEM)
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// With --tls-client-ca: serve clients without a certificate as well
    #[arg(long, requires = "tls_client_ca")]
    tls_client_optional: bool,

    /// Tell browsers to use HTTPS alone for this time (Strict-Transport-Security) [default: off; without
    /// a value: 1 year]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
          default_missing_value = "365d", value_parser = duration::parse)]
    hsts: Option<Duration>,

    /// Listen for plain HTTP on ADDRESS as well, and send each client to the same URL over HTTPS (308)
    #[arg(long, value_name = "ADDRESS")]
    redirect_http: Option<Listen>,

    /// Write the secrets of all connections to the file that the environment variable SSLKEYLOGFILE
    /// names, for Wireshark. A reader of that file can decrypt the connections
    #[arg(long)]
    tls_key_log: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum KindArg {
    SelfSigned,
}

#[derive(Clone, Copy, ValueEnum)]
enum VersionArg {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

impl TlsArgs {
    /// Names the files that are read and written to a sandbox.
    pub(super) fn name_files(&self, domain: &mut Domain) {
        let files = self.tls_cert.iter().chain(&self.tls_key).chain(&self.tls_client_ca);
        files.for_each(|path| domain.file(path));
        if let Some(path) = env::var_os("SSLKEYLOGFILE")
            && self.tls_key_log
        {
            domain.append(path.as_ref());
        }
    }

    /// Reads the certificates, if any are named and there are none yet, and writes the settings into
    /// `config`.
    pub(super) fn apply(
        self,
        config: &mut Config,
        present: Option<Arc<Tls>>,
    ) -> anyhow::Result<()> {
        let is_on = self.tls.is_some() || !self.tls_cert.is_empty() || config.acme.is_some();
        if !is_on {
            let is_useless = self.tls_min.is_some()
                || self.tls_client_ca.is_some()
                || self.hsts.is_some()
                || self.redirect_http.is_some()
                || self.tls_key_log;
            if is_useless {
                return Err(UsageError::new(
                    "--tls-min, --tls-client-ca, --tls-key-log, --redirect-http and --hsts are of a server with TLS: add \
                     --tls-cert FILE --tls-key FILE, --acme NAME, or --tls self-signed",
                )
                .into());
            }
            return Ok(());
        }
        if self.tls.is_some() && config.acme.is_some() {
            let both = "--tls self-signed and --acme exclude each other: remove one of them";
            return Err(UsageError::new(both).into());
        }
        let client_certificates = match self.tls_client_ca {
            None => ClientCertificates::None,
            Some(path) if self.tls_client_optional => ClientCertificates::Optional(path),
            Some(path) => ClientCertificates::Required(path),
        };
        config
            .prepare_acme(self.redirect_http.is_some(), &client_certificates)
            .map_err(|error| UsageError::new(format!("{error:#}")))?;
        if let Some(max_age) = self.hsts {
            let value = format!("max-age={}", max_age.as_secs());
            config.headers.push(("Strict-Transport-Security".into(), value));
        }
        config.redirect_http = self.redirect_http;
        if present.is_some() {
            config.tls = present;
            return Ok(());
        }
        let settings = TlsConfig {
            certificates: certificates(self.tls_cert, self.tls_key)?,
            min_version: match self.tls_min {
                None | Some(VersionArg::Tls12) => MinVersion::Tls12,
                Some(VersionArg::Tls13) => MinVersion::Tls13,
            },
            acme: config.acme.clone(),
            client_certificates,
            self_signed_names: vec!["localhost".into(), "127.0.0.1".into(), "::1".into()],
            logs_secrets: self.tls_key_log,
        };
        config.tls = Some(Arc::new(Tls::new(&settings)?));
        Ok(())
    }
}

fn certificates(
    chains: Vec<PathBuf>,
    keys: Vec<PathBuf>,
) -> Result<Vec<CertificateFiles>, UsageError> {
    // Chain and key may be in one file.
    let keys = if keys.is_empty() { chains.clone() } else { keys };
    if keys.len() != chains.len() {
        return Err(UsageError::new(format!(
            "--tls-cert is given {} times and --tls-key {} times: each certificate wants its key",
            chains.len(),
            keys.len()
        )));
    }
    let pairs = chains.into_iter().zip(keys);
    Ok(pairs.map(|(chain, key)| CertificateFiles { chain, key }).collect())
}
