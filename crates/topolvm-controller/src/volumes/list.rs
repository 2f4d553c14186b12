//! Lists volumes and snapshots page by page.
//!
//! Pages are taken from the informer's cache, in the order of names: a list costs the API server nothing, and a token
//! stays good whatever is created and deleted between two pages. What is listed may be a moment old; CSI expects no
//! more of lists.

use super::{Volume, VolumeError, VolumeKind, VolumeObjects};

/// The most entries of a page. gRPC clients accept at most 4 MiB unless configured otherwise.
const MAX_PAGE_ENTRIES: usize = 10_000;

/// The beginning of a token; the name of the last object on the page follows.
const TOKEN_PREFIX: &str = "after/";

/// The page of a list that is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// The most entries; 0 is "as many as there are".
    pub(crate) max_entries: usize,
    /// The token of the previous page; empty is the beginning.
    pub(crate) token: String,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page<T> {
    pub(crate) entries: Vec<T>,
    /// The token of the next page; empty at the end.
    pub(crate) next: String,
}

impl VolumeObjects {
    /// Lists the volumes or snapshots that exist; `pick` makes an entry of each, or skips it.
    pub(crate) fn list<T>(
        &self,
        kind: VolumeKind,
        request: &PageRequest,
        mut pick: impl FnMut(Volume) -> Option<T>,
    ) -> Result<Page<T>, VolumeError> {
        if !self.informer.cache.is_listed() {
            return Err(VolumeError::VolumesNotListed);
        }
        let after = request.after()?;
        let mut names = self.informer.cache.names();
        names.retain(|name| name.as_str() > after);
        names.sort_unstable();
        let limit = if request.max_entries == 0 { MAX_PAGE_ENTRIES } else { request.max_entries.min(MAX_PAGE_ENTRIES) };
        let mut page = Page { entries: Vec::new(), next: String::new() };
        let mut last = "";
        for name in &names {
            let object = self
                .informer
                .cache
                .get(name)
                .filter(|object| VolumeKind::from_object(object) == kind && !object.is_deleting());
            let volume = object.and_then(|object| Volume::from_object(self.flavor, &object, &self.informer));
            let Some(entry) = volume.and_then(&mut pick) else {
                continue;
            };
            if page.entries.len() == limit {
                page.next = format!("{TOKEN_PREFIX}{last}");
                break;
            }
            page.entries.push(entry);
            last = name;
        }
        Ok(page)
    }
}

impl PageRequest {
    /// Returns the name after which the page begins.
    fn after(&self) -> Result<&str, VolumeError> {
        if self.token.is_empty() {
            return Ok("");
        }
        let name = self.token.strip_prefix(TOKEN_PREFIX).filter(|name| !name.is_empty());
        name.ok_or_else(|| VolumeError::InvalidToken(self.token.clone()))
    }
}
