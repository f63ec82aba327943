//! The reason why the kernel refuses io_uring, and the remedy.

use crate::Error;

/// For `map_err`: an error for `mechanism` that states whether io_uring is denied, absent or too old,
/// with the remedy; or the plain I/O error.
pub(super) fn io_uring_error(
    mechanism: &'static str,
    call: &'static str,
) -> impl FnOnce(std::io::Error) -> Error {
    move |source| {
        let advice = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled") {
                    Ok(value) if value.trim() != "0" => format!(
                        "the sysctl kernel.io_uring_disabled is {}; set it to 0",
                        value.trim()
                    ),
                    _ => {
                        "a seccomp filter or security module denies io_uring, as containers do by \
                          default; allow io_uring_setup, io_uring_enter and io_uring_register in \
                          the container's seccomp profile"
                            .into()
                    }
                }
            }
            Some(libc::ENOSYS) => "this kernel is built without CONFIG_IO_URING, or a seccomp \
                                   filter (a container's) hides it"
                .into(),
            Some(libc::EINVAL) => "this kernel's io_uring is too old; Linux 5.19 or later is \
                                   needed, 6.1 for taskrun=defer"
                .into(),
            Some(libc::ENOMEM) => "no memory for the rings; raise RLIMIT_MEMLOCK (ulimit -l) or \
                                   the memory limit of the control group"
                .into(),
            _ => return Error::Io { call, source },
        };
        Error::Unavailable { mechanism, reason: format!("{call}: {source}: {advice}") }
    }
}
