//! The two text formats of metrics: Prometheus 0.0.4 and OpenMetrics 1.0.
//!
//! They differ in the place of a counter's `_total`, in the name of the unknown type, and in the
//! end. A library writes one of them; writing both here, from counters that other code maintains,
//! is less code than copying these counters into a library's registry.

use std::fmt::Write;

/// One metric with its samples.
#[derive(Debug)]
pub(super) struct Family {
    /// The name without `_total`; it ends with the unit, if there is one.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// `seconds` or `bytes`; empty if the metric has no unit.
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    pub(super) samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// Samples have a suffix: `_bucket`, with the label `le`, `_sum` and `_count`.
    Histogram,
    /// A mechanism's own values: some are counters, some are not.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Sample {
    /// The suffix of the metric's name; empty except for histograms.
    pub(super) suffix: &'static str,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: Value,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Count(u64),
    Real(f64),
}

/// The format in which metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// Returns the format that a client's Accept field selects. Prometheus names OpenMetrics first
    /// if it supports it; a client that does not name it gets the older format.
    pub(super) fn of_accept(accept: &str) -> Self {
        let names_it = accept.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or("");
            kind.eq_ignore_ascii_case("application/openmetrics-text")
                && !parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0)))
        });
        if names_it { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the whole text.
    pub(super) fn write(self, families: &[Family]) -> String {
        let mut text = String::with_capacity(16 << 10);
        for family in families {
            self.write_family(family, &mut text);
        }
        if self == Self::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }

    fn write_family(self, family: &Family, text: &mut String) {
        let total = if family.kind == Kind::Counter { "_total" } else { "" };
        let described = if self == Self::Prometheus { total } else { "" };
        let name = family.name;
        let kind = match (family.kind, self) {
            (Kind::Counter, _) => "counter",
            (Kind::Gauge, _) => "gauge",
            (Kind::Histogram, _) => "histogram",
            (Kind::Unknown, Self::Prometheus) => "untyped",
            (Kind::Unknown, Self::OpenMetrics) => "unknown",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# TYPE {name}{described} {kind}");
        if self == Self::OpenMetrics && !family.unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {}", family.unit);
        }
        let _ = writeln!(text, "# HELP {name}{described} {}", family.help);
        for sample in &family.samples {
            let _ = write!(text, "{name}{total}{}", sample.suffix);
            for (index, (label, value)) in sample.labels.iter().enumerate() {
                text.push(if index == 0 { '{' } else { ',' });
                let _ = write!(text, "{label}=\"");
                escape(value, text);
                text.push('"');
            }
            if !sample.labels.is_empty() {
                text.push('}');
            }
            let _ = match sample.value {
                Value::Count(count) => writeln!(text, " {count}"),
                Value::Real(real) => writeln!(text, " {real:?}"),
            };
        }
    }
}

/// Appends the value of a label. Both formats escape the same three characters.
fn escape(value: &str, text: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            _ => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family() -> Family {
        Family {
            name: "pollux_sent_bytes",
            kind: Kind::Counter,
            unit: "bytes",
            help: "Bytes.",
            samples: vec![Sample {
                suffix: "",
                labels: vec![("a", "x\"\\\n".into()), ("b", String::new())],
                value: Value::Count(7),
            }],
        }
    }

    #[test]
    fn a_counter_in_both_formats() {
        assert_eq!(
            Format::Prometheus.write(&[family()]),
            "# TYPE pollux_sent_bytes_total counter\n# HELP pollux_sent_bytes_total Bytes.\n\
             pollux_sent_bytes_total{a=\"x\\\"\\\\\\n\",b=\"\"} 7\n"
        );
        assert_eq!(
            Format::OpenMetrics.write(&[family()]),
            "# TYPE pollux_sent_bytes counter\n# UNIT pollux_sent_bytes bytes\n\
             # HELP pollux_sent_bytes Bytes.\n\
             pollux_sent_bytes_total{a=\"x\\\"\\\\\\n\",b=\"\"} 7\n# EOF\n"
        );
    }

    #[test]
    fn openmetrics_is_for_clients_that_accept_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(Format::of_accept(prometheus), Format::OpenMetrics);
        for accept in
            ["", "*/*", "text/plain", "application/openmetrics-text;q=0.0", "text/html,,;"]
        {
            assert_eq!(Format::of_accept(accept), Format::Prometheus, "{accept}");
        }
    }
}
