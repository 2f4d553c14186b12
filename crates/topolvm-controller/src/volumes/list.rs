//! Volumes and snapshots, page by page.
//!
//! Pages are cut from what the watch told, in the order of names: a list costs the API server nothing, and a token stays good
//! whatever comes and goes between two pages. What is listed may be a moment old; CSI expects no more of lists.

use super::{Error, Kind, Volume, Volumes};

/// The most entries of a page. gRPC clients take at most 4 MiB unless told otherwise.
const LARGEST_PAGE: usize = 10_000;

/// What a token begins with; the name of the last object on the page follows.
const TOKEN: &str = "after/";

/// Which part of a list is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paging {
    /// The most entries; 0 is "as many as there are".
    pub(crate) max_entries: usize,
    /// Where the last page ended; empty is the beginning.
    pub(crate) token: String,
}

/// Part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page<T> {
    pub(crate) entries: Vec<T>,
    /// For the next part; empty at the end.
    pub(crate) next: String,
}

impl Volumes {
    /// Volumes or snapshots that exist and that `pick` makes something of.
    pub(crate) fn list<T>(
        &self,
        kind: Kind,
        paging: &Paging,
        mut pick: impl FnMut(Volume) -> Option<T>,
    ) -> Result<Page<T>, Error> {
        if !self.watch.is_synced() {
            return Err(Error::VolumesUnknown);
        }
        let after = paging.after()?;
        let mut names = self.watch.names();
        names.retain(|name| name.as_str() > after);
        names.sort_unstable();
        let limit = if paging.max_entries == 0 { LARGEST_PAGE } else { paging.max_entries.min(LARGEST_PAGE) };
        let mut page = Page { entries: Vec::new(), next: String::new() };
        let mut last = "";
        for name in &names {
            let object = self.watch.get(name).filter(|object| Kind::of(object) == kind && !object.is_deleting());
            let volume = object.and_then(|object| Volume::of(self.flavor, &object, &self.watch));
            let Some(entry) = volume.and_then(&mut pick) else {
                continue;
            };
            if page.entries.len() == limit {
                page.next = format!("{TOKEN}{last}");
                break;
            }
            page.entries.push(entry);
            last = name;
        }
        Ok(page)
    }
}

impl Paging {
    /// The name after which to go on.
    fn after(&self) -> Result<&str, Error> {
        if self.token.is_empty() {
            return Ok("");
        }
        let name = self.token.strip_prefix(TOKEN).filter(|name| !name.is_empty());
        name.ok_or_else(|| Error::Token(self.token.clone()))
    }
}
