//! Forms of publishers and queries of subscribers: an update that is accepted keeps within the limits, and is the same
//! when it is written as a form again.

use pollux_hub::{
    dialect::Dialect,
    fields, form,
    limits::{self, Limits},
    query,
    topic::HubUrl,
    update::Publication,
};

const DIALECTS: [Dialect; 3] = [Dialect::Zero, Dialect::One, Dialect::Both];

/// The input is the dialects of publisher and hub, and the body of a form, which is also read as a query.
pub fn check(data: &[u8]) {
    let Some((&first, body)) = data.split_first() else { return };
    let [dialect, served] = [first % 3, first / 3 % 3].map(|number| DIALECTS[usize::from(number)]);
    let hub = HubUrl::parse("https://hub.example/.well-known/mercure").expect("a URL");
    let limits = Limits { update_bytes: 64 << 10, ..Limits::default() };
    if let Ok(publication) = form::parse(body, dialect, served, &hub, &limits) {
        check_bounds(&publication, dialect, &hub);
        assert!(!served.one() || publication.event_type.as_deref() != Some("mercure"));
        let mut written = write(&publication);
        // The planted fault: the last byte is lost.
        written.truncate(written.len() - usize::from(crate::planted()));
        let limits = Limits { update_bytes: usize::MAX, ..limits };
        let again = form::parse(&written, dialect, served, &hub, &limits);
        assert_eq!(again.as_ref(), Ok(&publication), "{}", written.escape_ascii());
    }
    if let Ok(parsed) = query::parse(body, dialect, &limits) {
        let selectors = &parsed.selectors;
        assert!((1..=limits.matchers).contains(&selectors.len()), "{parsed:?}");
        assert!(selectors.is_sorted_by(|one, next| one < next), "sorted, each once: {parsed:?}");
        let fields = fields::decode_query(body).expect("a query that was read has fields");
        for selector in selectors {
            let is_it = |value: &Result<String, _>| {
                value.as_ref().is_ok_and(|value| **value == *selector.text)
            };
            assert!(fields.iter().any(|(_, value)| is_it(value)), "{selector:?}");
        }
    }
}

fn check_bounds(publication: &Publication, dialect: Dialect, hub: &HubUrl) {
    let Publication { topics, id, event_type, retry, .. } = publication;
    let most = if dialect.zero() { limits::TOPICS_OF_AN_UPDATE } else { 1 };
    assert!((1..=most).contains(&topics.len()), "{topics:?}");
    let is_text = |text: &String| (1..=limits::TEXT_BYTES).contains(&text.len()) && is_clean(text);
    for topic in topics {
        assert!(is_text(topic) && !hub.reserves(topic), "{topic:?}");
    }
    assert!(id.as_ref().is_none_or(is_text), "{id:?}");
    assert!(event_type.as_ref().is_none_or(|text| !text.contains(['\r', '\n'])), "{event_type:?}");
    let is_number = |text: &String| text.parse::<u64>().is_ok();
    assert!(retry.as_ref().is_none_or(is_number), "{retry:?}");
}

fn is_clean(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// The form of a publication, all of it escaped. An empty `type` is written, an `id` never is empty.
fn write(publication: &Publication) -> Vec<u8> {
    let mut form = String::new();
    let mut field = |name: &str, value: &str| {
        form.push_str(name);
        form.push('=');
        value.bytes().for_each(|byte| form.push_str(&format!("%{byte:02X}")));
        form.push('&');
    };
    field("data", &publication.data);
    if publication.private {
        field("private", "");
    }
    for (name, value) in
        [("id", &publication.id), ("type", &publication.event_type), ("retry", &publication.retry)]
    {
        if let Some(value) = value {
            field(name, value);
        }
    }
    publication.topics.iter().for_each(|topic| field("topic", topic));
    form.pop();
    form.into_bytes()
}
