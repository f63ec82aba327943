//! The form of a publish request.

use crate::{
    dialect::Dialect,
    fields::{self, has_invisible},
    limits::{self, Limits},
    reject::Reject,
    topic::{self, HubUrl},
    update::Publication,
};

/// Parses the body of a publish request (draft-dunglas-mercure §5). `dialect`, that of the publisher, determines
/// how many topics an update may have: exactly one in 1.0, several in 0.x. `served` is the dialect of the hub: if it
/// includes 1.0, the hub alone publishes updates of the type `mercure`, by which subscribers know its events.
///
/// # Errors
/// 400 for malformed fields, 403 for a topic in the namespace of the hub, 413 for a value that exceeds
/// a limit.
pub fn parse(
    body: &[u8],
    dialect: Dialect,
    served: Dialect,
    hub: &HubUrl,
    limits: &Limits,
) -> Result<Publication, Reject> {
    if body.len() > limits.update_bytes {
        return Err(Reject::too_large(format!(
            "the update is larger than {} bytes: send a smaller one",
            limits.update_bytes
        )));
    }
    let mut publication = Publication::default();
    let mut data = None;
    for (name, value) in fields::decode(body)? {
        match name.as_str() {
            "topic" => publication.topics.push(value),
            "data" => once(&mut data, value, "data")?,
            "private" => publication.private = true,
            "id" => once(&mut publication.id, value, "id")?,
            "type" => once(&mut publication.event_type, value, "type")?,
            "retry" => once(&mut publication.retry, value, "retry")?,
            _ => {}
        }
    }
    publication.data = data.unwrap_or_default();
    check_topics(&publication.topics, dialect, hub)?;
    // An empty field is treated as missing: forms send it when nothing was chosen.
    publication.id = publication.id.filter(|id| !id.is_empty());
    publication.retry = publication.retry.filter(|retry| !retry.is_empty());
    if let Some(id) = &publication.id {
        check_id(id)?;
    }
    if let Some(event_type) = &publication.event_type {
        check_type(event_type, served)?;
    }
    if let Some(retry) = &publication.retry {
        check_retry(retry)?;
    }
    Ok(publication)
}

/// The media type that a publish request must have, without its parameters.
#[must_use]
pub fn is_form(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

fn once(field: &mut Option<String>, value: String, name: &str) -> Result<(), Reject> {
    if field.replace(value).is_some() {
        return Err(Reject::invalid(format!("the field {name} is repeated: send it once")));
    }
    Ok(())
}

fn check_topics(topics: &[String], dialect: Dialect, hub: &HubUrl) -> Result<(), Reject> {
    match topics.len() {
        0 => return Err(Reject::invalid("the field topic is missing: name the topic")),
        1 => {}
        _ if !dialect.zero() => {
            return Err(Reject::invalid(
                "an update has exactly one topic: publish one update for each topic",
            ));
        }
        2..=limits::TOPICS_OF_AN_UPDATE => {}
        _ => return Err(Reject::too_large("the update has more than 32 topics: send fewer")),
    }
    for topic in topics {
        topic::check(topic)?;
        if hub.reserves(topic) {
            return Err(Reject::reserved());
        }
    }
    Ok(())
}

fn check_id(id: &str) -> Result<(), Reject> {
    if id.len() > limits::TEXT_BYTES {
        return Err(Reject::too_large("the id is longer than 4096 bytes: use a shorter one"));
    }
    // A subscriber sends `earliest` to request everything. An id is returned in HTTP fields, which must
    // not contain control characters.
    if id.starts_with('#') || has_invisible(id) || id == "earliest" {
        return Err(Reject::invalid(
            "an id must not start with #, have control or invisible characters, or be the word earliest",
        ));
    }
    // A client sends it back in a field, whose value HTTP trims. The hub would not know it any more, and would repeat the
    // whole history at each connection.
    if id.starts_with(' ') || id.ends_with(' ') {
        return Err(Reject::invalid("an id must not begin or end with a space: remove it"));
    }
    Ok(())
}

fn check_type(event_type: &str, served: Dialect) -> Result<(), Reject> {
    if event_type.len() > limits::EVENT_TYPE_BYTES {
        return Err(Reject::too_large("the type is longer than 256 bytes: use a shorter one"));
    }
    if has_invisible(event_type) {
        return Err(Reject::invalid("a type has control or invisible characters: remove them"));
    }
    if event_type == "mercure" && served.one() {
        return Err(Reject::invalid("the type mercure is reserved for the hub: use another"));
    }
    Ok(())
}

fn check_retry(retry: &str) -> Result<(), Reject> {
    if retry.len() > limits::RETRY_DIGITS {
        return Err(Reject::too_large("retry has more than 18 digits: use a shorter time"));
    }
    if !retry.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Reject::invalid("retry must be digits: a time in milliseconds"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hub() -> HubUrl {
        HubUrl::parse("https://h.example/.well-known/mercure").unwrap()
    }

    fn form(body: &str, dialect: Dialect) -> Result<Publication, u16> {
        form_at(body, dialect, dialect)
    }

    fn form_at(body: &str, dialect: Dialect, served: Dialect) -> Result<Publication, u16> {
        parse(body.as_bytes(), dialect, served, &hub(), &Limits::default()).map_err(|e| e.status)
    }

    /// Regression: a publisher with a token of 0.x could forge the events of a hub that serves 1.0 as well.
    #[test]
    fn the_type_of_the_hub_is_its_own_whatever_the_token() {
        for (token, served, expected) in [
            (Dialect::Zero, Dialect::Both, Err(400)),
            (Dialect::One, Dialect::Both, Err(400)),
            (Dialect::Zero, Dialect::Zero, Ok(Some("mercure".to_owned()))),
        ] {
            let form = form_at("topic=a&type=mercure", token, served);
            assert_eq!(form.map(|form| form.event_type), expected, "{token:?} {served:?}");
        }
    }

    #[test]
    fn a_form_becomes_a_publication() {
        let body = "topic=https%3A%2F%2Fa%2Fb&data=x%0Ay&private=&id=i&type=t&retry=10&other=1";
        let publication = form(body, Dialect::One).unwrap();
        assert_eq!(publication.topics, ["https://a/b"]);
        assert_eq!(publication.data, "x\ny");
        assert!(publication.private);
        assert_eq!(publication.id.as_deref(), Some("i"));
        assert_eq!(publication.event_type.as_deref(), Some("t"));
        assert_eq!(publication.retry.as_deref(), Some("10"));
        assert!(!form("topic=a", Dialect::One).unwrap().private);
        assert!(form("topic=a&private", Dialect::One).unwrap().private);
    }

    #[test]
    fn several_topics_belong_to_dialect_0() {
        assert_eq!(form("topic=a&topic=b", Dialect::One), Err(400));
        assert_eq!(form("topic=a&topic=b", Dialect::Both).unwrap().topics, ["a", "b"]);
        assert_eq!(form(&"topic=a&".repeat(33), Dialect::Zero), Err(413));
        assert_eq!(form("data=a", Dialect::Both), Err(400));
        assert_eq!(form("", Dialect::Both), Err(400));
    }

    #[test]
    fn fields_that_break_a_rule_are_rejected() {
        for (field, status) in [
            ("id=%23x", 400),
            ("id=a%0Ab", 400),
            ("id=a%0D", 400),
            ("id=%00", 400),
            ("id=earliest", 400),
            ("id=+a", 400),
            ("id=a%20", 400),
            ("id=+", 400),
            ("type=a%0Ab", 400),
            ("type=a%0Db", 400),
            ("type=a%09b", 400),
            ("type=a%E2%80%8Bb", 400),
            ("id=a%E2%80%AEb", 400),
            ("id=a%7F", 400),
            ("type=mercure", 400),
            ("retry=1s", 400),
            ("retry=-1", 400),
            ("retry=%D9%A1", 400),
            ("data=%ff", 400),
            ("data=a&data=b", 400),
            ("id=a&id=b", 400),
        ] {
            assert_eq!(form(&format!("topic=a&{field}"), Dialect::One), Err(status), "{field}");
        }
        assert_eq!(form(&format!("topic=a&id={}", "a".repeat(4097)), Dialect::One), Err(413));
        assert_eq!(form(&format!("topic=a&type={}", "a".repeat(257)), Dialect::One), Err(413));
        assert_eq!(form(&format!("topic=a&retry={}", "1".repeat(19)), Dialect::One), Err(413));
        assert_eq!(form(&format!("topic={}", "a".repeat(4097)), Dialect::One), Err(413));
        assert_eq!(form(&format!("topic=a&data={}", "a".repeat(1 << 20)), Dialect::One), Err(413));
        assert_eq!(form("topic=%00", Dialect::One), Err(400));
        assert_eq!(form("topic=https://x/.well-known/mercure/a", Dialect::One), Err(403));
        assert_eq!(form("topic=a&topic=/.well-known/mercure", Dialect::Zero), Err(403));
        assert_eq!(form("topic=a&type=mercure", Dialect::Both), Err(400));
        assert!(form("topic=a&type=mercure", Dialect::Zero).is_ok());
        assert!(form("topic=a&id=a+b", Dialect::One).is_ok());
    }

    #[test]
    fn the_media_type_is_recognized() {
        assert!(is_form(b"application/x-www-form-urlencoded"));
        assert!(is_form(b"Application/X-WWW-Form-Urlencoded; charset=UTF-8"));
        assert!(!is_form(b"text/plain") && !is_form(b""));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, Dialect::Both, Dialect::Both, &hub(), &Limits::default());
        }
    }
}
