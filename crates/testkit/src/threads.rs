//! The state of the threads of a process, as Linux reports it: /proc/PID/task/TID/status
//! (proc_pid_status(5)).

use std::{fs, path::PathBuf};

/// Returns field `name` (with its colon, as in `Uid:`) of each thread of the process. The words are
/// separated by one space.
///
/// A thread that ends after the directory is listed and before its status is read is left out.
///
/// # Panics
///
/// If the process does not exist, or no status has such a field.
pub fn fields(pid: u32, name: &str) -> Vec<String> {
    let folder = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let status = |path: PathBuf| fs::read_to_string(path.join("status")).ok();
    let statuses = tasks.flatten().filter_map(|task| status(task.path()));
    let words = |status: String| {
        let field = status.lines().find_map(|line| line.strip_prefix(name));
        let field = field.unwrap_or_else(|| panic!("{folder}: no {name} in {status}"));
        field.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let fields: Vec<_> = statuses.map(words).collect();
    assert!(!fields.is_empty(), "{folder}: no thread has a status");
    fields
}
