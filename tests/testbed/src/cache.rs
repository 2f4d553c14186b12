//! The cache of files that are downloaded, unpacked or built once: outside the repository, one directory per version.
//! Safe to delete at any time.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::times;

/// A cache: a directory with entries.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens the cache in `$TOPOLVM_CACHE`, else `$XDG_CACHE_HOME/topolvm`, else `~/.cache/topolvm`; created when
    /// missing.
    pub fn open() -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = set("TOPOLVM_CACHE")
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("topolvm")))
            .or_else(|| Some(set("HOME")?.join(".cache/topolvm")))
            .context("no place for downloads and builds: set TOPOLVM_CACHE to a directory")?;
        Self::at(&root)
    }

    /// Opens the cache in the directory `root`, created when missing.
    pub fn at(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("create the cache directory {}", root.display()))?;
        let root = root.canonicalize().with_context(|| format!("resolve {}", root.display()))?;
        Ok(Self { root })
    }

    /// Returns the directory with the entries.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the entry (the directory `NAME-KEY`), if it is complete.
    pub fn get(&self, name: &str, key: &str) -> Option<PathBuf> {
        let path = self.root.join(format!("{name}-{key}"));
        path.is_dir().then_some(path)
    }

    /// Returns the entry (the directory `NAME-KEY`). When it does not exist `make` fills a temporary directory, which
    /// is renamed only when it is complete: an interrupted run leaves no entry that appears complete. A second run that
    /// needs the same entry waits for the first.
    pub fn entry(&self, name: &str, key: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        if let Some(path) = self.get(name, key) {
            return Ok(path);
        }
        let lock_path = self.root.join(format!(".{name}-{key}.lock"));
        let lock = File::create(&lock_path).with_context(|| format!("create {}", lock_path.display()))?;
        if lock.try_lock().is_err() {
            writeln!(io::stderr(), "waiting for another run that is making {name}-{key}").context("write to stderr")?;
            lock.lock().with_context(|| format!("lock {}", lock_path.display()))?;
        }
        if let Some(path) = self.get(name, key) {
            return Ok(path);
        }
        let path = self.root.join(format!("{name}-{key}"));
        // Under the lock, so a directory with this name is left from an interrupted run.
        let temporary = self.root.join(format!(".{name}-{key}.partial"));
        remove(&temporary)?;
        fs::create_dir(&temporary).with_context(|| format!("create {}", temporary.display()))?;
        let start = Instant::now();
        make(&temporary).inspect_err(|_| drop(remove(&temporary)))?;
        fs::rename(&temporary, &path).with_context(|| format!("rename to {}", path.display()))?;
        times::record(&format!("(download or build of {name})"), start);
        Ok(path)
    }
}

/// Removes a directory tree if it exists, including read-only directories (Go's module cache creates them).
pub(crate) fn remove(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    if fs::remove_dir_all(path).is_ok() {
        return Ok(());
    }
    make_writable(path).and_then(|()| fs::remove_dir_all(path)).with_context(|| format!("remove {}", path.display()))
}

fn make_writable(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_writable(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn an_entry_is_made_once_even_by_two_at_the_same_time() {
        let root = tempfile::tempdir().unwrap();
        let made = AtomicU32::new(0);
        let make = |directory: &Path| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok(fs::write(directory.join("file"), "x")?)
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let path = Cache::at(root.path()).unwrap().entry("a", "1", make).unwrap();
                    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "x");
                });
            }
        });
        assert_eq!(made.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn failed_entry_is_not_complete() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path()).unwrap();
        let fail = |directory: &Path| {
            fs::write(directory.join("half"), "")?;
            anyhow::bail!("no network")
        };
        assert!(cache.entry("a", "1", fail).is_err());
        assert_eq!(cache.get("a", "1"), None);
        let path = cache.entry("a", "1", |_| Ok(())).unwrap();
        assert!(!path.join("half").exists());
    }

    #[test]
    fn leftovers_of_an_interrupted_run_are_thrown_away() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(".a-1.partial")).unwrap();
        fs::write(root.path().join(".a-1.partial/half"), "").unwrap();
        let path = Cache::at(root.path()).unwrap().entry("a", "1", |_| Ok(())).unwrap();
        assert!(!path.join("half").exists());
    }

    #[test]
    fn another_key_is_another_entry() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path()).unwrap();
        let first = cache.entry("a", "1", |_| Ok(())).unwrap();
        let second = cache.entry("a", "2", |_| Ok(())).unwrap();
        assert_ne!(first, second);
        assert!(first.is_dir() && second.is_dir());
    }
}
