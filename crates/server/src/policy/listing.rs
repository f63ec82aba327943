//! A directory's content, as a page or as JSON.

use std::fmt::Write;

/// The maximum number of entries that are listed. The page of a larger directory says that there are more, and a
/// field of the response says so to programs.
pub(crate) const ENTRIES_MAX: usize = 10_000;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListingEntry {
    /// The name without its directory. It need not be UTF-8.
    pub(crate) name: Vec<u8>,
    pub(crate) is_directory: bool,
    pub(crate) bytes: u64,
    /// UNIX time in seconds.
    pub(crate) modified_s: u64,
}

/// Sorts directories before files, both in the order of their names.
pub(crate) fn sort(entries: &mut [ListingEntry]) {
    entries.sort_by(|a, b| b.is_directory.cmp(&a.is_directory).then_with(|| a.name.cmp(&b.name)));
}

/// Returns the HTML page of a directory at `path`, which is decoded and ends in a slash.
pub(crate) fn html(path: &[u8], entries: &[ListingEntry], is_cut: bool) -> String {
    let mut title = String::new();
    escape_html(&String::from_utf8_lossy(path), &mut title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;margin:1rem auto;max-width:60rem;padding:0 1rem}}\
         table{{width:100%;border-spacing:0}}td{{padding:.1rem .5rem}}\
         td+td{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}}</style>\n\
         <h1>{title}</h1>\n<table>\n"
    );
    if path != b"/" {
        page.push_str("<tr><td><a href=\"../\">../</a><td><td>\n");
    }
    for entry in entries {
        let slash = if entry.is_directory { "/" } else { "" };
        // The prefix `./` prevents a browser from reading a part of the name as a scheme.
        page.push_str("<tr><td><a href=\"./");
        encode(&entry.name, &mut page);
        let _ = write!(page, "{slash}\">");
        escape_html(&String::from_utf8_lossy(&entry.name), &mut page);
        let size = if entry.is_directory { String::new() } else { entry.bytes.to_string() };
        let date = pollux_http::date::format(entry.modified_s);
        let _ = writeln!(page, "{slash}</a><td>{size}<td>{}", String::from_utf8_lossy(&date));
    }
    page.push_str("</table>\n");
    if is_cut {
        let _ = writeln!(page, "<p>There are more: {ENTRIES_MAX} are listed.");
    }
    page
}

/// Returns the listing for programs, as JSON: an array of objects with `name`, `type` (`file` or
/// `directory`), `size` of files and `mtime`, a UNIX time.
pub(crate) fn json(entries: &[ListingEntry]) -> String {
    let mut text = String::from("[");
    for (index, entry) in entries.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        let name = serde_json::Value::from(String::from_utf8_lossy(&entry.name));
        let _ = if entry.is_directory {
            write!(
                text,
                "{{\"name\":{name},\"type\":\"directory\",\"mtime\":{}}}",
                entry.modified_s
            )
        } else {
            write!(
                text,
                "{{\"name\":{name},\"type\":\"file\",\"size\":{},\"mtime\":{}}}",
                entry.bytes, entry.modified_s
            )
        };
    }
    text.push_str("\n]\n");
    text
}

fn escape_html(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(character),
        }
    }
}

/// Appends a name as one segment of a URL.
fn encode(name: &[u8], out: &mut String) {
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], is_directory: bool) -> ListingEntry {
        ListingEntry { name: name.into(), is_directory, bytes: 7, modified_s: 784_111_777 }
    }

    #[test]
    fn folders_come_first_and_names_are_harmless() {
        let names: [(&[u8], bool); 4] =
            [(b"<b>\"&.txt", false), (b"a b", false), (b"z", true), (b"\xff%", false)];
        let mut entries: Vec<_> =
            names.map(|(name, is_directory)| entry(name, is_directory)).into();
        sort(&mut entries);
        assert_eq!(entries[0].name, b"z");
        let page = html(b"/x<y/", &entries, true);
        for part in [
            "<title>/x&lt;y/</title>",
            "<a href=\"../\">",
            "<a href=\"./z/\">z/</a>",
            "<a href=\"./%3Cb%3E%22%26.txt\">&lt;b&gt;&quot;&amp;.txt</a><td>7<td>Sun, 06 Nov 1994 08:49:37 GMT",
            "href=\"./%FF%25\"",
            "10000 are listed",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!html(b"/", &[], false).contains("../"));
    }

    #[test]
    fn json_is_json() {
        let entries = [entry(b"a\"\n", false), entry(b"d", true)];
        let value: serde_json::Value = serde_json::from_str(&json(&entries)).unwrap();
        assert_eq!(value[0]["name"], "a\"\n");
        assert_eq!((&value[0]["size"], &value[1]["type"]), (&7.into(), &"directory".into()));
        assert_eq!(json(&[]).trim_end(), "[\n]");
    }
}
