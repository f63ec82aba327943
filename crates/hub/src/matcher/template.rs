//! URI templates (RFC 6570), matched backwards: does some expansion of the template give a topic?
//!
//! Dialect 0 defines its matchers this way. A template becomes a regular expression in which each
//! expression stands for every value that its operator can produce.

use super::bound_regex::BoundRegex;
use crate::limits;

/// How an operator expands (RFC 6570 appendix A).
struct Operator {
    first: &'static str,
    separator: &'static str,
    named: bool,
    reserved: bool,
}

/// A character that RFC 6570 leaves unchanged, or an escape.
const UNRESERVED: &str = r"(?:[A-Za-z0-9\-._~]|%[0-9A-Fa-f]{2})";
/// The same for operators that leave reserved characters unchanged.
const RESERVED: &str = r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})";

/// The reason why a text is not used as a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateError {
    /// It does not follow RFC 6570.
    Malformed,
    /// It has more variables than are allowed.
    TooLarge,
}

/// Compiles a template.
pub(super) fn compile(template: &str) -> Result<BoundRegex, TemplateError> {
    let mut pattern = String::from("^");
    let mut rest = template;
    let mut expressions = 0;
    while let Some(open) = rest.find(['{', '}']) {
        let (literal, tail) = rest.split_at(open);
        pattern.push_str(&regex::escape(literal));
        let close = tail.find('}').filter(|_| tail.starts_with('{'));
        let expression = &tail[1..close.ok_or(TemplateError::Malformed)?];
        expand(expression, &mut pattern)?;
        expressions += 1;
        if expressions > limits::TEMPLATE_EXPRESSIONS {
            return Err(TemplateError::TooLarge);
        }
        rest = &tail[expression.len() + 2..];
    }
    pattern.push_str(&regex::escape(rest));
    pattern.push('$');
    BoundRegex::compile(&pattern).ok_or(TemplateError::TooLarge)
}

/// Appends the possible expansions of one expression: nothing, or values after the operator's prefix.
fn expand(expression: &str, pattern: &mut String) -> Result<(), TemplateError> {
    let (operator, variables) = operator(expression);
    if variables.split(',').count() > limits::TEMPLATE_EXPRESSIONS {
        return Err(TemplateError::TooLarge);
    }
    if !variables.split(',').all(is_variable) {
        return Err(TemplateError::Malformed);
    }
    let character = if operator.reserved { RESERVED } else { UNRESERVED };
    let [first, separator] = [operator.first, operator.separator].map(regex::escape);
    // A list is joined by commas, an exploded one by the separator. The number of values of a variable
    // is not known, so any number of them matches. The values of an exploded one may be pairs, each
    // joined by an equals sign (§2.4.2).
    let is_exploded = variables.split(',').any(|variable| variable.ends_with('*'));
    let value = match (operator.named, is_exploded) {
        (true, _) => format!("{UNRESERVED}+(?:=(?:{character}|,)*)?"),
        (false, true) => format!("(?:{character}|[,=])*"),
        (false, false) => format!("(?:{character}|,)*"),
    };
    pattern.push_str(&format!("(?:{first}{value}(?:{separator}{value})*)?"));
    Ok(())
}

fn operator(expression: &str) -> (Operator, &str) {
    let (first, separator, named, reserved) = match expression.as_bytes().first() {
        Some(b'+') => ("", ",", false, true),
        Some(b'#') => ("#", ",", false, true),
        Some(b'.') => (".", ".", false, false),
        Some(b'/') => ("/", "/", false, false),
        Some(b';') => (";", ";", true, false),
        Some(b'?') => ("?", "&", true, false),
        Some(b'&') => ("&", "&", true, false),
        _ => {
            let plain = Operator { first: "", separator: ",", named: false, reserved: false };
            return (plain, expression);
        }
    };
    (Operator { first, separator, named, reserved }, &expression[1..])
}

/// Whether this is a variable: a name, and perhaps `*` or a prefix length.
fn is_variable(text: &str) -> bool {
    let name = match text.split_once(':') {
        Some((name, length)) => {
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            if !digits || length.len() > 4 {
                return false;
            }
            name
        }
        None => text.strip_suffix('*').unwrap_or(text),
    };
    let mut bytes = name.bytes();
    while let Some(byte) = bytes.next() {
        // Both digits of an escape belong to the name, because some operators include the name in the
        // expansion.
        let is_valid = match byte {
            b'%' => (0..2).all(|_| bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit())),
            _ => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'),
        };
        if !is_valid {
            return false;
        }
    }
    !name.is_empty()
}
