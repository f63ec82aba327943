//! Flags about the guestbook.

use super::value;
use crate::usage::UsageError;
use anyhow::Context;
use pollux_server::{
    Config,
    config::{GuestbookConfig, Store, StoreConnections},
};
use std::{os::unix::fs::DirBuilderExt, path::PathBuf, sync::Arc};

#[derive(clap::Args)]
#[command(next_help_heading = "Guestbook")]
pub(super) struct GuestbookArgs {
    /// Serve a guestbook at this path: remarks of guests and a count of visits. DIR stands before this
    /// flag [default path: /guestbook]
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "/guestbook", value_parser = value::guestbook_path)]
    guestbook: Option<String>,

    /// Page of the guestbook: HTML with $GUEST_REMARKS$ and $VISITOR_COUNT$, read at the start
    /// [default: a built-in page]
    #[arg(long, value_name = "FILE", requires = "guestbook")]
    guestbook_template: Option<PathBuf>,

    /// How many remarks the page shows, the newest first: from 1 to 10000 [default: 100]
    #[arg(long, value_name = "N", requires = "guestbook", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    guestbook_shown: Option<u32>,

    /// Where the remarks are stored: file:PATH, redis://[USER:PASSWORD@]HOST:PORT/DB or
    /// unix:///PATH?db=DB (or redis+unix://) [default: file:$XDG_STATE_HOME/pollux/guestbook, or
    /// below ~/.local/state]
    #[arg(long, value_name = "STORE", requires = "guestbook")]
    store: Option<Store>,

    /// Connections to Redis: per-request, one, or pooled:N for each worker [default: pooled:8]
    #[arg(long, value_name = "HOW", requires = "guestbook")]
    store_connections: Option<StoreConnections>,
}

impl GuestbookArgs {
    /// Writes the flags that were given into `config`.
    ///
    /// # Errors
    /// The default folder cannot be made, or the flags contradict each other.
    pub(super) fn apply(self, config: &mut Config) -> anyhow::Result<()> {
        let Some(path) = self.guestbook else { return Ok(()) };
        let store = self.store.map_or_else(|| default_store().map(Store::File), Ok)?;
        if matches!((&store, self.store_connections), (Store::File(_), Some(_))) {
            let none = "--store-connections is for --store redis://…: a file has no connections";
            return Err(UsageError::new(none).into());
        }
        let mut guestbook = GuestbookConfig::new(path, store);
        guestbook.template = self.guestbook_template;
        value::set(&mut guestbook.shown, self.guestbook_shown);
        guestbook.connections = self.store_connections.unwrap_or_default();
        config.guestbook = Some(Arc::new(guestbook));
        Ok(())
    }
}

/// The default file of a guestbook (XDG Base Directory Specification), in a folder that is created.
fn default_store() -> anyhow::Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .context("neither XDG_STATE_HOME nor HOME is set: say --store file:PATH")?;
    let folder = state.join("pollux");
    // For the user alone, as the specification has it.
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(&folder)
        .with_context(|| format!("cannot make {} (or say --store file:PATH)", folder.display()))?;
    Ok(folder.join("guestbook"))
}
