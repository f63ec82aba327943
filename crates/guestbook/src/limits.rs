//! The bounds of everything that comes from outside.

/// The longest template, in octets.
pub const TEMPLATE_BYTES: usize = 1 << 20;

/// The longest remark, in octets of UTF-8, the name of its author included.
pub const REMARK_BYTES: usize = 4 << 10;

/// The longest body of a form that is read. A remark may be percent-encoded, which triples it.
pub const FORM_BYTES: usize = 16 << 10;

/// How many remarks a page shows unless it is told otherwise: the newest.
pub const SHOWN: u32 = 100;

/// The most remarks that a page may be told to show.
pub const SHOWN_MAX: u32 = 10_000;

/// The most octets of HTML that the remarks of a page come to. Where the newest remarks are more, a
/// page shows fewer of them: what a client does not read stays in memory until it leaves.
pub const PAGE_BYTES: usize = 256 << 10;

/// The longest reply that is taken from a Redis server, in octets.
pub const REPLY_BYTES: usize = 64 << 20;

/// The most elements of one array in a reply.
pub const REPLY_ELEMENTS: usize = SHOWN_MAX as usize;

/// How deep arrays may stand in arrays. What is asked here is answered by one level.
pub const REPLY_DEPTH: usize = 4;

/// Requests that may be on their way on one connection to Redis; further ones wait elsewhere.
pub const PIPELINE: usize = 1024;

/// The most octets that the file of remarks may grow to. It is as long as what it has needed so far.
pub const FILE_BYTES: usize = 1 << 30;

/// Requests that may wait for the file's thread; further ones are told to come back.
pub const FILE_QUEUE: usize = 16 << 10;
