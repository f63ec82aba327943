//! Sets of response fields that protect the visitors of a site, each under one name.

use std::str::FromStr;

/// A set of response fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityHeaders {
    /// Fields that break hardly any site: no sniffing of media types, no frames on other sites, no paths in
    /// referrers to other sites.
    Basic,
    /// Also: only HTTPS for a year, no content from other sites, no access from windows of other sites.
    Strict,
}

const BASIC: &[(&str, &str)] = &[
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "SAMEORIGIN"),
    ("Referrer-Policy", "strict-origin-when-cross-origin"),
];

const STRICT: &[(&str, &str)] = &[
    ("Strict-Transport-Security", "max-age=31536000"),
    (
        "Content-Security-Policy",
        "default-src 'self'; object-src 'none'; base-uri 'self'; frame-ancestors 'self'",
    ),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
];

/// Returns the names of all fields of the sets.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    BASIC.iter().chain(STRICT).map(|&(name, _)| name)
}

impl SecurityHeaders {
    /// Returns the fields, except those that the site sets itself.
    pub(crate) fn fields(self, own: &[(String, String)]) -> Vec<(String, String)> {
        let more = if self == Self::Strict { STRICT } else { &[] };
        BASIC
            .iter()
            .chain(more)
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

    #[test]
    fn what_the_site_sets_itself_stays() {
        let own = [("x-frame-options".to_owned(), "DENY".to_owned())];
        let fields = SecurityHeaders::Strict.fields(&own);
        assert_eq!(fields.len(), BASIC.len() + STRICT.len() - 1);
        assert!(!fields.iter().any(|(name, _)| name == "X-Frame-Options"));
        assert_eq!(SecurityHeaders::Basic.fields(&[]).len(), BASIC.len());
        assert!("much".parse::<SecurityHeaders>().is_err());
    }
}
