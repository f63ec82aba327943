//! The file format: a record and its content, each with a checksum.
//!
//! ```text
//! MAGIC (8) | length of the record (4) | its CRC (4) | length of the content (8) | its CRC (4) |
//! CRC of all before (4) | record | content
//! ```

use crate::record::Object;

/// Identifies the layout of the file and of the record. A new layout needs a new number.
const MAGIC: &[u8; 8] = b"PLXCCH01";
pub(super) const HEADER_LEN: usize = 32;

/// Returns the file header for `object`.
pub(super) fn header(object: &Object) -> [u8; HEADER_LEN] {
    let record = object.record();
    let mut crc = crc32fast::Hasher::new();
    object.content_parts().for_each(|part| crc.update(part));
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&(record.len() as u32).to_le_bytes());
    header[12..16].copy_from_slice(&crc32fast::hash(record).to_le_bytes());
    header[16..24].copy_from_slice(&object.header().content_len.to_le_bytes());
    header[24..28].copy_from_slice(&crc.finalize().to_le_bytes());
    let crc = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The decoded header of a file.
pub(super) struct FileHeader {
    pub(super) record_len: usize,
    record_crc: u32,
    pub(super) content_len: u64,
    content_crc: u32,
}

impl FileHeader {
    /// Decodes the header at the start of a file; `None` if it is incomplete, damaged, or of
    /// another layout.
    pub(super) fn read(file: &[u8]) -> Option<Self> {
        let header = file.get(..HEADER_LEN)?;
        let u32_at = |at: usize| header[at..].first_chunk().map(|b| u32::from_le_bytes(*b));
        if !header.starts_with(MAGIC) || u32_at(28)? != crc32fast::hash(&header[..28]) {
            return None;
        }
        Some(Self {
            record_len: u32_at(8)? as usize,
            record_crc: u32_at(12)?,
            content_len: u64::from_le_bytes(*header[16..].first_chunk()?),
            content_crc: u32_at(24)?,
        })
    }

    /// The length of the whole file in bytes.
    pub(super) fn file_len(&self) -> u64 {
        (HEADER_LEN + self.record_len) as u64 + self.content_len
    }

    /// Decodes the record, without content, from the start of a file.
    pub(super) fn record(&self, file: &[u8]) -> Option<Object> {
        let record = file.get(HEADER_LEN..HEADER_LEN + self.record_len)?;
        let is_valid = crc32fast::hash(record) == self.record_crc;
        is_valid.then(|| Object::from_record(record, &[])).flatten()
    }

    /// Decodes the whole object from the whole file.
    pub(super) fn object(&self, file: &[u8]) -> Option<Object> {
        let record = self.record(file)?;
        let content = file.get(HEADER_LEN + self.record_len..)?;
        let is_valid = content.len() as u64 == self.content_len
            && record.header().content_len == self.content_len
            && crc32fast::hash(content) == self.content_crc;
        is_valid
            .then(|| Object::from_record(&file[HEADER_LEN..HEADER_LEN + self.record_len], content))
            .flatten()
    }
}
