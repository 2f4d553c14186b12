//! Measures many mounted filesystems on one thread. One whose disk hangs costs its own measurement, and its thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{FilesystemUsage, HungTask, MountError};

/// Time for one filesystem. The kernel has the numbers in memory.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Filesystems that may hang before the rest is skipped: the caller waits for the answer.
const MAX_HUNG: usize = 3;

/// Usage of many filesystems.
#[derive(Debug, Default)]
pub struct UsageBatch {
    /// The usage of those that have answered, by path.
    pub usages: Vec<(PathBuf, FilesystemUsage)>,
    /// The tasks that hang, by path.
    pub hung: Vec<(PathBuf, HungTask)>,
}

/// The state of the thread that measures.
#[derive(Debug)]
struct Progress {
    /// Place of the filesystem that is being measured.
    place: usize,
    usages: Vec<(PathBuf, FilesystemUsage)>,
    /// True after the caller has stopped waiting for the thread.
    is_abandoned: bool,
}

/// Measures the filesystems at these paths, one after the other. One that takes longer than `patience` is left to its
/// thread, and another thread goes on.
pub(crate) async fn measure_all(
    paths: Vec<PathBuf>,
    patience: Duration,
    measure: impl Fn(&Path) -> Result<FilesystemUsage, MountError> + Clone + Send + 'static,
) -> UsageBatch {
    let paths: Arc<[PathBuf]> = paths.into();
    let mut batch = UsageBatch::default();
    let mut place = 0;
    while place < paths.len() && batch.hung.len() < MAX_HUNG {
        let progress = Arc::new(Mutex::new(Progress { place, usages: Vec::new(), is_abandoned: false }));
        let hung_task = HungTask::default();
        let thread = {
            let (paths, progress, measure) = (Arc::clone(&paths), Arc::clone(&progress), measure.clone());
            let held = hung_task.clone();
            tokio::task::spawn_blocking(move || {
                measure_from(&paths, &progress, measure);
                drop(held);
            })
        };
        place = wait_for_end(thread, &progress, patience).await;
        batch.usages.append(&mut progress.lock().usages);
        if let Some(path) = paths.get(place) {
            batch.hung.push((path.clone(), hung_task));
        }
        place = place.saturating_add(1);
    }
    batch
}

/// Measures until all is done or the caller has stopped waiting.
fn measure_from(
    paths: &[PathBuf],
    progress: &Mutex<Progress>,
    measure: impl Fn(&Path) -> Result<FilesystemUsage, MountError>,
) {
    loop {
        let place = progress.lock().place;
        let Some(path) = paths.get(place) else { return };
        let usage = measure(path);
        let mut progress = progress.lock();
        if progress.is_abandoned {
            return;
        }
        progress.usages.extend(usage.ok().map(|usage| (path.clone(), usage)));
        progress.place = place.saturating_add(1);
    }
}

/// Waits until the thread has ended, or makes no progress. Returns the place of the filesystem that hangs, which is
/// behind the last one if none does.
async fn wait_for_end(
    mut thread: tokio::task::JoinHandle<()>,
    progress: &Mutex<Progress>,
    patience: Duration,
) -> usize {
    let mut before = progress.lock().place;
    loop {
        if let Ok(ended) = tokio::time::timeout(patience, &mut thread).await {
            // A thread that panicked has left its filesystem unmeasured
            return if ended.is_ok() { usize::MAX } else { progress.lock().place };
        }
        let mut progress = progress.lock();
        if progress.place == before {
            progress.is_abandoned = true;
            return before;
        }
        before = progress.place;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const USAGE: FilesystemUsage = FilesystemUsage {
        total_bytes: 1,
        used_bytes: 0,
        available_bytes: 1,
        total_inodes: 0,
        used_inodes: 0,
        free_inodes: 0,
    };

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[tokio::test]
    async fn a_filesystem_that_hangs_or_fails_hides_no_other() {
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let measure = move |path: &Path| {
            if path == Path::new("/hangs") {
                let _released = released.lock().recv();
            }
            let failed = || MountError::NoDevice(path.to_owned());
            (path != Path::new("/fails")).then_some(USAGE).ok_or_else(failed)
        };
        let all = paths(&["/a", "/fails", "/b", "/hangs", "/c"]);
        let batch = measure_all(all, PATIENCE, measure).await;
        assert_eq!(batch.usages, paths(&["/a", "/b", "/c"]).into_iter().map(|path| (path, USAGE)).collect::<Vec<_>>());
        let [(path, hung_task)] = batch.hung.try_into().unwrap();
        assert_eq!(path, Path::new("/hangs"));
        let weak = hung_task.downgrade();
        drop(hung_task);
        assert!(weak.upgrade().is_some(), "the thread hangs");
        release.send(()).unwrap();
        while weak.upgrade().is_some() {
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn where_everything_hangs_the_rest_is_given_up() {
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let hang = move |_: &Path| {
            let _released = released.lock().recv();
            Ok(USAGE)
        };
        let batch = measure_all(paths(&["/a", "/b", "/c", "/d", "/e"]), Duration::from_millis(5), hang).await;
        let hung: Vec<_> = batch.hung.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!((hung, batch.usages), (paths(&["/a", "/b", "/c"]), Vec::new()));
        drop(release);
    }
}
