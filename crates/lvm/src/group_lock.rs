//! LVM's own lock of a volume group, for what has to be done while no LVM command changes the group.
//!
//! LVM locks the file `V_NAME` in `global/locking_dir` (lvm.conf(5)) with flock(2), and removes the file when it lets
//! go of it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::VgName;

/// Pause between two attempts to lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// LVM's lock of one volume group. Dropping it lets LVM commands about the group go on, which wait meanwhile.
#[derive(Debug)]
pub struct GroupLock {
    _file: File,
}

impl GroupLock {
    /// Acquires the lock of a volume group, a file in this directory. Blocks the thread for `timeout` at most.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::TimedOut`] if another process still holds the lock, [`io::ErrorKind::NotFound`] if the
    /// directory does not exist.
    pub(crate) fn acquire(directory: &Path, group: &VgName, timeout: Duration) -> io::Result<Self> {
        let path = directory.join(format!("V_{group}"));
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let file = File::options().read(true).append(true).create(true).open(&path)?;
            match file.try_lock() {
                // The previous holder may have removed the file: then other processes do not see a lock on it
                Ok(()) if is_same_file(&file, &path) => return Ok(Self { _file: file }),
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // flock(2) cannot wait for a limited time
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let of_path = std::fs::metadata(path).map(identity);
    file.metadata().map(identity).is_ok_and(|of_file| of_path.is_ok_and(|of_path| of_path == of_file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    fn vg() -> VgName {
        "vg1".parse().unwrap()
    }

    #[test]
    fn one_has_the_lock_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = GroupLock::acquire(directory.path(), &vg(), SHORT).unwrap();
        let second = GroupLock::acquire(directory.path(), &vg(), SHORT).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::TimedOut);
        GroupLock::acquire(directory.path(), &"vg2".parse().unwrap(), SHORT).unwrap();
        drop(first);
        GroupLock::acquire(directory.path(), &vg(), SHORT).unwrap();
    }

    #[test]
    fn a_lock_on_a_file_that_lvm_removed_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("V_vg1");
        let lvms = File::create(&path).unwrap();
        lvms.lock().unwrap();
        let waiting = std::thread::spawn({
            let directory = directory.path().to_owned();
            move || GroupLock::acquire(&directory, &vg(), Duration::from_mins(1)).unwrap()
        });
        std::fs::remove_file(&path).unwrap();
        drop(lvms);
        let _ours = waiting.join().unwrap();
        assert_eq!(
            File::open(&path).unwrap().try_lock().unwrap_err().to_string(),
            "lock acquisition failed because the operation would block"
        );
    }
}
