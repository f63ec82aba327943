//! The settings of a guestbook.

use super::store_errors::StoreErrors;
use crate::config::{Store, StoreConnections};
use anyhow::{Context, ensure};
use pollux_guestbook::{Template, limits};
use pollux_tls::read_operator_file;
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

/// A guestbook at one path of a site.
#[derive(Clone, Debug)]
pub struct GuestbookConfig {
    /// The path, which begins with a slash.
    pub path: String,
    /// A file with the page ([`Template`]); `None` is the built-in page. The file is read once, at
    /// the start, so that a later change of the file has no effect on a running server.
    pub template: Option<PathBuf>,
    /// Where the remarks are stored.
    pub store: Store,
    /// How connections to a Redis server are managed.
    pub connections: StoreConnections,
    /// The number of remarks on a page, the newest first.
    pub shown: u32,
    /// The template, once it has been read, together with the path of its file.
    read: OnceLock<(Option<PathBuf>, Arc<Template>)>,
    /// The errors of the store that have been logged already.
    pub(crate) store_errors: Arc<StoreErrors>,
}

impl GuestbookConfig {
    /// Returns the default settings for a guestbook at `path` with this store.
    pub fn new(path: impl Into<String>, store: Store) -> Self {
        Self {
            path: path.into(),
            template: None,
            store,
            connections: StoreConnections::default(),
            shown: limits::SHOWN,
            read: OnceLock::new(),
            store_errors: Arc::default(),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The path is invalid, or the number of remarks on a page is not allowed.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let path = &self.path;
        ensure!(
            path.starts_with('/') && !path.starts_with("//"),
            "the guestbook's path {path:?} does not begin with one slash"
        );
        ensure!(
            path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~".contains(&b)),
            "the guestbook's path {path:?} has other characters than letters, digits and /-._~"
        );
        ensure!(
            (1..=limits::SHOWN_MAX).contains(&self.shown),
            "--guestbook-shown needs a number from 1 to {}",
            limits::SHOWN_MAX
        );
        self.load()
    }

    /// Reads the template now, so that a server that starts with this configuration uses the
    /// present content of the file. Otherwise it is read when the server starts.
    ///
    /// # Errors
    /// The file cannot be read, or it is no template.
    pub fn load(&self) -> anyhow::Result<()> {
        self.open_template().map(drop)
    }

    /// Returns the template. It is read at the first call, when the configuration is checked, and
    /// not by every worker.
    ///
    /// # Errors
    /// The file cannot be read, or it is no template.
    pub(crate) fn open_template(&self) -> anyhow::Result<Arc<Template>> {
        if let Some((path, template)) = self.read.get()
            && *path == self.template
        {
            return Ok(template.clone());
        }
        let template = Arc::new(self.read_template()?);
        // If the setting has changed since the first call, the template is read at each call.
        let _ = self.read.set((self.template.clone(), template.clone()));
        Ok(template)
    }

    fn read_template(&self) -> anyhow::Result<Template> {
        let Some(path) = &self.template else { return Ok(Template::default()) };
        let what = || format!("the guestbook's template {}", path.display());
        let most = limits::TEMPLATE_BYTES as u64;
        let text = read_operator_file(path, most).with_context(what)?;
        Template::parse(&text).with_context(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn paths_that_no_request_could_have_are_refused() {
        let check = |path: &str| GuestbookConfig::new(path, Store::File("x".into())).check();
        assert!(check("/guestbook").is_ok() && check("/a/b_c.d~e-").is_ok() && check("/").is_ok());
        for path in ["", "guestbook", "//a", "/a b", "/%41", "/a?b", "/\r\nx"] {
            assert!(check(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_template_is_read_once_and_never_without_end() {
        let file = std::env::temp_dir().join(format!("pollux-template-{}", std::process::id()));
        fs::write(&file, "$GUEST_REMARKS$").unwrap();
        let mut config = GuestbookConfig::new("/g", Store::File("x".into()));
        config.template = Some(file.clone());
        config.check().unwrap();
        fs::remove_file(&file).unwrap();
        assert!(config.clone().open_template().is_ok());
        config.template = Some("/dev/zero".into());
        let error = format!("{:#}", config.check().unwrap_err());
        assert!(error.contains("longer than"), "{error}");
    }
}
