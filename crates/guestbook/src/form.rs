//! Parses the form that a browser posts into a remark.

use crate::limits;

/// The reason why a form contains no remark that can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// The field is missing or contains only white space.
    #[error("the form has no remark: its field guest-remarks is missing or empty")]
    Empty,
    /// A field is repeated, so it is unclear which value counts.
    #[error("the form has the field {0} more than once")]
    Repeated(&'static str),
    /// The remark is too long.
    #[error("the remark is longer than {} bytes", limits::REMARK_BYTES)]
    TooLong,
    /// A field is not UTF-8 after percent-decoding.
    #[error("the form is not UTF-8")]
    NotUtf8,
}

/// Parses the body of a form (`application/x-www-form-urlencoded`, URL Standard §5): the field
/// `guest-remarks` and, if present, `guest-name`. Other fields are ignored. Returns the remark in
/// the form in which ZeroHTTPd stores it: `REMARK - NAME`.
///
/// # Errors
/// The form contains no remark, or one that cannot be stored.
pub fn parse(body: &[u8]) -> Result<Vec<u8>, FormError> {
    let (mut remark, mut name) = (None, None);
    for (key, value) in form_urlencoded::parse(body) {
        let (field, known) = match &*key {
            "guest-remarks" => (&mut remark, "guest-remarks"),
            "guest-name" => (&mut name, "guest-name"),
            _ => continue,
        };
        if field.replace(value).is_some() {
            return Err(FormError::Repeated(known));
        }
    }
    let text = remark.as_deref().unwrap_or_default().trim();
    if text.is_empty() {
        return Err(FormError::Empty);
    }
    let mut stored = text.replace("\r\n", "\n");
    let name = name.as_deref().unwrap_or_default().trim();
    if !name.is_empty() {
        stored.push_str(" - ");
        stored.push_str(name);
    }
    // The decoder replaces invalid UTF-8 by this character. A guest really typing it is too rare
    // to justify storing a damaged text.
    if stored.contains('\u{fffd}') {
        return Err(FormError::NotUtf8);
    }
    if stored.len() > limits::REMARK_BYTES {
        return Err(FormError::TooLong);
    }
    Ok(stored.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remark(body: &str) -> Result<String, FormError> {
        parse(body.as_bytes()).map(|remark| String::from_utf8(remark).unwrap())
    }

    #[test]
    fn a_form_becomes_a_remark() {
        assert_eq!(remark("guest-remarks=hello&guest-name=Ada").unwrap(), "hello - Ada");
        assert_eq!(remark("guest-name=&guest-remarks=+hello%0D%0Aall+").unwrap(), "hello\nall");
        assert_eq!(remark("x=1&guest-remarks=%26%3C%2B%3D").unwrap(), "&<+=");
        assert_eq!(remark("guest-remarks=gr%C3%BC%C3%9Fe").unwrap(), "grüße");
    }

    #[test]
    fn invalid_forms_are_rejected() {
        assert_eq!(remark(""), Err(FormError::Empty));
        assert_eq!(remark("guest-remarks=%20%0A"), Err(FormError::Empty));
        assert_eq!(remark("guest-name=Ada"), Err(FormError::Empty));
        assert_eq!(remark("guest-remarks=%ff"), Err(FormError::NotUtf8));
        assert_eq!(
            remark("guest-remarks=a&guest-remarks=b"),
            Err(FormError::Repeated("guest-remarks"))
        );
        let long = format!("guest-remarks={}", "a".repeat(limits::REMARK_BYTES + 1));
        assert_eq!(remark(&long), Err(FormError::TooLong));
        let fits = format!("guest-remarks={}", "a".repeat(limits::REMARK_BYTES));
        assert!(remark(&fits).is_ok());
    }
}
