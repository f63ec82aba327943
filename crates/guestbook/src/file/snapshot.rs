//! Finds the newest complete snapshot of a file.
//!
//! LMDB maps the file and never compares its length with the pages that it refers to. In a
//! truncated file (after an interrupted copy, a full disk, or a crash) the first missing page would
//! end the process with SIGBUS, and half a page would be read as zeros. A file that seems too short
//! is therefore examined here, with plain reads, before it is mapped. It may also be shorter than
//! its last page for a valid reason: free pages at its end need not exist.
//!
//! A commit never overwrites pages of the previous one. If the last commit has lost a page, the
//! previous one may still be complete.

use std::{fs::File, io, os::unix::fs::FileExt as _};

/// The magic number of LMDB, after the header of the first page (`MDB_MAGIC`).
const MAGIC: u32 = 0xBEEF_C0DE;
/// The length of a page header: page number, padding, flags, and either the offsets of the free
/// space or the number of overflow pages (`struct MDB_page`).
const PAGE_HEAD: usize = 16;
/// The part of a meta page that is read: its header and `struct MDB_meta`.
const META_BYTES: usize = 152;
/// The length of an entry's header (`struct MDB_node`).
const NODE_HEAD: usize = 8;
/// The offset of the root in `struct MDB_db`, and the size of that structure.
const ROOT_AT: usize = 40;
const TREE_BYTES: usize = 48;
/// The root of an empty tree (`P_INVALID`).
const NO_PAGE: u64 = u64::MAX;
/// Page types (`P_BRANCH`, `P_LEAF`, `P_OVERFLOW`).
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
/// Entry flags (`F_BIGDATA`: the data has its own pages; `F_SUBDATA`: the data is a tree).
const BIG_DATA: u16 = 1;
const SUB_DATA: u16 = 2;
/// The page sizes that LMDB supports.
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 256..=64 << 10;
/// The maximum depth of a tree (`CURSOR_STACK`).
const DEPTH_MAX: u32 = 32;
/// The number of attempts to read a file that other processes change meanwhile.
const ATTEMPTS: u32 = 8;

/// The state of the file after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Snapshot {
    /// The state after the last commit. Also used for new files and files of another format, which
    /// LMDB itself checks.
    Newest,
    /// The state after the previous commit, because the last one has lost pages.
    Previous,
}

/// The reason why a snapshot cannot be used.
#[derive(Debug)]
enum SnapshotError {
    /// Some of its pages are missing.
    Incomplete,
    /// The file cannot be read.
    Unreadable(io::Error),
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Incomplete,
            _ => Self::Unreadable(error),
        }
    }
}

/// A meta page, which describes one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    page_bytes: usize,
    /// The roots of the tree of free pages and of the tree of databases.
    roots: [u64; 2],
    last_page: u64,
    transaction: u64,
}

/// Finds the newest complete snapshot. Returns `None` if neither is complete.
///
/// # Errors
/// The file cannot be read.
pub(super) fn newest_complete(file: &File) -> io::Result<Option<Snapshot>> {
    // The layout below is that of 64-bit hosts.
    if cfg!(not(target_pointer_width = "64")) {
        return Ok(Some(Snapshot::Newest));
    }
    for _ in 0..ATTEMPTS {
        let len = file.metadata()?.len();
        let first = match Meta::read(file, 0) {
            Ok(Some(meta)) => meta,
            Ok(None) | Err(SnapshotError::Incomplete) => return Ok(Some(Snapshot::Newest)),
            Err(SnapshotError::Unreadable(error)) => return Err(error),
        };
        let second = match Meta::read(file, first.page_bytes as u64) {
            Ok(Some(meta)) => meta,
            Ok(None) | Err(SnapshotError::Incomplete) => return Ok(None),
            Err(SnapshotError::Unreadable(error)) => return Err(error),
        };
        let (newest, previous) =
            if first.transaction < second.transaction { (second, first) } else { (first, second) };
        // Common case: the file is long enough.
        if newest.last_page < len / newest.page_bytes as u64 {
            return Ok(Some(Snapshot::Newest));
        }
        let found = if is_complete(file, &newest, len)? {
            return Ok(Some(Snapshot::Newest));
        } else if is_complete(file, &previous, len)? {
            Some(Snapshot::Previous)
        } else {
            None
        };
        // Another process may have reused pages while they were read.
        let reread = [0, first.page_bytes as u64].map(|at| Meta::read(file, at).ok().flatten());
        if reread == [Some(first), Some(second)] {
            return Ok(found);
        }
    }
    // Other processes use the file and commit to it, so it is complete.
    Ok(Some(Snapshot::Newest))
}

fn is_complete(file: &File, meta: &Meta, len: u64) -> io::Result<bool> {
    let pages = len / meta.page_bytes as u64;
    let mut walk = PageWalk { file, page_bytes: meta.page_bytes, pages, left: pages };
    match meta.roots.iter().try_for_each(|&root| walk.tree(root, 0)) {
        Ok(()) => Ok(true),
        Err(SnapshotError::Incomplete) => Ok(false),
        Err(SnapshotError::Unreadable(error)) => Err(error),
    }
}

impl Meta {
    /// Reads the meta page at the offset `at`; `None` if it is not one.
    fn read(file: &File, at: u64) -> Result<Option<Self>, SnapshotError> {
        let mut page = [0; META_BYTES];
        file.read_exact_at(&mut page, at)?;
        let field = |at| u64_at(&page, at).ok_or(SnapshotError::Incomplete);
        let page_bytes = u32_at(&page, 40).ok_or(SnapshotError::Incomplete)? as usize;
        if u32_at(&page, PAGE_HEAD) != Some(MAGIC) || !PAGE_SIZES.contains(&page_bytes) {
            return Ok(None);
        }
        let roots = [field(40 + ROOT_AT)?, field(88 + ROOT_AT)?];
        Ok(Some(Self { page_bytes, roots, last_page: field(136)?, transaction: field(144)? }))
    }
}

/// A traversal of all pages of a snapshot.
struct PageWalk<'a> {
    file: &'a File,
    page_bytes: usize,
    /// The number of complete pages in the file.
    pages: u64,
    /// The number of pages that may still be read. It ends the traversal if pages form a cycle.
    left: u64,
}

impl PageWalk<'_> {
    fn tree(&mut self, root: u64, depth: u32) -> Result<(), SnapshotError> {
        if root == NO_PAGE {
            return Ok(());
        }
        let page = self.read(root, BRANCH | LEAF)?;
        let kind = u16_at(&page, 10).ok_or(SnapshotError::Incomplete)?;
        let end_of_offsets = usize::from(u16_at(&page, 12).ok_or(SnapshotError::Incomplete)?);
        let entries = end_of_offsets.saturating_sub(PAGE_HEAD) / 2;
        for entry in 0..entries {
            let offset = u16_at(&page, PAGE_HEAD + 2 * entry).ok_or(SnapshotError::Incomplete)?;
            let node = page.get(usize::from(offset)..).ok_or(SnapshotError::Incomplete)?;
            let word = |at| u16_at(node, at).ok_or(SnapshotError::Incomplete);
            let (low, high, flags) = (word(0)?, word(2)?, word(4)?);
            let low = u64::from(low) | u64::from(high) << 16;
            if kind & BRANCH != 0 {
                if depth == DEPTH_MAX {
                    return Err(SnapshotError::Incomplete);
                }
                // These three words hold the number of the child page.
                self.tree(low | u64::from(flags) << 32, depth + 1)?;
                continue;
            }
            let data =
                node.get(NODE_HEAD + usize::from(word(6)?)..).ok_or(SnapshotError::Incomplete)?;
            if flags & BIG_DATA != 0 {
                let first = u64_at(data, 0).ok_or(SnapshotError::Incomplete)?;
                self.read(first, OVERFLOW)?;
                let more = (PAGE_HEAD as u64 + low).div_ceil(self.page_bytes as u64);
                if first + more > self.pages {
                    return Err(SnapshotError::Incomplete);
                }
            } else if flags & SUB_DATA != 0 {
                let tree = data.get(..TREE_BYTES).ok_or(SnapshotError::Incomplete)?;
                let root = u64_at(tree, ROOT_AT).ok_or(SnapshotError::Incomplete)?;
                if depth == DEPTH_MAX {
                    return Err(SnapshotError::Incomplete);
                }
                self.tree(root, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Reads a page. It must be complete and of one of these types.
    fn read(&mut self, number: u64, kinds: u16) -> Result<Vec<u8>, SnapshotError> {
        if number >= self.pages || self.left == 0 {
            return Err(SnapshotError::Incomplete);
        }
        self.left -= 1;
        let mut page = vec![0; self.page_bytes];
        self.file.read_exact_at(&mut page, number * self.page_bytes as u64)?;
        let matches = u64_at(&page, 0) == Some(number)
            && u16_at(&page, 10).is_some_and(|flags| flags & kinds != 0);
        if matches { Ok(page) } else { Err(SnapshotError::Incomplete) }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
