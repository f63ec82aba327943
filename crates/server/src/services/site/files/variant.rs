//! Files that the server compresses itself (`--compress`): the choice of the coding for a request, and the
//! storage of the results.
//!
//! A variant is an entry of the index with its own key, so that it is weighed and evicted like any other
//! entry. It belongs to one state of its file: when the file has changed, the variant is made again.

use super::{
    super::compress::{self, INLINE_MAX, background::Outcome},
    Files, Representation, Resource,
    contents::Key,
    load::{HeadParts, entity_tag},
    representation::{Content, Parts},
    tree::FileVersion,
};
use pollux_http::{
    accept_encoding::{Coding, Preferences},
    request::{KnownField, Request},
};
use std::{cell::Cell, ffi::CString, rc::Rc, time::Duration};

/// The data for compressing a file.
#[derive(Debug)]
pub(super) struct Compressible {
    version: FileVersion,
    head: HeadParts,
    variants: Vec<Variant>,
}

#[derive(Debug)]
struct Variant {
    coding: Coding,
    /// The key in the index. It begins with a NUL, so that no path has the same key.
    key: Box<[u8]>,
    /// Whether the result is not used, because it saves too little or could not be made.
    is_useless: Cell<bool>,
}

impl Compressible {
    /// Creates the data for the file with this name, in this state.
    pub(super) fn new(
        name: &[u8],
        version: FileVersion,
        head: HeadParts,
        codings: &[Coding],
    ) -> Self {
        let variant = |&coding: &Coding| Variant {
            coding,
            key: [&[0, coding as u8], name].concat().into(),
            is_useless: Cell::new(false),
        };
        Self { version, head, variants: codings.iter().map(variant).collect() }
    }

    /// Returns the bytes of memory that it uses.
    pub(super) fn bytes(&self) -> usize {
        let keys: usize = self.variants.iter().map(|variant| variant.key.len()).sum();
        let variants = self.variants.len() * size_of::<Variant>();
        size_of::<Self>() + keys + variants + self.head.content_type.len() + self.head.fields.len()
    }

    fn key(&self, coding: Coding) -> Key {
        let HeadParts { content_type, varies, fields } = self.head.clone();
        Key { version: self.version, content_type, coding, varies, is_compressed: true, fields }
    }
}

impl Resource {
    /// Returns the variant that `request` prefers to the file and its siblings, among those that are used.
    fn preferred(&self, request: &Request<'_>) -> Option<&Variant> {
        let compressible = self.compressible.as_ref()?;
        let preferences = Preferences::parse(request.values(KnownField::AcceptEncoding));
        let useful = || compressible.variants.iter().filter(|variant| !variant.is_useless.get());
        // Siblings have precedence, because more time was spent on their compression.
        let siblings = self.encoded.iter().map(|(coding, _)| *coding);
        let codings = siblings.chain(useful().map(|variant| variant.coding));
        let chosen = preferences.choose(codings.chain([Coding::Identity]));
        useful().find(|variant| Some(variant.coding) == chosen)
    }
}

impl Files {
    /// Returns the compressed file, if the request gets it in place of the file and its siblings. Returns
    /// `None` if the client does not want it, if it saves too little, or if it is not available yet.
    #[inline]
    pub(crate) fn variant(
        &mut self,
        resource: &Resource,
        request: &Request<'_>,
    ) -> Option<Rc<Representation>> {
        if resource.compressible.is_none() || !request.has(KnownField::AcceptEncoding) {
            return None;
        }
        self.find_variant(resource, request)
    }

    fn find_variant(
        &mut self,
        resource: &Resource,
        request: &Request<'_>,
    ) -> Option<Rc<Representation>> {
        let compressible = resource.compressible.as_ref()?;
        let variant = resource.preferred(request)?;
        if let Some(found) = self.cache.get(&*variant.key) {
            if found.sources.iter().any(|(_, version)| *version == Some(compressible.version)) {
                return Some(found.identity.clone());
            }
            self.cache.remove(&*variant.key);
        }
        self.make_variant(resource, compressible, variant)
    }

    #[cold]
    #[inline(never)]
    fn make_variant(
        &mut self,
        resource: &Resource,
        compressible: &Compressible,
        variant: &Variant,
    ) -> Option<Rc<Representation>> {
        let key = compressible.key(variant.coding);
        if self.keeps_any()
            && let Some(shared) = self.contents.find(&key)
        {
            let representation = Representation::charged(shared);
            return Some(self.keep_variant(compressible, variant, representation).0);
        }
        let file = &resource.identity;
        let inline = file.memory().filter(|bytes| bytes.len() as u64 <= INLINE_MAX);
        let bytes = if let Some(bytes) = inline {
            compress::compress(variant.coding, bytes).ok().flatten().map(Into::into)
        } else {
            match self.contents.compressor().outcome(&key, || file.source()) {
                Outcome::Pending => return None,
                Outcome::Ready(bytes) => Some(bytes),
                Outcome::Useless => None,
            }
        };
        let Some(bytes) = bytes else {
            variant.is_useless.set(true);
            return None;
        };
        let content = Content::Memory(bytes.to_vec());
        let suffix = format!("-{}", variant.coding.name());
        let representation = Representation::new(Parts {
            common_fields: &self.common_fields,
            path_fields: &compressible.head.fields,
            etag: entity_tag(&content, &compressible.version, Duration::ZERO, &suffix),
            modified: file.modified(),
            content_type: compressible.head.content_type.clone(),
            coding: variant.coding,
            varies: true,
            content,
        });
        let representation = self.put(Some(&key), representation);
        let (representation, is_kept) = self.keep_variant(compressible, variant, representation);
        // A worker that serves one connection leaves the result for the next worker.
        if is_kept && inline.is_none() && self.config.open_files > 0 {
            self.contents.compressor().forget(&key);
        }
        Some(representation)
    }

    /// Puts a variant into the index, if there is room. Returns the variant, and whether there was room.
    fn keep_variant(
        &mut self,
        compressible: &Compressible,
        variant: &Variant,
        representation: Representation,
    ) -> (Rc<Representation>, bool) {
        let identity = Rc::new(representation);
        let mut resource = Resource {
            compressible: None,
            identity: identity.clone(),
            encoded: Vec::new(),
            sources: vec![(CString::default(), Some(compressible.version))],
            key_has_percent: false,
            checked_at: Cell::new(0),
            is_young: false,
            charge: None,
        };
        let is_kept = self.may_keep(&variant.key, &mut resource);
        if is_kept {
            self.cache.insert(variant.key.clone(), Rc::new(resource));
        }
        (identity, is_kept)
    }
}
