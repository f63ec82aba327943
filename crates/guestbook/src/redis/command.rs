//! Commands, as arrays of bulk strings (RESP2, "Sending commands to a Redis server").

/// The list of remarks, as ZeroHTTPd names it.
const REMARKS: &[u8] = b"guestbook_remarks";
/// The counter of visits, as ZeroHTTPd names it.
const VISITORS: &[u8] = b"visitor_count";

/// Appends `AUTH` with a password, or a user and a password.
pub(super) fn put_auth(out: &mut Vec<u8>, user: Option<&str>, password: &str) {
    match user {
        Some(user) => put(out, &[b"AUTH", user.as_bytes(), password.as_bytes()]),
        None => put(out, &[b"AUTH", password.as_bytes()]),
    }
}

/// Appends `SELECT`.
pub(super) fn put_select(out: &mut Vec<u8>, database: u32) {
    put(out, &[b"SELECT", database.to_string().as_bytes()]);
}

/// Appends what asks for the newest remarks.
pub(super) fn put_newest(out: &mut Vec<u8>, count: u32) {
    // From the end: -1 is the last element. A range that begins before the list is cut by Redis.
    let first = format!("-{}", count.max(1));
    put(out, &[b"LRANGE", REMARKS, first.as_bytes(), b"-1"]);
}

/// Appends what counts a visit.
pub(super) fn put_visit(out: &mut Vec<u8>) {
    put(out, &[b"INCR", VISITORS]);
}

/// Appends what keeps a remark.
pub(super) fn put_remark(out: &mut Vec<u8>, remark: &[u8]) {
    put(out, &[b"RPUSH", REMARKS, remark]);
}

fn put(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}
