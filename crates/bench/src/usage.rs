//! The CPU time of children that have ended and been waited for.

use anyhow::Context;
use std::fs;

/// User and system time of all ended children, in microseconds, from /proc/self/stat (fields 16
/// and 17, in clock ticks of 10 ms). The servers under measurement are children too, but none of
/// them ends while a generator is measured.
pub(crate) fn children_cpu_us() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    // The second field, the name in parentheses, may hold spaces.
    let rest = text.rsplit_once(')').context("/proc/self/stat is not as in proc(5)")?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: u64 = fields[13].parse::<u64>()? + fields[14].parse::<u64>()?;
    Ok(ticks as f64 * 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_busy_child_is_seen() {
        let before = children_cpu_us().unwrap();
        let status = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"])
            .status()
            .unwrap();
        assert!(status.success());
        assert!(children_cpu_us().unwrap() - before >= 10_000.0);
    }
}
