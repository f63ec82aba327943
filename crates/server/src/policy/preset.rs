//! Sets of response fields that protect the visitors of a site, each under one name.

use std::str::FromStr;

/// The field that makes browsers use only HTTPS (RFC 6797). `hsts` sets it, too.
pub(crate) const HSTS: &str = "Strict-Transport-Security";

/// A set of response fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityHeaders {
    /// Fields that break hardly any site: no sniffing of media types, no frames on other sites, no paths in
    /// referrers to other sites.
    Basic,
    /// Also: with TLS only HTTPS for a year, no content from other sites, no access from windows of other sites.
    Strict,
}

const BASIC: &[(&str, &str)] = &[
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "SAMEORIGIN"),
    ("Referrer-Policy", "strict-origin-when-cross-origin"),
];

const STRICT: &[(&str, &str)] = &[
    (HSTS, "max-age=31536000"),
    (
        "Content-Security-Policy",
        // The hashes are those of the styles of the server's own pages: a listing and the guestbook.
        "default-src 'self'; \
         style-src 'self' 'sha256-Dr9RA/fNv07V5qBCd4nO9SvYYlmVdHPBpWTz1QY2xFc=' \
         'sha256-4UQYNzY6+p+gtf8KvNpT8A1NKP7qeTveY0BU3Ie2Kn0='; \
         object-src 'none'; base-uri 'self'; frame-ancestors 'self'",
    ),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
];

/// Returns the names of all fields of the sets.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    BASIC.iter().chain(STRICT).map(|&(name, _)| name)
}

impl SecurityHeaders {
    /// Returns the fields, except those that the site sets itself. Without TLS there is no Strict-Transport-Security: a
    /// response over plain HTTP must not have it (RFC 6797 §7.2).
    pub(crate) fn fields(self, own: &[(String, String)], has_tls: bool) -> Vec<(String, String)> {
        let more = if self == Self::Strict { STRICT } else { &[] };
        BASIC
            .iter()
            .chain(more)
            .filter(|(name, _)| has_tls || *name != HSTS)
            .filter(|(name, _)| !own.iter().any(|(set, _)| set.eq_ignore_ascii_case(name)))
            .map(|&(name, value)| (name.into(), value.into()))
            .collect()
    }
}

impl FromStr for SecurityHeaders {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "basic" => Ok(Self::Basic),
            "strict" => Ok(Self::Strict),
            _ => Err("expected basic or strict".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::listing;
    use base64::{Engine, engine::general_purpose::STANDARD};
    use pollux_guestbook::Template;
    use sha2::{Digest, Sha256};

    /// Regression: browsers did not use the styles of these pages.
    #[test]
    fn the_styles_of_own_pages_are_permitted() {
        let mut guestbook = Vec::new();
        Template::default().put_page::<&[u8]>(&mut guestbook, &[], 1);
        let guestbook = String::from_utf8(guestbook).unwrap();
        let fields = SecurityHeaders::Strict.fields(&[], true);
        let policy = fields.iter().find(|(name, _)| name == "Content-Security-Policy").unwrap();
        for page in [listing::html(b"/", &[], false), guestbook] {
            let (_, style) = page.split_once("<style>").unwrap();
            let (style, _) = style.split_once("</style>").unwrap();
            let hash = format!(" 'sha256-{}'", STANDARD.encode(Sha256::digest(style)));
            assert!(policy.1.contains(&hash), "no {hash} in {}", policy.1);
        }
    }

    #[test]
    fn what_the_site_sets_itself_stays() {
        let own = [("x-frame-options".to_owned(), "DENY".to_owned())];
        let fields = SecurityHeaders::Strict.fields(&own, true);
        assert_eq!(fields.len(), BASIC.len() + STRICT.len() - 1);
        assert!(!fields.iter().any(|(name, _)| name == "X-Frame-Options"));
        assert_eq!(SecurityHeaders::Basic.fields(&[], true).len(), BASIC.len());
        assert!("much".parse::<SecurityHeaders>().is_err());
    }

    /// Regression: responses over plain HTTP had Strict-Transport-Security, too.
    #[test]
    fn only_responses_over_tls_require_https() {
        let has_hsts = |has_tls| {
            let fields = SecurityHeaders::Strict.fields(&[], has_tls);
            assert!(fields.iter().any(|(name, _)| name == "Content-Security-Policy"));
            fields.iter().any(|(name, _)| name == HSTS)
        };
        assert_eq!([true, false].map(has_hsts), [true, false]);
    }
}
