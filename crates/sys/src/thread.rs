//! Functions for one thread: its start, its file table, its scheduling, its CPU time. (CPUs and timer
//! slack: rustix.)

use rustix::thread::{UnshareFlags, set_name, unshare_unsafe};
use std::{
    ffi::{CStr, c_void},
    io,
    mem::{self, MaybeUninit},
    panic::{self, AssertUnwindSafe},
    ptr,
    time::Duration,
};

/// The size of a detached thread's stack in bytes: that of the standard library's threads. Pages that
/// are never touched take no memory.
const STACK_SIZE: usize = 2 << 20;

/// Starts a detached thread. A panic of `main` ends only this thread. Tools show 15 bytes of `name`
/// (prctl(2), PR_SET_NAME).
///
/// The standard library detaches a running thread when its handle is dropped. glibc's pthread_detach(3)
/// then reads the thread's memory once more after it has marked it: if the thread ends in between, its
/// memory is freed and the process ends with SIGSEGV (observed with glibc 2.36). A server that starts a
/// thread per connection meets that race. A thread that is created detached does not have it.
///
/// # Errors
/// Those of pthread_create(3): EAGAIN where there is no memory or a limit is reached. `main` is dropped then.
pub fn spawn_detached<F>(name: &'static CStr, main: F) -> io::Result<()>
where
    F: FnOnce() + Send + 'static,
{
    struct ThreadStart<F> {
        name: &'static CStr,
        main: F,
    }

    extern "C" fn run<F: FnOnce()>(start: *mut c_void) -> *mut c_void {
        // SAFETY: it is the box that was passed to the thread below, and no other code has it.
        let ThreadStart { name, main } = *unsafe { Box::from_raw(start.cast::<ThreadStart<F>>()) };
        let _ = set_name(name);
        // The caller is not Rust. The panic was reported already, and dropping its payload may
        // panic again.
        if let Err(carried) = panic::catch_unwind(AssertUnwindSafe(main)) {
            mem::forget(carried);
        }
        ptr::null_mut()
    }

    let ok = |error| if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) };
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the call initializes the attributes.
    ok(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    let attributes = attributes.as_mut_ptr();
    let start = Box::into_raw(Box::new(ThreadStart { name, main }));
    let mut thread = MaybeUninit::uninit();
    // SAFETY: the attributes are initialized, and destroyed once, at the end. The new thread takes
    // ownership of the box, and `F` is Send and 'static. If there is no new thread, only this function
    // has the box.
    let outcome = unsafe {
        ok(libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED))
            .and_then(|()| ok(libc::pthread_attr_setstacksize(attributes, STACK_SIZE)))
            .and_then(|()| {
                let (main, given) = (run::<F>, start.cast());
                ok(libc::pthread_create(thread.as_mut_ptr(), attributes, main, given))
            })
    };
    // SAFETY: as above.
    unsafe {
        libc::pthread_attr_destroy(attributes);
        if outcome.is_err() {
            drop(Box::from_raw(start));
        }
    }
    outcome
}

/// Gives this thread a file table of its own, a copy (unshare(2) with CLONE_FILES).
/// RLIMIT_NOFILE counts per table, so each such thread has the whole limit to itself.
///
/// Descriptors opened or closed from then on are opened or closed in this table only; a
/// descriptor must not be handed to, or dropped in, another thread after this call.
pub fn unshare_file_table() -> io::Result<()> {
    // SAFETY: every descriptor in use stays valid in the copy; the contract above is about the copy.
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

/// Gives the thread `id` (0: this one), and the processes and threads that it starts, a real-time
/// priority: while it is runnable, it runs before all threads without real-time scheduling and before
/// those with a lower `priority` (SCHED_FIFO, sched(7); 1 is the lowest). One system call and no
/// allocation: it may be called between fork and exec.
///
/// # Errors
/// ESRCH when there is no such thread, EPERM without CAP_SYS_NICE, EINVAL for a priority outside of 1 to 99.
pub fn enter_real_time(id: u32, priority: libc::c_int) -> io::Result<()> {
    set_policy(id, libc::SCHED_FIFO, priority)
}

/// Returns this thread to ordinary scheduling (SCHED_OTHER) if it has a real-time policy (SCHED_FIFO,
/// SCHED_RR; sched(7)). Does nothing otherwise.
///
/// # Errors
/// Those of sched_setscheduler(2); it has none for a thread that lowers its own priority.
pub fn leave_real_time() -> io::Result<()> {
    if !is_real_time()? {
        return Ok(());
    }
    set_policy(0, libc::SCHED_OTHER, 0)
}

fn is_real_time() -> io::Result<bool> {
    // SAFETY: the call takes a number, and 0 is this thread.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } as libc::c_int;
    if policy == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR))
}

/// Sets the policy with the system call, because musl's function always fails.
fn set_policy(id: u32, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let call = libc::SYS_sched_setscheduler;
    // SAFETY: the kernel reads only the priority, which outlives the call.
    match unsafe { libc::syscall(call, id, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path, sync::mpsc, thread};

    #[test]
    fn a_detached_thread_has_its_name_and_ends_alone() {
        let (sender, receiver) = mpsc::channel();
        spawn_detached(c"detached", move || {
            sender.send(fs::read_to_string("/proc/thread-self/comm").unwrap()).unwrap();
            // A panic without its message, which would look like a failed test: the harness does not
            // capture this thread.
            std::panic::resume_unwind(Box::new("as it should"));
        })
        .unwrap();
        assert_eq!(receiver.recv().unwrap(), "detached\n");
        assert!(receiver.recv().is_err(), "the panic has dropped what the thread had");

        // Starts thousands of threads, as a server does.
        let (sender, receiver) = mpsc::channel();
        for number in 0..2000 {
            // At the limit of threads, some of them end in the meantime.
            pollux_testkit::wait_until("another thread", || {
                let sender = sender.clone();
                spawn_detached(c"many", move || sender.send(number).unwrap()).is_ok()
            });
        }
        drop(sender);
        assert_eq!(receiver.iter().sum::<u32>(), 1999 * 1000);
    }

    #[test]
    fn a_detached_thread_that_cannot_be_started_is_an_error_and_drops_what_it_was_given() {
        let (sender, receiver) = mpsc::channel::<()>();
        let outcome = pollux_testkit::denied(libc::SYS_clone3, libc::EAGAIN, || {
            spawn_detached(c"none", move || drop(sender))
        });
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert!(receiver.recv().is_err());
    }

    #[test]
    fn a_thread_leaves_its_real_time_priority_and_keeps_what_is_none() {
        thread::spawn(|| {
            leave_real_time().unwrap();
            assert!(!is_real_time().unwrap());
            // Without the permission for a real-time priority, there is none to leave.
            match enter_real_time(0, 1) {
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
                Ok(()) => {
                    assert!(is_real_time().unwrap());
                    leave_real_time().unwrap();
                    assert!(!is_real_time().unwrap());
                }
            }
            set_policy(0, libc::SCHED_BATCH, 0).unwrap();
            leave_real_time().unwrap();
            // SAFETY: the call takes a number, and 0 is this thread.
            let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
            assert_eq!(policy, libc::c_long::from(libc::SCHED_BATCH));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn cpu_time_grows_with_work_and_not_with_sleep() {
        let before = thread_cpu_time();
        // The sleep under test.
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
