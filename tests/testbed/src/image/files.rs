//! Files of an image layer, archived the same way every time.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

enum Entry {
    File { content: Vec<u8>, mode: u32 },
    Link(String),
    Directory { mode: u32 },
}

/// The files of an image by path, sorted, so that a directory comes before what is in it. Paths have no leading slash.
#[derive(Default)]
#[expect(missing_debug_implementations, reason = "megabytes of contents")]
pub struct Files(BTreeMap<String, Entry>);

impl Files {
    /// Returns the files that every image has: the directories of a container's mounts, and names for root and nobody.
    pub fn root() -> Self {
        let mut files = Self::default();
        for directory in ["dev", "etc", "proc", "root", "run", "sys", "var"] {
            files.directory(directory, 0o755);
        }
        files.directory("tmp", 0o1777);
        files.text("etc/group", "root:x:0:\nnogroup:x:65534:\n");
        files.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n");
        files
    }

    /// Adds a copy of a file of this machine.
    pub fn add(&mut self, source: &Path, path: &str) -> Result<()> {
        let content = fs::read(source).with_context(|| format!("read {}", source.display()))?;
        let executable = fs::metadata(source)?.permissions().mode() & 0o111 != 0;
        self.insert(path, Entry::File { content, mode: if executable { 0o755 } else { 0o644 } });
        Ok(())
    }

    /// Adds a file with this text.
    pub fn text(&mut self, path: &str, text: &str) {
        self.insert(path, Entry::File { content: text.as_bytes().to_vec(), mode: 0o644 });
    }

    /// Adds a script with this text.
    pub fn script(&mut self, path: &str, text: &str) {
        self.insert(path, Entry::File { content: text.as_bytes().to_vec(), mode: 0o755 });
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.insert(path, Entry::Link(target.to_owned()));
    }

    /// Adds a directory, empty or not.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.insert(path, Entry::Directory { mode });
    }

    /// Returns path and size in bytes of each file.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().filter_map(|(path, entry)| match entry {
            Entry::File { content, .. } => Some((path.as_str(), content.len())),
            Entry::Link(_) | Entry::Directory { .. } => None,
        })
    }

    fn insert(&mut self, path: &str, entry: Entry) {
        for (slash, _) in path.match_indices('/') {
            let (parent, _) = path.split_at(slash);
            self.0.entry(parent.to_owned()).or_insert(Entry::Directory { mode: 0o755 });
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// Archives the files (tar).
    pub fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let (mut header, content) = match entry {
                Entry::File { content, mode } => (header(EntryType::Regular, *mode), content.as_slice()),
                Entry::Directory { mode } => (header(EntryType::Directory, *mode), [].as_slice()),
                Entry::Link(target) => {
                    let mut header = header(EntryType::Symlink, 0o777);
                    header.set_link_name(target).with_context(|| format!("link {path}"))?;
                    (header, [].as_slice())
                }
            };
            header.set_size(u64::try_from(content.len())?);
            layer.append_data(&mut header, path, content).with_context(|| format!("put {path} into an image"))?;
        }
        layer.into_inner().context("finish a layer")
    }
}

/// Returns the header of an archived file: owner root and no time, nothing that differs from run to run.
pub(super) fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_comes_before_what_is_in_it() {
        let mut files = Files::root();
        files.link("usr/local/bin/a", "b");
        let layer = files.layer().unwrap();
        let mut archive = tar::Archive::new(layer.as_slice());
        let paths: Vec<String> =
            archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string()).collect();
        let position = |path: &str| paths.iter().position(|p| p.trim_end_matches('/') == path).unwrap();
        assert!(position("usr") < position("usr/local/bin") && position("usr/local/bin") < position("usr/local/bin/a"));
    }
}
