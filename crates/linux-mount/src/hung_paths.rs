//! Cache of paths whose disk does not answer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::hung_task::WeakHungTask;
use super::{HungTask, MountError};

/// Paths at which a thread waits for a disk. kubelet measures each volume every minute; without this cache, each time
/// another thread would hang. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HungPaths {
    paths: Arc<Mutex<HashMap<PathBuf, WeakHungTask>>>,
}

impl HungPaths {
    /// Runs a call on a path, unless an earlier one still hangs there: then [`MountError::Hung`] at once. Stores the
    /// path if the call hangs.
    pub async fn guard<T>(
        &self,
        path: &Path,
        call: impl Future<Output = Result<T, MountError>>,
    ) -> Result<T, MountError> {
        if let Some(hung_task) = self.get(path) {
            return Err(MountError::Hung { path: path.to_owned(), hung_task });
        }
        let result = call.await;
        if let Err(MountError::Hung { hung_task, .. }) = &result {
            self.insert(path.to_owned(), hung_task);
        }
        result
    }

    /// Stores a path at which a task hangs.
    pub fn insert(&self, path: PathBuf, hung_task: &HungTask) {
        self.paths.lock().insert(path, hung_task.downgrade());
    }

    /// Returns whether a task still hangs at a path.
    pub fn is_hung(&self, path: &Path) -> bool {
        self.get(path).is_some()
    }

    /// Returns the task that still hangs at a path.
    fn get(&self, path: &Path) -> Option<HungTask> {
        let mut paths = self.paths.lock();
        let hung_task = paths.get(path)?.upgrade().map(HungTask);
        if hung_task.is_none() {
            paths.remove(path);
        }
        hung_task
    }
}
