//! Makes system calls fail for a test.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::thread;

/// Runs `run` in a new thread, in which system call number `call` fails with `errno` (seccomp(2)).
/// Threads and processes that `run` starts inherit the filter.
///
/// # Panics
/// If the filter cannot be installed, or `run` panics.
pub fn denied<T: Send>(call: i64, errno: i32, run: impl FnOnce() -> T + Send) -> T {
    denied_by(call, Vec::new(), errno, run)
}

/// Does the same as [`denied`], but the call fails only where its argument number `index`, from 0, has
/// this value.
///
/// # Panics
/// As [`denied`].
pub fn denied_where<T: Send>(
    (call, index, value): (i64, u8, u64),
    errno: i32,
    run: impl FnOnce() -> T + Send,
) -> T {
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value);
    let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
    denied_by(call, vec![rule.expect("a rule")], errno, run)
}

fn denied_by<T: Send>(
    call: i64,
    rules: Vec<SeccompRule>,
    errno: i32,
    run: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let denied = scope.spawn(|| {
            let architecture = std::env::consts::ARCH.try_into().expect("a known architecture");
            let filter: BpfProgram = SeccompFilter::new(
                [(call, rules)].into(),
                SeccompAction::Allow,
                SeccompAction::Errno(errno as u32),
                architecture,
            )
            .and_then(TryInto::try_into)
            .expect("a filter");
            seccompiler::apply_filter(&filter).expect("the filter is in force");
            run()
        });
        denied.join().expect("the thread ends well")
    })
}
