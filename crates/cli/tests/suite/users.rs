//! Users of this machine, for tests that give root's rights up.

use std::fs;

/// A user that every system has.
pub(crate) const USER: &str = "nobody";

/// The number of [`USER`]. Where this process cannot become that user, it is `None`, and a line says so.
pub(crate) fn number_of_user() -> Option<u32> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with(&format!("{USER}:"))).unwrap();
    Some(line.split(':').nth(2).unwrap().parse().unwrap())
}
