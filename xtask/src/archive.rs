//! Compressed archives for a release: the same bytes for the same files, independent of user and time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// Files by path, sorted, owned by root and as old as the commit.
pub(crate) struct Archive {
    files: BTreeMap<String, Entry>,
    /// Seconds since 1970.
    time: u64,
}

struct Entry {
    content: Vec<u8>,
    is_executable: bool,
}

impl Archive {
    /// An empty one whose files get this time, in seconds since 1970.
    pub(crate) fn new(time: i64) -> anyhow::Result<Self> {
        Ok(Self { files: BTreeMap::new(), time: u64::try_from(time).context("SOURCE_DATE_EPOCH is before 1970")? })
    }

    /// Adds a file that is not executable.
    pub(crate) fn add(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.files.insert(path.to_owned(), Entry { content: content.into(), is_executable: false });
    }

    /// Adds a copy of a file.
    pub(crate) fn add_file(&mut self, source: &Path, path: &str) -> anyhow::Result<()> {
        let content = fs::read(source).with_context(|| format!("read {}", source.display()))?;
        let is_executable = fs::metadata(source)?.permissions().mode() & 0o111 != 0;
        self.files.insert(path.to_owned(), Entry { content, is_executable });
        Ok(())
    }

    /// Adds the files below a directory under the name `top`, without those whose names begin with a dot or match a
    /// pattern: a name with a slash for a directory, and one with a star in front for what ends like that.
    pub(crate) fn add_tree(&mut self, directory: &Path, top: &str, left_out: &[&str]) -> anyhow::Result<()> {
        for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
            let source = entry.with_context(|| format!("list {}", directory.display()))?.path();
            let name = source.file_name().and_then(|name| name.to_str());
            let name = name.with_context(|| format!("the name of {} is not UTF-8", source.display()))?;
            let is_directory = source.is_dir();
            if name.starts_with('.') || left_out.iter().any(|pattern| matches(pattern, name, is_directory)) {
                continue;
            }
            let path = format!("{top}/{name}");
            if is_directory { self.add_tree(&source, &path, left_out)? } else { self.add_file(&source, &path)? }
        }
        Ok(())
    }

    /// Writes it, as tar compressed with gzip.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        ensure!(!self.files.is_empty(), "there is nothing to put into {}", path.display());
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        // Its header has neither a time nor a name
        let mut archive = Builder::new(GzBuilder::new().write(file, Compression::best()));
        for (name, entry) in &self.files {
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::Regular);
            header.set_mode(if entry.is_executable { 0o755 } else { 0o644 });
            header.set_uid(0);
            header.set_gid(0);
            header.set_username("root")?;
            header.set_groupname("root")?;
            header.set_mtime(self.time);
            header.set_size(u64::try_from(entry.content.len())?);
            archive.append_data(&mut header, name, entry.content.as_slice()).with_context(|| format!("pack {name}"))?;
        }
        let written = archive.into_inner().and_then(flate2::write::GzEncoder::finish);
        written.with_context(|| format!("write {}", path.display())).map(drop)
    }
}

fn matches(pattern: &str, name: &str, is_directory: bool) -> bool {
    match (pattern.strip_suffix('/'), pattern.strip_prefix('*')) {
        (Some(directory), _) => is_directory && name == directory,
        (None, Some(end)) => name.ends_with(end),
        (None, None) => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_has_the_same_bytes_for_any_order_and_mtime() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/script"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(tree.join("sub/script"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir_all(tree.join("ci")).unwrap();
        for left_out in [".hidden", "ci/values", "sub/script~"] {
            fs::write(tree.join(left_out), "").unwrap();
        }
        let pack = |name: &str, is_reversed: bool| {
            let mut archive = Archive::new(1_700_000_000).unwrap();
            if is_reversed {
                archive.add_tree(&tree, "top", &["ci/", "*~"]).unwrap();
            }
            archive.add("top/a", "text");
            archive.add_tree(&tree, "top", &["ci/", "*~"]).unwrap();
            archive.write(&directory.path().join(name)).unwrap();
            fs::read(directory.path().join(name)).unwrap()
        };
        let first = pack("1", false);
        fs::write(tree.join("sub/script"), "#!/bin/sh\n").unwrap();
        assert!(first == pack("2", true));

        let mut unpacked = tar::Archive::new(flate2::read::GzDecoder::new(first.as_slice()));
        let entries: Vec<_> = unpacked
            .entries()
            .unwrap()
            .map(|entry| {
                let header = entry.unwrap().header().clone();
                (header.path().unwrap().display().to_string(), header.mode().unwrap(), header.mtime().unwrap())
            })
            .collect();
        let expected = [("top/a", 0o644), ("top/sub/script", 0o755)];
        assert_eq!(entries, expected.map(|(path, mode)| (path.to_owned(), mode, 1_700_000_000)));
    }

    #[test]
    fn an_empty_archive_is_a_mistake() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Archive::new(0).unwrap().write(&directory.path().join("a")).is_err());
        assert!(Archive::new(-1).is_err());
    }
}
