//! Watches files for changes: written in place, renamed over, or swapped by a symbolic link, as kubelet does with
//! ConfigMaps and Secrets.

mod inotify;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use inotify::Inotify;

/// Debounce: a change is reported when nothing has happened for this long, as writing a file is mostly several events.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// A change is reported after this long at the latest.
const LONGEST_DEBOUNCE: Duration = Duration::from_secs(2);
/// Interval at which files are compared without an event: there is none for directories further up that are exchanged,
/// for changes that another machine makes in a network file system, and without inotify.
const RESCAN_INTERVAL: Duration = Duration::from_mins(1);

/// Watched files, with the state in which their last change left them.
#[derive(Debug)]
pub struct Files {
    paths: Vec<PathBuf>,
    inotify: Option<Inotify>,
    reported: Vec<Option<State>>,
    /// Until when nothing needs to be compared unless there is an event: who waits for something else too, as a socket
    /// for its clients, drops [`Files::changed`] and calls it again for each of them.
    compared_until: Option<Instant>,
}

/// The metadata of a file that differ when it was changed or is another one: device, inode, size, and the times at
/// which content and metadata were changed. The clock of these times ticks every few milliseconds; another reason to
/// wait before a change is reported.
type State = (u64, u64, u64, (i64, i64), (i64, i64));

impl Files {
    /// Watches from now on: what is read after this call and changed later is noticed. Neither the files nor their
    /// directories need exist. Panics outside of an async runtime.
    pub fn watch(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let inotify = Inotify::new()
            .inspect_err(|error| {
                tracing::warn!(
                    %error,
                    poll_seconds = RESCAN_INTERVAL.as_secs(),
                    "cannot watch files; raise the sysctl fs.inotify.max_user_instances; until then changes are \
                     detected later"
                );
            })
            .ok();
        let mut files =
            Self { paths: paths.into_iter().collect(), inotify, reported: Vec::new(), compared_until: None };
        files.watch_directories();
        files.reported = files.states();
        files
    }

    /// Waits until a file was changed, came or went since the last call returned. When it is dropped before it is done,
    /// nothing is lost: the next call returns.
    pub async fn changed(&mut self) {
        loop {
            if self.compared_until.is_none() && self.compare().await {
                return;
            }
            let until = *self.compared_until.get_or_insert_with(|| Instant::now() + RESCAN_INTERVAL);
            // Either is a reason to compare again
            let _ = timeout_at(until, self.event()).await;
            self.compared_until = None;
        }
    }

    /// Returns whether a file differs from its reported state; first waits until no further events come.
    async fn compare(&mut self) -> bool {
        // First the watches, then the states: what happens in between is an event
        self.watch_directories();
        if self.states() == self.reported {
            return false;
        }
        let deadline = Instant::now() + LONGEST_DEBOUNCE;
        while timeout_at(deadline, timeout(DEBOUNCE, self.event())).await.is_ok_and(|event| event.is_ok()) {
            self.watch_directories();
        }
        let now = self.states();
        let is_changed = now != self.reported;
        self.reported = now;
        is_changed
    }

    fn states(&self) -> Vec<Option<State>> {
        self.paths.iter().map(|path| read_state(path)).collect()
    }

    /// Watches the directories of the files, and of the targets of links. A symbolic link that is exchanged may lead to
    /// directories that were not watched yet.
    fn watch_directories(&mut self) {
        let Some(inotify) = &mut self.inotify else { return };
        for path in &self.paths {
            inotify.watch_nearest(parent(path));
            if let Ok(target) = fs::canonicalize(path)
                && target != *path
            {
                inotify.watch_nearest(parent(&target));
            }
        }
    }

    async fn event(&mut self) {
        match &mut self.inotify {
            Some(inotify) => inotify.event().await,
            None => std::future::pending().await,
        }
    }
}

/// The directory of a file.
fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Reads the state of a file; `None` when there is no such file, or its metadata cannot be read.
fn read_state(path: &Path) -> Option<State> {
    let metadata = fs::metadata(path).ok()?;
    let (modified, changed) = ((metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec()));
    Some((metadata.dev(), metadata.ino(), metadata.size(), modified, changed))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// Far less than the interval of a rescan.
    const SOON: Duration = Duration::from_secs(20);

    struct Directory {
        dir: TempDir,
    }

    impl Directory {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).unwrap();
        }

        fn watch(&self, name: &str) -> Files {
            let files = Files::watch([self.path(name)]);
            assert!(files.inotify.is_some());
            files
        }
    }

    async fn assert_changed(files: &mut Files) {
        timeout(SOON, files.changed()).await.expect("the change was not noticed");
    }

    async fn assert_unchanged(files: &mut Files) {
        timeout(DEBOUNCE * 3, files.changed()).await.expect_err("nothing has changed");
    }

    #[tokio::test]
    async fn writing_renaming_over_vanishing_and_coming_back_are_changes() {
        let directory = Directory::new();
        directory.write("a", "1");
        let mut files = directory.watch("a");
        assert_unchanged(&mut files).await;
        directory.write("a", "2");
        assert_changed(&mut files).await;
        directory.write("a.new", "3");
        fs::rename(directory.path("a.new"), directory.path("a")).unwrap();
        assert_changed(&mut files).await;
        fs::remove_file(directory.path("a")).unwrap();
        assert_changed(&mut files).await;
        directory.write("a", "3");
        assert_changed(&mut files).await;
        assert_unchanged(&mut files).await;
    }

    #[tokio::test]
    async fn what_happens_to_other_files_in_the_directory_is_no_change() {
        let directory = Directory::new();
        directory.write("a", "1");
        let mut files = directory.watch("a");
        directory.write("b", "1");
        assert_unchanged(&mut files).await;
    }

    /// As kubelet's atomic writer does: a new directory, and the link `..data` exchanged.
    #[tokio::test]
    async fn a_config_map_that_is_swapped_is_a_change_each_time() {
        let directory = Directory::new();
        let fill = |version: &str| {
            fs::create_dir(directory.path(version)).unwrap();
            directory.write(&format!("{version}/lvmd.yaml"), "same size");
            symlink(version, directory.path("..data_tmp")).unwrap();
            fs::rename(directory.path("..data_tmp"), directory.path("..data")).unwrap();
        };
        fill("..1");
        symlink("..data/lvmd.yaml", directory.path("lvmd.yaml")).unwrap();
        let mut files = directory.watch("lvmd.yaml");
        for (old, new) in [("..1", "..2"), ("..2", "..3"), ("..3", "..4")] {
            fill(new);
            fs::remove_dir_all(directory.path(old)).unwrap();
            assert_changed(&mut files).await;
        }
        assert_unchanged(&mut files).await;
    }

    #[tokio::test]
    async fn a_link_to_a_file_elsewhere_is_followed_wherever_it_leads() {
        let directory = Directory::new();
        for name in ["etc", "one", "two"] {
            fs::create_dir(directory.path(name)).unwrap();
            directory.write(&format!("{name}/real"), "1");
        }
        symlink("../one/real", directory.path("etc/a")).unwrap();
        let mut files = directory.watch("etc/a");
        directory.write("one/real", "2");
        assert_changed(&mut files).await;
        symlink("../two/real", directory.path("etc/b")).unwrap();
        fs::rename(directory.path("etc/b"), directory.path("etc/a")).unwrap();
        assert_changed(&mut files).await;
        directory.write("two/real", "2");
        assert_changed(&mut files).await;
    }

    #[tokio::test]
    async fn directories_may_come_later_and_go_and_come_back() {
        let directory = Directory::new();
        let mut files = directory.watch("x/y/a");
        for _ in 0..2 {
            fs::create_dir_all(directory.path("x/y")).unwrap();
            assert_unchanged(&mut files).await;
            directory.write("x/y/a", "1");
            assert_changed(&mut files).await;
            fs::remove_dir_all(directory.path("x")).unwrap();
            assert_changed(&mut files).await;
        }
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_loses_nothing() {
        let directory = Directory::new();
        directory.write("a", "1");
        let mut files = directory.watch("a");
        directory.write("a", "2");
        // In the middle of the debounce
        timeout(DEBOUNCE / 4, files.changed()).await.unwrap_err();
        assert_changed(&mut files).await;
    }

    #[tokio::test]
    async fn file_watch_interrupted_often_compares_only_after_events() {
        let directory = Directory::new();
        directory.write("a", "1");
        let mut files = directory.watch("a");
        assert_unchanged(&mut files).await;
        let compared = files.compared_until;
        for _ in 0..3 {
            timeout(Duration::from_millis(1), files.changed()).await.unwrap_err();
            assert_eq!(files.compared_until, compared);
        }
        directory.write("a", "12");
        assert_changed(&mut files).await;
    }

    #[tokio::test(start_paused = true)]
    async fn without_inotify_changes_are_noticed_later() {
        let directory = Directory::new();
        directory.write("a", "1");
        let mut files = Files { inotify: None, ..directory.watch("a") };
        let start = Instant::now();
        let ((), ()) = tokio::join!(
            async {
                files.changed().await;
                assert!(start.elapsed() <= RESCAN_INTERVAL + LONGEST_DEBOUNCE);
            },
            async {
                tokio::task::yield_now().await;
                directory.write("a", "12");
            }
        );
    }
}
