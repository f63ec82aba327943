//! Which of the file's two snapshots is whole.
//!
//! LMDB maps the file and never compares its length with what its pages point to. Of a file that has
//! lost its end (a copy that broke off, a disk that was full, a file system after a crash), the first
//! page that is missing would end the process with SIGBUS, and half a page would read as zeros. So a
//! file that is shorter than it was is walked here, with plain reads, before it is mapped. The file
//! may be shorter than its last page for a good reason, too: pages at its end that are free need not
//! be there.
//!
//! A commit never overwrites what the one before it can still see: when the last commit has lost a
//! page, the one before it may still have all of its own.

use std::{fs::File, io, os::unix::fs::FileExt as _};

/// The first octets of a file of LMDB's, behind the head of its first page (`MDB_MAGIC`).
const MAGIC: u32 = 0xBEEF_C0DE;
/// The head of each page: its number, padding, its flags, and where its free room is, or of how many
/// pages it is the first (`struct MDB_page`).
const PAGE_HEAD: usize = 16;
/// What of a page of meta data is read: its head and `struct MDB_meta`.
const META_BYTES: usize = 152;
/// The head of an entry in a page (`struct MDB_node`).
const NODE_HEAD: usize = 8;
/// The root of a tree in `struct MDB_db`, and its size.
const ROOT_AT: usize = 40;
const TREE_BYTES: usize = 48;
/// The root of a tree that is empty (`P_INVALID`).
const NO_PAGE: u64 = u64::MAX;
/// What kind a page is (`P_BRANCH`, `P_LEAF`, `P_OVERFLOW`).
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
/// What the data of an entry are (`F_BIGDATA`: on pages of their own; `F_SUBDATA`: a tree).
const BIG_DATA: u16 = 1;
const SUB_DATA: u16 = 2;
/// Sizes of a page that LMDB takes.
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 256..=64 << 10;
/// Trees are no deeper than this (`CURSOR_STACK`).
const DEPTH_MAX: u32 = 32;
/// How often a file is read again that another process changes meanwhile.
const ATTEMPTS: u32 = 8;

/// A state of the file that a commit has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Snapshot {
    /// The last commit's. Also of a file that LMDB itself has to judge: a new one, or none of its
    /// own.
    Newest,
    /// That of the commit before: the last one has lost some of its pages.
    Previous,
}

/// Why a snapshot is not to be had.
#[derive(Debug)]
enum SnapshotError {
    /// Something that it needs is not there.
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

/// A page of meta data: what one commit has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    page_bytes: usize,
    /// Of the tree of free pages, and of the tree of trees.
    roots: [u64; 2],
    last_page: u64,
    transaction: u64,
}

/// Finds the newest snapshot that is whole; none if what is missing is needed by both.
///
/// # Errors
/// The file cannot be read.
pub(super) fn newest_complete(file: &File) -> io::Result<Option<Snapshot>> {
    // What is read here is what a host of 64 bits writes.
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
        // The path of nearly every start.
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
        // Another process may have used pages again while they were read.
        let reread = [0, first.page_bytes as u64].map(|at| Meta::read(file, at).ok().flatten());
        if reread == [Some(first), Some(second)] {
            return Ok(found);
        }
    }
    // Others have it open, and commit: it is as whole as they need it.
    Ok(Some(Snapshot::Newest))
}

fn is_complete(file: &File, meta: &Meta, len: u64) -> io::Result<bool> {
    let pages = len / meta.page_bytes as u64;
    let mut walk = Walk { file, page_bytes: meta.page_bytes, pages, left: pages };
    match meta.roots.iter().try_for_each(|&root| walk.tree(root, 0)) {
        Ok(()) => Ok(true),
        Err(SnapshotError::Incomplete) => Ok(false),
        Err(SnapshotError::Unreadable(error)) => Err(error),
    }
}

impl Meta {
    /// Reads the page of meta data there; `None` if it is none.
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

/// A walk over all pages that a snapshot can reach.
struct Walk<'a> {
    file: &'a File,
    page_bytes: usize,
    /// Pages that the file has in full.
    pages: u64,
    /// Pages that may still be read: a file in which pages point in a circle ends, too.
    left: u64,
}

impl Walk<'_> {
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
                // The three words are the number of the page below.
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

    /// A page that is in the file in full and is of one of these kinds.
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
