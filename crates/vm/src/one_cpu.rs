//! QEMU on one CPU of the host, where none of its threads takes the CPU from another.
//!
//! The clock of a deterministic guest leaps over idle time. QEMU's main loop decides by how much, as soon as the
//! guest's processor stands still (`icount_start_warp_timer`); but the thread of that processor says so a moment before
//! it has accounted for the last instructions (seen in 7.2). Who looks in between leaps too far, by
//! some hundred instructions: seldom, but a guest falls idle thousands of times in a run. On one CPU the main loop has
//! its turn when the other thread waits, unless something else of the host's comes between: that is rarer still, and
//! not impossible.

use std::{ffi::OsStr, fs, process::Command};

/// SCHED_OTHER, as /proc has it: threads of that policy are put in front when they wake up.
const OTHER: &str = "0";
/// The fields of /proc/PID/stat from the program's name to the policy (proc_pid_stat(5): the 41st).
const TO_POLICY: usize = 38;

/// A command that runs `program` so (taskset(1), chrt(1)).
pub(crate) fn command(program: &OsStr) -> Command {
    let Some(cpu) = cpu() else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string()]);
    // Under SCHED_IDLE, too, no thread takes the CPU from another when it wakes up.
    if policy().is_none_or(|policy| policy == OTHER) {
        command.args(["chrt", "--batch", "0"]);
    }
    command.arg(program);
    command
}

/// One of the CPUs that this process may use, by its number: so not all guests take the same.
fn cpu() -> Option<usize> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    let all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let usable: Vec<usize> = all.collect();
    usable.get(std::process::id() as usize % usable.len().max(1)).copied()
}

fn policy() -> Option<String> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(TO_POLICY).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_one_cpu_and_does_not_come_first() {
        let mut command = command(OsStr::new("sh"));
        let script = "grep Cpus_allowed_list /proc/self/status; chrt --pid $$";
        let output = command.args(["-c", script]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(&format!("Cpus_allowed_list:\t{}\n", cpu().unwrap())), "{said}");
        assert!(!said.contains("SCHED_OTHER"), "{said}");
        assert!(said.contains("SCHED_BATCH") || said.contains("SCHED_IDLE"), "{said}");
    }
}
