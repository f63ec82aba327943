//! Redis commands as arrays of bulk strings (RESP2, "Sending commands to a Redis server").

/// The key of the list of remarks, as in ZeroHTTPd.
const REMARKS: &[u8] = b"guestbook_remarks";
/// The key of the visitor counter, as in ZeroHTTPd.
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

/// Appends the command that returns the newest remarks.
pub(super) fn put_newest(out: &mut Vec<u8>, count: u32) {
    // Negative indices count from the end: -1 is the last element. Redis cuts a range that begins
    // before the list.
    let first = format!("-{}", count.max(1));
    put(out, &[b"LRANGE", REMARKS, first.as_bytes(), b"-1"]);
}

/// Appends the command that counts a visit.
pub(super) fn put_visit(out: &mut Vec<u8>) {
    put(out, &[b"INCR", VISITORS]);
}

/// Appends the command that stores a remark.
pub(super) fn put_remark(out: &mut Vec<u8>, remark: &[u8]) {
    put(out, &[b"RPUSH", REMARKS, remark]);
}

/// Appends a command with its arguments.
pub fn put(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}
