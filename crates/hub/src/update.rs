//! Updates, and their form in an event stream.

use crate::{matcher::Candidate, topic::HubUrl};
use pollux_http::response::SharedChunk;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};
use url::Url;

/// One update: the publication, and the bytes that every subscriber receives.
#[derive(Debug)]
pub struct Update {
    /// The identifier: the `id` of the event.
    pub id: Arc<str>,
    /// The topic. In dialect 0, alternate topics may follow it.
    pub topics: Box<[Box<str>]>,
    /// Whether only subscribers with permission for the topic may get it.
    pub private: bool,
    /// The event, encoded once.
    pub frame: Frame,
    urls: OnceLock<Box<[Option<Url>]>>,
}

impl Update {
    /// Encodes a publication under this identifier.
    #[must_use]
    pub fn new(id: &str, publication: &Publication) -> Self {
        Self {
            id: id.into(),
            topics: publication.topics.iter().map(|topic| topic.as_str().into()).collect(),
            private: publication.private,
            frame: Frame::event(id, publication),
            urls: OnceLock::new(),
        }
    }

    /// Creates an update of another process from the text that subscribers read.
    #[must_use]
    pub fn encoded(id: &str, topics: &[String], private: bool, text: &str) -> Self {
        Self {
            id: id.into(),
            topics: topics.iter().map(|topic| topic.as_str().into()).collect(),
            private,
            frame: Frame::encoded(text),
            urls: OnceLock::new(),
        }
    }

    /// The memory that the update uses in the history, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let topics: usize = self.topics.iter().map(|topic| topic.len() + 16).sum();
        size_of::<Self>() + self.id.len() + topics + self.frame.0.bytes().len()
    }

    /// The topics, each with its URL, for matchers. URLs are resolved at the first call, so that a hub
    /// without patterns never resolves them.
    pub fn candidates(&self, hub: &HubUrl) -> impl Iterator<Item = Candidate<'_>> {
        let urls =
            self.urls.get_or_init(|| self.topics.iter().map(|topic| hub.resolve(topic)).collect());
        self.topics.iter().zip(urls).map(|(topic, url)| Candidate { topic, url: url.as_ref() })
    }
}

/// The parsed publish request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// The topic, and in dialect 0 its alternates. Never empty.
    pub topics: Vec<String>,
    /// The content.
    pub data: String,
    /// Whether the field `private` was present, with any value.
    pub private: bool,
    /// The identifier, if the publisher chose one.
    pub id: Option<String>,
    /// The type of the event.
    pub event_type: Option<String>,
    /// The time after which a client reconnects, in milliseconds, as digits.
    pub retry: Option<String>,
}

impl Publication {
    /// The bytes of its content and its other fields.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let options = [&self.id, &self.event_type, &self.retry];
        let options = options.into_iter().flatten().map(String::len).sum::<usize>();
        let topics: usize = self.topics.iter().map(|topic| topic.len() + size_of::<String>()).sum();
        size_of::<Self>() + topics + self.data.len() + options
    }
}

/// A piece of an event stream: the text that a client reads, in a form that all connections share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(SharedChunk);

impl Frame {
    /// Encodes an event (HTML Standard §9.2): `id`, `event` and `retry` where there are any, then
    /// a `data` line for each line of the content. A line may end in LF, CR or CRLF.
    #[must_use]
    pub fn event(id: &str, publication: &Publication) -> Self {
        let mut text = String::with_capacity(publication.data.len() + id.len() + 64);
        if let Some(event_type) = publication.event_type.as_deref().filter(|name| !name.is_empty())
        {
            push_field(&mut text, "event", event_type);
        }
        if let Some(retry) = &publication.retry {
            push_field(&mut text, "retry", retry);
        }
        push_field(&mut text, "id", id);
        let mut rest = publication.data.as_str();
        while let Some(end) = rest.find(['\r', '\n']) {
            push_field(&mut text, "data", &rest[..end]);
            rest = &rest[end + if rest[end..].starts_with("\r\n") { 2 } else { 1 }..];
        }
        push_field(&mut text, "data", rest);
        text.push('\n');
        Self::encoded(&text)
    }

    /// Encodes a comment, which clients ignore: a heartbeat, or a remark for a person who reads the
    /// stream.
    #[must_use]
    pub fn comment(text: &str) -> Self {
        debug_assert!(!text.contains(['\r', '\n']), "a comment is one line");
        Self::encoded(&format!(":{text}\n"))
    }

    /// The comment that tells a subscriber that it missed updates because they were removed from the
    /// history before it read them.
    #[must_use]
    pub fn skip_notice() -> Self {
        Self::comment(" some updates were skipped: they left the history before they were read")
    }

    fn encoded(text: &str) -> Self {
        Self(SharedChunk::new(text.as_bytes()))
    }

    /// The event as a client reads it.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        self.0.content()
    }

    /// The content for all connections, of which the protocol sends the part that each one needs.
    #[inline]
    #[must_use]
    pub fn chunk(&self) -> &SharedChunk {
        &self.0
    }
}

fn push_field(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str(": ");
    text.push_str(value);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn publication(data: &str) -> Publication {
        Publication { topics: vec!["t".into()], data: data.into(), ..Publication::default() }
    }

    /// Reads the data of an event as the HTML Standard specifies.
    fn read_data(text: &str) -> String {
        let lines = text.split('\n').filter_map(|line| line.strip_prefix("data: "));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn an_event_has_its_fields() {
        let full = Publication {
            event_type: Some("price".into()),
            retry: Some("1000".into()),
            ..publication("a\nb\r\nc\rd")
        };
        let frame = Frame::event("urn:x", &full);
        let text = "event: price\nretry: 1000\nid: urn:x\ndata: a\ndata: b\ndata: c\ndata: d\n\n";
        assert_eq!(frame.text(), text.as_bytes());
        assert_eq!(Frame::event("1", &publication("")).text(), b"id: 1\ndata: \n\n");
        assert_eq!(Frame::comment("").text(), b":\n");
    }

    #[test]
    fn an_update_of_another_process_is_the_same() {
        let update = Update::new("1", &publication("a\nb"));
        let text = std::str::from_utf8(update.frame.text()).unwrap();
        let other = Update::encoded("1", &["t".into()], false, text);
        assert_eq!((&other.frame, &other.topics), (&update.frame, &update.topics));
    }

    #[test]
    fn urls_are_resolved_once_for_all_topics() {
        let hub = HubUrl::parse("http://h/.well-known/mercure").unwrap();
        let mut twice = publication("");
        twice.topics.push("http://[".into());
        let update = Update::new("1", &twice);
        let urls: Vec<_> =
            update.candidates(&hub).map(|c| c.url.map(ToString::to_string)).collect();
        assert_eq!(urls, [Some("http://h/.well-known/t".into()), None]);
    }

    proptest! {
        #[test]
        fn no_content_can_forge_a_field(data in "[a-z:\r\n\u{e9}]{0,80}") {
            let frame = Frame::event("i", &publication(&data));
            let text = std::str::from_utf8(frame.text()).unwrap();
            prop_assert_eq!(read_data(text), data.replace("\r\n", "\n").replace('\r', "\n"));
            let body = text.strip_suffix("\n\n").unwrap();
            prop_assert!(body.lines().skip(1).all(|line| line.starts_with("data: ")));
            prop_assert!(!text.contains('\r'));
        }
    }
}
