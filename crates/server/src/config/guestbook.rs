//! The settings of a guestbook.

use crate::services::guestbook::StoreErrors;
use anyhow::{Context, ensure};
use pollux_guestbook::{Template, limits, redis::Url};
use std::{
    fs,
    io::Read,
    num::NonZeroUsize,
    path::PathBuf,
    str::FromStr,
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

/// Where the remarks of a guestbook are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In a file of this host: `file:PATH`.
    File(PathBuf),
    /// On a Redis server: `redis://…` or `unix:///…`.
    Redis(Url),
}

/// How connections to a Redis server are managed. ZeroHTTPd's iterative and preforked servers keep
/// one; its other servers open one for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreConnections {
    /// One for each request; it is closed after the request.
    PerRequest,
    /// This number for each worker. The number of concurrent requests on one connection has no
    /// limit.
    Pooled(NonZeroUsize),
}

/// The maximum number of connections that one worker keeps.
const POOL_MAX: usize = 1024;

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
    /// # Errors The path is invalid, or the number of remarks on a page is not allowed.
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
        let mut text = Vec::new();
        // One byte more than allowed is enough to notice a file that is too long; a device may
        // never end.
        let most = limits::TEMPLATE_BYTES as u64 + 1;
        fs::File::open(path)
            .and_then(|file| file.take(most).read_to_end(&mut text))
            .with_context(what)?;
        Template::parse(&text).with_context(what)
    }
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("file:") {
            Some("") => Err("file: names no file: file:PATH".to_owned()),
            Some(path) => Ok(Self::File(path.into())),
            None => {
                text.parse().map(Self::Redis).map_err(|error: pollux_guestbook::redis::UrlError| {
                    format!("{error}; a file of this host is file:PATH")
                })
            }
        }
    }
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Redis(url) => write!(f, "{url}"),
        }
    }
}

impl Default for StoreConnections {
    fn default() -> Self {
        Self::Pooled(const { NonZeroUsize::new(8).expect("8 is not 0") })
    }
}

impl FromStr for StoreConnections {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pooled =
            |count: usize| NonZeroUsize::new(count).filter(|count| count.get() <= POOL_MAX);
        let read = match text.split_once(':') {
            None if text == "per-request" => Some(Self::PerRequest),
            None if text == "one" => pooled(1).map(Self::Pooled),
            Some(("pooled", count)) => count.parse().ok().and_then(pooled).map(Self::Pooled),
            _ => None,
        };
        read.ok_or_else(|| {
            format!("expected per-request, one, or pooled:N with N from 1 to {POOL_MAX}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_and_policies_are_read() {
        assert_eq!("file:/a".parse(), Ok(Store::File("/a".into())));
        assert!(matches!("redis://a".parse(), Ok(Store::Redis(_))));
        assert!("file:".parse::<Store>().is_err());
        assert!("/a".parse::<Store>().unwrap_err().contains("file:PATH"));
        assert_eq!("per-request".parse(), Ok(StoreConnections::PerRequest));
        assert_eq!("pooled:8".parse(), Ok(StoreConnections::default()));
        for wrong in ["", "pooled", "pooled:0", "pooled:1025", "one:1", "many"] {
            assert!(wrong.parse::<StoreConnections>().is_err(), "{wrong}");
        }
    }

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
