//! Users of this machine, for tests that give up root's rights.

use std::fs;

/// A user that every system has.
pub(crate) const USER: &str = "nobody";

/// Returns the number of [`USER`]. If this process cannot become that user, prints that and returns
/// `None`.
pub(crate) fn number_of_user() -> Option<u32> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with(&format!("{USER}:"))).unwrap();
    Some(line.split(':').nth(2).unwrap().parse().unwrap())
}
