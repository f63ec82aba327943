//! The processes of a server, as /proc shows them.

use std::{collections::BTreeMap, fs};

/// Returns the running children of a process with a single thread. The launcher of upgrades serves no
/// client and is left out.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|&number| {
            stat(number)
                .is_some_and(|(state, parent)| parent == pid && state != 'Z' && state != 'X')
        })
        .filter(|number| {
            let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
            name.trim_end() != "pollux-launcher"
        })
        .collect()
}

/// Returns the state and the parent of a process (proc_pid_stat(5)).
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Returns whether a process runs, and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// Returns whether a signal has stopped a process.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

/// Returns the open descriptors of a process, without the standard descriptors, by number.
pub(crate) fn descriptors(pid: u32) -> BTreeMap<u32, String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
        })
        .filter(|&(number, _)| number > 2)
        .collect()
}

/// Returns the TCP sockets of a process, and whether each listens.
pub(crate) fn tcp_sockets(pid: u32) -> Vec<(String, bool)> {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let listening: BTreeMap<String, bool> = table
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            (format!("socket:[{}]", fields[9]), fields[3] == "0A")
        })
        .collect();
    let all = descriptors(pid).into_values();
    all.filter_map(|name| listening.get(&name).map(|&listens| (name, listens))).collect()
}
