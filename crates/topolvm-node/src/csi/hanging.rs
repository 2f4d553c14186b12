//! Which paths lead to a disk that does not answer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::mount::{Error, Stuck, StuckAt};

/// Paths at which a thread waits for a disk. kubelet measures each volume every minute; without this, each time another
/// thread would be lost.
#[derive(Debug, Default)]
pub(super) struct Hanging {
    paths: Mutex<HashMap<PathBuf, StuckAt>>,
}

impl Hanging {
    /// Fails at once while an earlier look at the path still waits, and remembers a look that begins to wait.
    pub(super) async fn guard<T>(&self, path: &Path, look: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if let Some(stuck) = self.get(path) {
            return Err(Error::Hangs { path: path.to_owned(), stuck });
        }
        let result = look.await;
        if let Err(Error::Hangs { stuck, .. }) = &result {
            self.paths.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), stuck.at());
        }
        result
    }

    fn get(&self, path: &Path) -> Option<Stuck> {
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let stuck = paths.get(path)?.get();
        if stuck.is_none() {
            paths.remove(path);
        }
        stuck
    }
}
