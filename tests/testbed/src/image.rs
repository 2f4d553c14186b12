//! Container images without a registry: an OCI archive of programs of this machine, the same bytes every time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::assets;

/// What a test's pod runs: all of busybox. Its default command is a shell.
pub const BUSYBOX: &str = "testbed.local/busybox:1";
/// What containerd runs to hold a pod's namespaces.
pub const PAUSE: &str = "testbed.local/pause:1";

const MEDIA_TYPE: &str = "application/vnd.oci.image";

/// An image with one layer.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    command: Vec<String>,
    layer: Vec<u8>,
}

impl Image {
    /// busybox with links for all of its applets, and the given programs of this machine under other paths. They must be static: there
    /// is no C library in the image.
    pub fn with_programs(name: &str, command: &[&str], programs: &[(&Path, &str)]) -> Result<Self> {
        let busybox = assets::busybox()?;
        let mut files = Files::default();
        files.add(&busybox, "bin/busybox")?;
        for applet in applets(&busybox)? {
            files.link(&format!("bin/{applet}"), "busybox");
        }
        for (program, path) in programs {
            files.add(program, path.trim_start_matches('/'))?;
        }
        Ok(Self {
            name: name.to_owned(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            layer: files.layer()?,
        })
    }

    /// The two images that every node has. They share a layer, so the second one costs nothing.
    pub fn standard() -> Result<Vec<Self>> {
        let busybox = Self::with_programs(BUSYBOX, &["/bin/sh"], &[])?;
        let pause = Self {
            name: PAUSE.to_owned(),
            // The longest that it accepts on every platform: 63 years.
            command: ["/bin/busybox", "sleep", "2000000000"].map(String::from).to_vec(),
            ..busybox.clone()
        };
        Ok(vec![busybox, pause])
    }
}

/// Writes images as one OCI archive, complete or not at all.
pub fn write_archive(path: &Path, images: &[Image]) -> Result<()> {
    let temporary = path.with_extension("tmp");
    let file = File::create(&temporary).with_context(|| format!("create {}", temporary.display()))?;
    let mut archive = Builder::new(BufWriter::new(file));
    for (name, content) in contents(images)? {
        let mut header = header(EntryType::Regular, 0o644);
        header.set_size(u64::try_from(content.len())?);
        archive.append_data(&mut header, &name, content.as_slice()).with_context(|| format!("archive {name}"))?;
    }
    archive.into_inner()?.into_inner().with_context(|| format!("write {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("write {}", path.display()))
}

/// The files of the archive: an OCI image layout (image-layout.md of the OCI image specification).
fn contents(images: &[Image]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::from([("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())]);
    let mut manifests = Vec::new();
    for image in images {
        // Not compressed: a guest would have to undo at every start what saves nothing on a file of this machine.
        let layer = Blob::new("layer.v1.tar", image.layer.clone());
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": { "Env": ["PATH=/bin:/usr/bin:/sbin:/usr/sbin"], "Cmd": image.command },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest()] },
        });
        let config = Blob::new("config.v1+json", serde_json::to_vec(&config)?);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": format!("{MEDIA_TYPE}.manifest.v1+json"),
            "config": config.descriptor(&json!({})),
            "layers": [layer.descriptor(&json!({}))],
        });
        let manifest = Blob::new("manifest.v1+json", serde_json::to_vec(&manifest)?);
        manifests.push(manifest.descriptor(&json!({ "io.containerd.image.name": image.name })));
        files.extend([layer, config, manifest].map(|blob| (format!("blobs/sha256/{}", blob.hash), blob.content)));
    }
    let index = json!({ "schemaVersion": 2, "manifests": manifests });
    files.insert("index.json".to_owned(), serde_json::to_vec(&index)?);
    Ok(files)
}

/// A file that is known by the hash of its content.
struct Blob {
    media_type: String,
    hash: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(kind: &str, content: Vec<u8>) -> Self {
        let hash = format!("{:x}", Sha256::digest(&content));
        Self { media_type: format!("{MEDIA_TYPE}.{kind}"), hash, content }
    }

    fn digest(&self) -> String {
        format!("sha256:{}", self.hash)
    }

    fn descriptor(&self, annotations: &Value) -> Value {
        let size = self.content.len();
        json!({ "mediaType": self.media_type, "digest": self.digest(), "size": size, "annotations": annotations })
    }
}

fn applets(busybox: &Path) -> Result<Vec<String>> {
    let output = Command::new(busybox).arg("--list").output().with_context(|| format!("run {}", busybox.display()))?;
    if !output.status.success() {
        bail!("{} --list: {}", busybox.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("the list of busybox's applets is not text")?;
    Ok(text.lines().filter(|name| *name != "busybox").map(str::to_owned).collect())
}

enum Entry {
    File { content: Vec<u8>, mode: u32 },
    Link(String),
    Directory { mode: u32 },
}

/// The root of an image by path, sorted, so that a directory comes before what is in it.
#[derive(Default)]
struct Files(BTreeMap<String, Entry>);

impl Files {
    fn add(&mut self, source: &Path, path: &str) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let content = fs::read(source).with_context(|| format!("read {}", source.display()))?;
        let executable = fs::metadata(source)?.permissions().mode() & 0o111 != 0;
        self.insert(path, Entry::File { content, mode: if executable { 0o755 } else { 0o644 } });
        Ok(())
    }

    fn link(&mut self, path: &str, target: &str) {
        self.insert(path, Entry::Link(target.to_owned()));
    }

    fn insert(&mut self, path: &str, entry: Entry) {
        for (slash, _) in path.match_indices('/') {
            let (parent, _) = path.split_at(slash);
            self.0.entry(parent.to_owned()).or_insert(Entry::Directory { mode: 0o755 });
        }
        self.0.insert(path.to_owned(), entry);
    }

    fn layer(mut self) -> Result<Vec<u8>> {
        for directory in ["dev", "etc", "proc", "root", "sys"] {
            self.0.insert(directory.to_owned(), Entry::Directory { mode: 0o755 });
        }
        self.0.insert("tmp".to_owned(), Entry::Directory { mode: 0o1777 });
        for (path, text) in [
            ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
            ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"),
        ] {
            self.insert(path, Entry::File { content: text.as_bytes().to_vec(), mode: 0o644 });
        }
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

/// Owner root and no time: nothing that differs from run to run.
fn header(kind: EntryType, mode: u32) -> Header {
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
    fn an_archive_is_the_same_every_time_and_keeps_a_shared_layer_once() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("1.tar"), directory.path().join("2.tar"));
        write_archive(&first, &Image::standard().unwrap()).unwrap();
        write_archive(&second, &Image::standard().unwrap()).unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let mut archive = tar::Archive::new(File::open(&first).unwrap());
        // Two manifests, two configurations, one layer.
        let blobs = archive.entries().unwrap().filter(|e| e.as_ref().unwrap().path().unwrap().starts_with("blobs"));
        assert_eq!(blobs.count(), 5);
    }

    #[test]
    fn a_directory_comes_before_what_is_in_it() {
        let mut files = Files::default();
        files.link("usr/local/bin/a", "b");
        let layer = files.layer().unwrap();
        let mut archive = tar::Archive::new(layer.as_slice());
        let paths: Vec<String> =
            archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string()).collect();
        let position = |path: &str| paths.iter().position(|p| p.trim_end_matches('/') == path).unwrap();
        assert!(position("usr") < position("usr/local/bin") && position("usr/local/bin") < position("usr/local/bin/a"));
    }
}
