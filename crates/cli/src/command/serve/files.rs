//! Flags about the files of a site and the fields of its responses.

use super::value;
use clap::{ArgAction, ValueEnum};
use pollux_server::config::{
    COMPRESS_ALONE, Compress, Config, Field, LargeFile, Size, Symlinks, Text,
};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(next_help_heading = "Files")]
pub(super) struct FileArgs {
    /// Directory to serve; not needed with an --origin, a --handover, a --guestbook or a --hub
    #[arg(value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,

    /// File to serve for a directory; may be repeated: the first that exists is served [default:
    /// index.html]
    #[arg(long, value_name = "NAME", action = ArgAction::Append)]
    index: Vec<String>,

    /// Which symbolic links in DIR are followed: deny (none), within (relative ones that stay within
    /// DIR) or follow (all) [default: within]
    #[arg(long, value_name = "RULE")]
    symlinks: Option<SymlinksArg>,

    /// Also serve names that begin with a dot (.well-known is always served)
    #[arg(long)]
    dotfiles: Option<bool>,

    /// Do not serve FILE.zst, FILE.br or FILE.gz in place of FILE to clients that accept them
    #[arg(long)]
    no_precompressed: Option<bool>,

    /// Compress files at their first request, and keep the result in the file cache: codings in
    /// order of preference [without =CODINGS: zstd,br,gzip]
    #[arg(long, value_name = "CODINGS", num_args = 0..=1, require_equals = true,
          default_missing_value = COMPRESS_ALONE)]
    compress: Option<Text<Compress>>,

    /// Memory for cached files, of all workers together; 0 caches none. Processes (forking, preforked)
    /// get an equal part each; a thread or process of one connection keeps at most 1M [default: 64M]
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<Size>,

    /// How the head of a large file is held back until its first bytes follow [default: msg-more]
    #[arg(long, value_name = "HOW")]
    large_file: Option<LargeFileArg>,

    /// Field to add to every response; may be repeated
    #[arg(long, value_name = "NAME: VALUE", action = ArgAction::Append)]
    header: Vec<Text<Field>>,

    /// Leave out the Server field
    #[arg(long)]
    no_server_header: Option<bool>,
}

impl FileArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::set(&mut config.cache_size, self.cache_size);
        value::set(&mut config.large_file, self.large_file.map(Into::into));
        value::set(&mut config.no_server_header, self.no_server_header);
        for site in &mut config.site {
            value::set_some(&mut site.root, self.directory.clone());
            value::replace(&mut site.index, self.index.clone());
            value::set(&mut site.symlinks, self.symlinks.map(Into::into));
            value::set(&mut site.dotfiles, self.dotfiles);
            value::set(&mut site.no_precompressed, self.no_precompressed);
            value::set_some(&mut site.compress, self.compress.clone());
            value::replace(&mut site.header, self.header.clone());
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum SymlinksArg {
    Deny,
    Within,
    Follow,
}

impl From<SymlinksArg> for Symlinks {
    fn from(arg: SymlinksArg) -> Self {
        match arg {
            SymlinksArg::Deny => Self::Deny,
            SymlinksArg::Within => Self::Within,
            SymlinksArg::Follow => Self::Follow,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum LargeFileArg {
    /// MSG_MORE on the send of the head
    MsgMore,
    /// TCP_CORK around both
    Cork,
}

impl From<LargeFileArg> for LargeFile {
    fn from(arg: LargeFileArg) -> Self {
        match arg {
            LargeFileArg::MsgMore => Self::MsgMore,
            LargeFileArg::Cork => Self::Cork,
        }
    }
}
