//! Landlock (landlock(7)): whether this kernel supports it.

use super::check;
use std::io;

/// LANDLOCK_CREATE_RULESET_VERSION (landlock_create_ruleset(2)).
const VERSION: libc::c_uint = 1;

/// The version of Landlock's interface that this kernel offers.
///
/// # Errors
/// ENOSYS: the kernel is older than 5.13 or built without it. EOPNOTSUPP: it is disabled (`lsm=` on the
/// kernel's command line). EPERM: a seccomp filter forbids the system call.
pub fn landlock_abi() -> io::Result<u32> {
    // SAFETY: with this flag the kernel reads no structure: the pointer must be null and the size 0.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            VERSION,
        )
    };
    Ok(check(returned as libc::c_int)?.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers() {
        match landlock_abi() {
            Ok(version) => assert!(version > 0),
            Err(error) => {
                let known = [libc::ENOSYS, libc::EOPNOTSUPP, libc::EPERM];
                assert!(known.contains(&error.raw_os_error().unwrap_or_default()), "{error}");
            }
        }
    }
}
