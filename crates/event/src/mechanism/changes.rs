//! Interest changes that have not been sent to the kernel, for mechanisms that gather them.

mod by_number;
#[cfg(feature = "io_uring")]
mod by_token;

pub(crate) use by_number::ChangesByNumber;
#[cfg(feature = "io_uring")]
pub(crate) use by_token::ChangesByToken;
