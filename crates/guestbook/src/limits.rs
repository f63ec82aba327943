//! Limits of all external data.

/// The maximum length of a template in bytes.
pub const TEMPLATE_BYTES: usize = 1 << 20;

/// The maximum length of a remark in bytes of UTF-8, including the name of its author.
pub const REMARK_BYTES: usize = 4 << 10;

/// The maximum length in bytes of the body of a form. Percent-encoding may triple the length of a
/// remark.
pub const FORM_BYTES: usize = 16 << 10;

/// The number of remarks on a page by default: the newest ones.
pub const SHOWN: u32 = 100;

/// The maximum number of remarks that can be configured for a page.
pub const SHOWN_MAX: u32 = 10_000;

/// The maximum length in bytes of the remarks of a page as HTML. If the newest remarks are longer,
/// the page shows fewer of them, because a page remains in memory until the client has read it.
pub const PAGE_BYTES: usize = 256 << 10;

/// The maximum length in bytes of a reply from Redis.
pub const REPLY_BYTES: usize = 64 << 20;

/// The maximum number of elements of one array in a reply.
pub const REPLY_ELEMENTS: usize = SHOWN_MAX as usize;

/// The maximum nesting of arrays in a reply. The commands used here need one level.
pub const REPLY_DEPTH: usize = 4;

/// The maximum number of pending requests on one connection to Redis.
pub const PIPELINE: usize = 1024;

/// The maximum size in bytes of the file of remarks. The file grows as needed.
pub const FILE_BYTES: usize = 1 << 30;

/// The maximum number of requests that wait for the file's thread. Further requests are rejected
/// with [`StoreError::Busy`](crate::StoreError::Busy).
pub const FILE_QUEUE: usize = 16 << 10;
