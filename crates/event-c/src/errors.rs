//! Passes errors and panics to C.

use ::pollux_event::Error;
use std::{
    cell::RefCell,
    ffi::{CString, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Runs `work`; a panic becomes ENOTRECOVERABLE.
pub(crate) fn catch_panics(work: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    // State after a panic is not used again: the caller marks the set as broken.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value) | Err(value)) => value,
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            remember(
                libc::ENOTRECOVERABLE,
                &format!("a fault in pollux, please report it: {message}"),
            )
        }
    }
}

/// Stores the message for [`message`]; returns the negated number.
pub(crate) fn remember(number: c_int, message: &str) -> c_int {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // While the thread ends no code can read it.
    let _ = MESSAGE.try_with(|message| message.replace(text));
    -number
}

/// The error as a negated error number; its message is stored.
#[cold]
pub(crate) fn number_of(error: &Error) -> c_int {
    let number = match error {
        Error::Unavailable { .. } => libc::ENOSYS,
        Error::Spec(_) => libc::EINVAL,
        Error::DescriptorTooLarge { .. } => libc::ERANGE,
        Error::AlreadyAdded(_) => libc::EEXIST,
        Error::NotAdded(_) => libc::ENOENT,
        other => other.raw_os_error().unwrap_or(libc::EIO),
    };
    remember(number, &error.to_string())
}

pub(crate) fn message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(ptr::null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        assert_eq!(catch_panics(|| panic!("reported")), -libc::ENOTRECOVERABLE);
        // SAFETY: a C string that this thread stores.
        let text = unsafe { std::ffi::CStr::from_ptr(message()) }.to_string_lossy().into_owned();
        assert!(text.contains("reported"), "{text}");
        assert_eq!(catch_panics(|| Ok(7)), 7);
    }
}
