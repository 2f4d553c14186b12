//! Notices that files have changed: written in place, renamed over, or swapped by a symbolic link, as kubelet does with
//! ConfigMaps and Secrets.

mod inotify;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use inotify::Inotify;

/// Who writes a file mostly does more than one thing to it. A change is told when nothing happened for this long ...
const CALM: Duration = Duration::from_millis(200);
/// ... or after this long at the latest.
const PATIENCE: Duration = Duration::from_secs(2);
/// The files are looked at this often even when the kernel says nothing: it says nothing about directories further up that are
/// exchanged, about changes that another machine makes in a network file system, and without inotify.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Some files, and what they were like when they were looked at last.
#[derive(Debug)]
pub struct Files {
    paths: Vec<PathBuf>,
    inotify: Option<Inotify>,
    seen: Vec<Option<State>>,
}

/// What differs when a file was changed or is another one. The clock of these times ticks every few milliseconds; another reason
/// to tell a change only when it is calm.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Files {
    /// Watches from now on: what is read after this call and changed later is noticed. Neither the files nor their
    /// directories need exist. Panics outside of an async runtime.
    pub fn watch(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let inotify = Inotify::new()
            .inspect_err(|error| {
                tracing::warn!(
                    %error,
                    look_again_seconds = LOOK_AGAIN.as_secs(),
                    "cannot watch files; raise the sysctl fs.inotify.max_user_instances, until then changes are noticed later"
                );
            })
            .ok();
        let mut files = Self { paths: paths.into_iter().collect(), inotify, seen: Vec::new() };
        files.arm();
        files.seen = files.look();
        files
    }

    /// Waits until a file was changed, came or went since this was told last. When it is dropped before it is done, nothing
    /// is lost: the next call tells.
    pub async fn changed(&mut self) {
        loop {
            // First the watches, then the look: what happens in between is an event
            self.arm();
            if self.look() != self.seen {
                let deadline = Instant::now() + PATIENCE;
                while timeout_at(deadline, timeout(CALM, self.event())).await.is_ok_and(|event| event.is_ok()) {
                    self.arm();
                }
                let now = self.look();
                if now != self.seen {
                    self.seen = now;
                    return;
                }
            }
            // Either is a reason to look
            let _ = timeout(LOOK_AGAIN, self.event()).await;
        }
    }

    fn look(&self) -> Vec<Option<State>> {
        self.paths.iter().map(|path| State::of(path)).collect()
    }

    /// Watches the directories of the files, and of what they point at. A symbolic link that is exchanged may lead to
    /// directories that were not watched yet.
    fn arm(&mut self) {
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

impl State {
    /// `None` when there is no such file, or nobody may look at it.
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// Far less than what it takes to notice something by looking again.
    const SOON: Duration = Duration::from_secs(20);

    struct Place {
        dir: TempDir,
    }

    impl Place {
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

    async fn is_told(files: &mut Files) {
        timeout(SOON, files.changed()).await.expect("the change was not noticed");
    }

    async fn is_not_told(files: &mut Files) {
        timeout(CALM * 3, files.changed()).await.expect_err("nothing has changed");
    }

    #[tokio::test]
    async fn writing_renaming_over_vanishing_and_coming_back_are_changes() {
        let place = Place::new();
        place.write("a", "1");
        let mut files = place.watch("a");
        is_not_told(&mut files).await;
        place.write("a", "2");
        is_told(&mut files).await;
        place.write("a.new", "3");
        fs::rename(place.path("a.new"), place.path("a")).unwrap();
        is_told(&mut files).await;
        fs::remove_file(place.path("a")).unwrap();
        is_told(&mut files).await;
        place.write("a", "3");
        is_told(&mut files).await;
        is_not_told(&mut files).await;
    }

    #[tokio::test]
    async fn what_happens_to_other_files_in_the_directory_is_no_change() {
        let place = Place::new();
        place.write("a", "1");
        let mut files = place.watch("a");
        place.write("b", "1");
        is_not_told(&mut files).await;
    }

    /// What kubelet's atomic writer does: a new directory, and the link `..data` exchanged.
    #[tokio::test]
    async fn a_config_map_that_is_swapped_is_a_change_each_time() {
        let place = Place::new();
        let fill = |version: &str| {
            fs::create_dir(place.path(version)).unwrap();
            place.write(&format!("{version}/lvmd.yaml"), "same size");
            symlink(version, place.path("..data_tmp")).unwrap();
            fs::rename(place.path("..data_tmp"), place.path("..data")).unwrap();
        };
        fill("..1");
        symlink("..data/lvmd.yaml", place.path("lvmd.yaml")).unwrap();
        let mut files = place.watch("lvmd.yaml");
        for (old, new) in [("..1", "..2"), ("..2", "..3"), ("..3", "..4")] {
            fill(new);
            fs::remove_dir_all(place.path(old)).unwrap();
            is_told(&mut files).await;
        }
        is_not_told(&mut files).await;
    }

    #[tokio::test]
    async fn a_link_to_a_file_elsewhere_is_followed_wherever_it_leads() {
        let place = Place::new();
        for name in ["etc", "one", "two"] {
            fs::create_dir(place.path(name)).unwrap();
            place.write(&format!("{name}/real"), "1");
        }
        symlink("../one/real", place.path("etc/a")).unwrap();
        let mut files = place.watch("etc/a");
        place.write("one/real", "2");
        is_told(&mut files).await;
        symlink("../two/real", place.path("etc/b")).unwrap();
        fs::rename(place.path("etc/b"), place.path("etc/a")).unwrap();
        is_told(&mut files).await;
        place.write("two/real", "2");
        is_told(&mut files).await;
    }

    #[tokio::test]
    async fn directories_may_come_later_and_go_and_come_back() {
        let place = Place::new();
        let mut files = place.watch("x/y/a");
        for _ in 0..2 {
            fs::create_dir_all(place.path("x/y")).unwrap();
            is_not_told(&mut files).await;
            place.write("x/y/a", "1");
            is_told(&mut files).await;
            fs::remove_dir_all(place.path("x")).unwrap();
            is_told(&mut files).await;
        }
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_loses_nothing() {
        let place = Place::new();
        place.write("a", "1");
        let mut files = place.watch("a");
        place.write("a", "2");
        // In the middle of waiting for calm
        timeout(CALM / 4, files.changed()).await.unwrap_err();
        is_told(&mut files).await;
    }

    #[tokio::test(start_paused = true)]
    async fn without_inotify_changes_are_noticed_later() {
        let place = Place::new();
        place.write("a", "1");
        let mut files = Files { inotify: None, ..place.watch("a") };
        let start = Instant::now();
        let ((), ()) = tokio::join!(
            async {
                files.changed().await;
                assert!(start.elapsed() <= LOOK_AGAIN + PATIENCE);
            },
            async {
                tokio::task::yield_now().await;
                place.write("a", "12");
            }
        );
    }
}
