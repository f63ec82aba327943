//! System calls that fail because a test says so.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::thread;

/// Runs `run` in a thread of its own, in which system call number `call` fails with `errno`
/// (seccomp(2)). Threads that it starts inherit that.
///
/// # Panics
/// When the filter cannot be had, or `run` panics.
pub fn denied<T: Send>(call: i64, errno: i32, run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let denied = scope.spawn(|| {
            let architecture = std::env::consts::ARCH.try_into().expect("a known architecture");
            let filter: BpfProgram = SeccompFilter::new(
                [(call, vec![])].into(),
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
