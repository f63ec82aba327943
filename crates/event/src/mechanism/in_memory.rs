//! Mechanisms that keep the interest in this process's memory until a wait passes it to the kernel
//! (`select`, `poll`, `devpoll`): adding, modifying and removing are no system calls.

/// The four methods of [`crate::Mechanism`] that change the interest, for a type with
/// `registrations`, `check_descriptor(fd)`, `set(fd, interest)`, which adds or modifies, and
/// `delete(fd)`.
macro_rules! interest_in_memory {
    () => {
        #[inline]
        fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
            self.check_descriptor(fd.as_raw_fd())?;
            let token = self.registrations.insert(fd.as_raw_fd(), interest)?;
            self.set(token.fd, interest);
            Ok(token)
        }

        #[inline]
        fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
            self.registrations.replace(token, interest)?;
            self.set(token.fd, interest);
            Ok(())
        }

        #[inline]
        fn remove(&mut self, token: Token) -> Result<(), Error> {
            self.registrations.remove(token)?;
            self.delete(token.fd);
            Ok(())
        }

        #[inline]
        fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
            let removed = self.remove(token);
            sys::close(fd);
            removed
        }
    };
}
pub(super) use interest_in_memory;
