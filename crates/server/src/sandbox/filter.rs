//! The system calls that this process may make, as a filter of seccomp(2).
//!
//! The list contains the system calls that Pollux counts ([`pollux_sys::Call`]; a test compares
//! them) and those with which the C library and the standard library use memory, threads, files and
//! names. It does not contain execve(2): see [`crate::upgrade::launcher`]. For a system call that
//! is allowed with all arguments, the kernel remembers the result and does not run the filter again
//! (Linux 5.11).

use super::Seccomp;
use anyhow::Context;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::{collections::BTreeMap, env::consts::ARCH};

/// The system calls that are allowed on every machine.
const ALLOWED: &[libc::c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munmap,
    // Threads and processes. The flags of clone3(2) are in memory, which a filter cannot read. The
    // C library uses clone(2) instead only if clone3(2) does not exist.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_prctl,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Signals. Landlock limits the processes that can receive them.
    libc::SYS_kill,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setitimer,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    // Time.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_times,
    // Information about this process and machine.
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    libc::SYS_umask,
    libc::SYS_uname,
    // Files. Landlock limits the files that can be used.
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
    // Sockets. Landlock limits the TCP ports that can be used.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
];

/// Older forms of some of these system calls, which newer machines do not have.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_fork,
    libc::SYS_getdents,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_setrlimit,
    libc::SYS_signalfd,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// The system calls of io_uring. The kernel runs no filter for requests that are submitted to a
/// ring, so these are allowed only if the server's mechanism uses a ring.
const RING: &[libc::c_long] =
    &[libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_io_uring_setup];

/// The allowed families of sockets. The C library reads the addresses of this host with NETLINK.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The flags for new namespaces (clone(2)).
const NAMESPACES: libc::c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// Returns a condition for an argument of a system call. The type of `value` depends on the C
/// library.
fn argument(
    index: u8,
    operator: SeccompCmpOp,
    value: impl TryInto<u64>,
) -> anyhow::Result<SeccompCondition> {
    let value = value.try_into().ok().context("a negative argument in a rule of the filter")?;
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?)
}

/// Returns the filter of a server.
fn program(action: Seccomp, has_ring: bool) -> anyhow::Result<BpfProgram> {
    let ring = if has_ring { RING } else { &[] };
    let all = ALLOWED.iter().chain(OLDER).chain(ring);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = all.map(|&call| (call, Vec::new())).collect();
    let families = FAMILIES.map(|family| {
        SeccompRule::new(vec![argument(0, SeccompCmpOp::Eq, family as u64)?]).map_err(Into::into)
    });
    rules.insert(libc::SYS_socket, families.into_iter().collect::<anyhow::Result<_>>()?);
    let no_namespace = argument(0, SeccompCmpOp::MaskedEq(NAMESPACES as u32 as u64), 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespace])?]);
    // Workers have their own file tables.
    let only_files = argument(0, SeccompCmpOp::Eq, libc::CLONE_FILES as u64)?;
    rules.insert(libc::SYS_unshare, vec![SeccompRule::new(vec![only_files])?]);
    // These requests insert keystrokes into the terminal that the server was started from.
    let no_keystrokes = vec![
        argument(1, SeccompCmpOp::Ne, libc::TIOCSTI)?,
        argument(1, SeccompCmpOp::Ne, libc::TIOCLINUX)?,
    ];
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(no_keystrokes)?]);
    let otherwise = match action {
        Seccomp::Kill => SeccompAction::KillProcess,
        Seccomp::Log | Seccomp::Off => SeccompAction::Log,
    };
    let filter = SeccompFilter::new(rules, otherwise, SeccompAction::Allow, ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

/// Applies the filter to this thread, and to all threads and processes that it starts from now on.
/// `has_ring` says whether the server waits with io_uring.
///
/// # Errors
/// The kernel has no seccomp filters.
pub(super) fn enter(action: Seccomp, has_ring: bool) -> anyhow::Result<()> {
    let program = program(action, has_ring).context("the filter of system calls")?;
    seccompiler::apply_filter(&program).context("seccomp (CONFIG_SECCOMP_FILTER)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_sys::Call;

    /// Returns the number of each counted system call. A new call must be added here and to the
    /// list.
    fn number(call: Call) -> libc::c_long {
        match call.name() {
            "accept4" => libc::SYS_accept4,
            "bind" => libc::SYS_bind,
            "clock_gettime" => libc::SYS_clock_gettime,
            "close" => libc::SYS_close,
            "connect" => libc::SYS_connect,
            "epoll_create1" => libc::SYS_epoll_create1,
            "epoll_ctl" => libc::SYS_epoll_ctl,
            "epoll_wait" | "epoll_pwait2" => libc::SYS_epoll_pwait2,
            "eventfd2" => libc::SYS_eventfd2,
            "fcntl" => libc::SYS_fcntl,
            "fork" => libc::SYS_clone,
            "getsockopt" => libc::SYS_getsockopt,
            "io_uring_enter" => libc::SYS_io_uring_enter,
            "io_uring_setup" => libc::SYS_io_uring_setup,
            "ioctl" => libc::SYS_ioctl,
            "listen" => libc::SYS_listen,
            "openat" => libc::SYS_openat,
            "pipe2" => libc::SYS_pipe2,
            "ppoll" => libc::SYS_ppoll,
            "read" => libc::SYS_read,
            "recvfrom" => libc::SYS_recvfrom,
            "recvmsg" => libc::SYS_recvmsg,
            "pselect6" => libc::SYS_pselect6,
            "sendto" => libc::SYS_sendto,
            "sendfile" => libc::SYS_sendfile,
            "sendmsg" => libc::SYS_sendmsg,
            "setsockopt" => libc::SYS_setsockopt,
            "shutdown" => libc::SYS_shutdown,
            "rt_sigaction" => libc::SYS_rt_sigaction,
            "signalfd4" => libc::SYS_signalfd4,
            "rt_sigprocmask" => libc::SYS_rt_sigprocmask,
            "rt_sigtimedwait" => libc::SYS_rt_sigtimedwait,
            "socket" => libc::SYS_socket,
            "socketpair" => libc::SYS_socketpair,
            "fstat" => libc::SYS_fstat,
            "wait4" => libc::SYS_wait4,
            "write" => libc::SYS_write,
            "writev" => libc::SYS_writev,
            name => panic!("{name}: add it to the list of allowed system calls, and here"),
        }
    }

    #[test]
    fn every_counted_call_is_allowed() {
        let by_argument = [libc::SYS_socket, libc::SYS_clone, libc::SYS_ioctl];
        for &call in Call::ALL {
            let number = number(call);
            let lists = [ALLOWED, OLDER, RING, &by_argument];
            assert!(lists.iter().any(|list| list.contains(&number)), "{}", call.name());
        }
    }

    #[test]
    fn a_filter_fits_into_the_kernel_and_allows_no_program_to_be_executed() {
        for has_ring in [false, true] {
            let program = program(Seccomp::Kill, has_ring).unwrap();
            // 4096 is BPF_MAXINSNS.
            assert!(program.len() < 4096, "{}", program.len());
        }
        for never in [libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_mount] {
            assert!(![ALLOWED, OLDER, RING].iter().any(|list| list.contains(&never)));
        }
    }
}
