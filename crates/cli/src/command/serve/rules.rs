//! Flags about paths: redirects, rewrites, error pages, fields.

use super::value;
use clap::ArgAction;
use pollux_server::config::{
    BasicAuth, Config, Cors, ErrorPage, PathField, Redirect, Rewrite, SecurityHeaders, Text,
};

#[derive(clap::Args)]
#[command(next_help_heading = "Paths")]
pub(super) struct RuleArgs {
    /// Redirect clients; may be repeated, the first one that matches a path is used. FROM is a path
    /// (/a), all paths below one (/a/*) or has names for segments (/blog/:slug); TO is a path or a
    /// URL, with these names; STATUS is 301, 302, 303, 307 or 308 (the default)
    #[arg(long, value_name = "FROM TO [STATUS]", action = ArgAction::Append)]
    redirect: Vec<Text<Redirect>>,

    /// Answer as if another path had been requested; may be repeated, the first one that matches a
    /// path is used
    #[arg(long, value_name = "FROM TO", action = ArgAction::Append)]
    rewrite: Vec<Text<Rewrite>>,

    /// Send this file of the site with an error's status; may be repeated
    #[arg(long, value_name = "STATUS PATH", action = ArgAction::Append)]
    error_page: Vec<Text<ErrorPage>>,

    /// Serve this file where there is none and the last segment of the path has no dot: the page of
    /// a single-page application
    #[arg(long, value_name = "PATH")]
    fallback: Option<String>,

    /// List directories that have no index, as a page or (?format=json, or by Accept) as JSON
    #[arg(long)]
    listing: Option<bool>,

    /// Field to add to the files whose paths PATTERN matches; may be repeated
    #[arg(long, value_name = "PATTERN NAME: VALUE", action = ArgAction::Append)]
    header_for: Vec<Text<PathField>>,

    /// Let scripts of these origins read the site's files, or those of every origin (*)
    #[arg(long, value_name = "ORIGIN,…")]
    cors: Option<Text<Cors>>,

    /// Let these scripts send cookies and passwords
    #[arg(long)]
    cors_credentials: Option<bool>,

    /// Add fields for visitors' safety: basic (no sniffing, frames, full referrers) or strict (also
    /// HTTPS only and no content of other sites)
    #[arg(long, value_name = "PRESET")]
    security_headers: Option<Text<SecurityHeaders>>,

    /// Ask for names and passwords of FILE (htpasswd with bcrypt, SHA-crypt or Argon2 hashes) at all paths, or at
    /// PREFIX and below; may be repeated
    #[arg(long, value_name = "[/PREFIX=]FILE", action = ArgAction::Append)]
    basic_auth: Vec<Text<BasicAuth>>,

    /// What browsers show when they ask [default: restricted]
    #[arg(long, value_name = "TEXT")]
    basic_auth_realm: Option<String>,

    /// Pass names and passwords on to origins
    #[arg(long)]
    basic_auth_forward: Option<bool>,
}

impl RuleArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        for site in &mut config.site {
            value::replace(&mut site.redirect, self.redirect.clone());
            value::replace(&mut site.rewrite, self.rewrite.clone());
            value::replace(&mut site.error_page, self.error_page.clone());
            value::set_some(&mut site.fallback, self.fallback.clone());
            value::set(&mut site.listing, self.listing);
            value::replace(&mut site.header_for, self.header_for.clone());
            value::set_some(&mut site.cors, self.cors.clone());
            value::set(&mut site.cors_credentials, self.cors_credentials);
            value::set_some(&mut site.security_headers, self.security_headers.clone());
            value::replace(&mut site.basic_auth, self.basic_auth.clone());
            value::set(&mut site.basic_auth_realm, self.basic_auth_realm.clone());
            value::set(&mut site.basic_auth_forward, self.basic_auth_forward);
        }
    }
}
