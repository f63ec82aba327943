//! What belongs to one thread: its file table, its CPU time. (CPUs and timer slack: rustix.)

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::{io, time::Duration};

/// Gives this thread a file table of its own, a copy (unshare(2) with CLONE_FILES).
/// RLIMIT_NOFILE counts per table, so each such thread has the whole limit to itself.
///
/// Descriptors opened or closed from then on are opened or closed in this table only; a
/// descriptor must not be handed to, or dropped in, another thread after this call.
pub fn unshare_file_table() -> io::Result<()> {
    // SAFETY: every descriptor in use stays valid in the copy; the copy is what the contract above
    // is about.
    Ok(unsafe { unshare_unsafe(UnshareFlags::FILES) }?)
}

/// The CPU time that this thread has used, user and system, to the nanosecond
/// (CLOCK_THREAD_CPUTIME_ID). Not rustix's, which looks for the vDSO by itself and so cannot run
/// under valgrind.
pub fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec into `time`; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path, sync::mpsc, thread};

    #[test]
    fn cpu_time_grows_with_work_and_not_with_sleep() {
        let before = thread_cpu_time();
        thread::sleep(Duration::from_millis(50));
        let asleep = thread_cpu_time() - before;
        assert!(asleep < Duration::from_millis(50), "{asleep:?}");
        let mut sum = 0u64;
        while thread_cpu_time() - before < asleep + Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
    }

    fn holds(path: &Path) -> bool {
        fs::read_dir("/proc/thread-self/fd")
            .unwrap()
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path))
    }

    #[test]
    fn what_a_thread_opens_in_its_own_table_is_not_in_the_others() {
        let path = std::env::temp_dir().join(format!("pollux-own-table-{}", std::process::id()));
        fs::write(&path, "x").unwrap();
        let (opened, on_open) = mpsc::channel();
        let (finish, on_finish) = mpsc::channel::<()>();
        let other = thread::spawn({
            let path = path.clone();
            move || {
                unshare_file_table().unwrap();
                let _file = fs::File::open(&path).unwrap();
                opened.send(holds(&path)).unwrap();
                let _ = on_finish.recv();
            }
        });
        let in_its_own = on_open.recv().unwrap();
        let in_ours = holds(&path);
        drop(finish);
        other.join().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(in_its_own);
        assert!(!in_ours);
    }
}
