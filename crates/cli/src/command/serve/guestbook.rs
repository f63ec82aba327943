//! Flags about the guestbook.

use super::value;
use anyhow::Context;
use pollux_server::config::{Config, GUESTBOOK_ALONE, Store, StoreConnections, Text};
use std::{os::unix::fs::DirBuilderExt, path::PathBuf};

#[derive(clap::Args)]
#[command(next_help_heading = "Guestbook")]
pub(super) struct GuestbookArgs {
    /// Serve a guestbook at this path: remarks of guests and a count of visits. DIR stands before this
    /// flag [default path: /guestbook]
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = GUESTBOOK_ALONE, value_parser = value::guestbook_path)]
    pub(super) guestbook: Option<String>,

    /// Page of the guestbook: HTML with $GUEST_REMARKS$ and $VISITOR_COUNT$, read at the start
    /// [default: a built-in page]
    #[arg(long, value_name = "FILE")]
    guestbook_template: Option<PathBuf>,

    /// How many remarks the page shows, the newest first: from 1 to 10000 [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    guestbook_shown: Option<u32>,

    /// Where the remarks are stored: file:PATH, redis://[USER:PASSWORD@]HOST:PORT/DB or
    /// unix:///PATH?db=DB (or redis+unix://) [default: file:$XDG_STATE_HOME/pollux/guestbook, or
    /// below ~/.local/state]
    #[arg(long, value_name = "STORE")]
    store: Option<Text<Store>>,

    /// Connections to Redis: per-request, one, or pooled:N for each worker [default: pooled:8]
    #[arg(long, value_name = "HOW")]
    store_connections: Option<Text<StoreConnections>>,
}

impl GuestbookArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        for site in &mut config.site {
            value::set_some(&mut site.guestbook, self.guestbook.clone());
            value::set_some(&mut site.guestbook_template, self.guestbook_template.clone());
            value::set(&mut site.guestbook_shown, self.guestbook_shown);
            value::set_some(&mut site.store, self.store.clone());
            value::set_some(&mut site.store_connections, self.store_connections.clone());
        }
    }
}

/// Returns the default file of a guestbook (XDG Base Directory Specification), and creates its
/// directory.
pub(super) fn default_store() -> anyhow::Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .context("neither XDG_STATE_HOME nor HOME is set: say --store file:PATH")?;
    let directory = state.join("pollux");
    // Only the user has access, as the specification requires.
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(&directory).with_context(|| {
        format!("cannot make {} (or say --store file:PATH)", directory.display())
    })?;
    Ok(directory.join("guestbook"))
}
