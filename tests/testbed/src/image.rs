//! Container images without a registry: an OCI archive of programs of this machine, the same bytes every time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::assets;

/// What a test's pod runs: all of busybox. Its default command is a shell.
pub const BUSYBOX: &str = "testbed.local/busybox:1";
/// What containerd runs to hold a pod's namespaces.
pub const PAUSE: &str = "testbed.local/pause:1";

const PATH: &str = "PATH=/bin:/usr/bin:/sbin:/usr/sbin";
const MEDIA_TYPE: &str = "application/vnd.oci.image";

/// An image for Linux.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    /// In the words of the OCI image specification: `amd64`, `arm64`.
    architecture: &'static str,
    /// What a container has unless its pod says otherwise: the property `config` of the OCI image configuration.
    config: Value,
    /// Archives (tar) of files, the lowest first.
    layers: Vec<Vec<u8>>,
}

impl Image {
    /// An image of these layers.
    pub fn new(name: &str, architecture: &'static str, config: Value, layers: Vec<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), architecture, config, layers }
    }

    /// Puts one more layer on top.
    pub fn add_layer(&mut self, layer: Vec<u8>) {
        self.layers.push(layer);
    }

    /// busybox with links for all of its applets, and the given programs of this machine under other paths. They must
    /// be static: there is no C library in the image.
    pub fn with_programs(name: &str, command: &[&str], programs: &[(&Path, &str)]) -> Result<Self> {
        let busybox = assets::busybox()?;
        let mut files = Files::root();
        files.add(&busybox, "bin/busybox")?;
        for applet in applets(&busybox)? {
            files.link(&format!("bin/{applet}"), "busybox");
        }
        for (program, path) in programs {
            files.add(program, path.trim_start_matches('/'))?;
        }
        Ok(Self::new(name, "amd64", json!({ "Env": [PATH], "Cmd": command }), vec![files.layer()?]))
    }

    /// The two images that every node has. They share a layer, so the second one costs nothing.
    pub fn standard() -> Result<Vec<Self>> {
        let busybox = Self::with_programs(BUSYBOX, &["/bin/sh"], &[])?;
        let pause = Self {
            name: PAUSE.to_owned(),
            // The longest that it accepts on every platform: 63 years.
            config: json!({ "Env": [PATH], "Cmd": ["/bin/busybox", "sleep", "2000000000"] }),
            ..busybox.clone()
        };
        Ok(vec![busybox, pause])
    }
}

/// What is done to the layers of images in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Nothing: a guest would have to undo at every start what saves nothing on a file of this machine.
    None,
    /// gzip, which every container engine and registry reads.
    Gzip,
}

impl Compression {
    /// A layer as the archive has it.
    fn blob(self, layer: &[u8]) -> Result<Blob> {
        match self {
            Self::None => Ok(Blob::new("layer.v1.tar", layer.to_vec())),
            Self::Gzip => {
                // Its header has neither a time nor a name
                let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
                encoder.write_all(layer).context("compress a layer")?;
                Ok(Blob::new("layer.v1.tar+gzip", encoder.finish().context("compress a layer")?))
            }
        }
    }
}

/// Writes images as one OCI archive, complete or not at all.
pub fn write_archive(path: &Path, images: &[Image], compression: Compression) -> Result<()> {
    let temporary = path.with_extension("tmp");
    let file = File::create(&temporary).with_context(|| format!("create {}", temporary.display()))?;
    let mut archive = Builder::new(BufWriter::new(file));
    for (name, content) in contents(images, compression)? {
        let mut header = header(EntryType::Regular, 0o644);
        header.set_size(u64::try_from(content.len())?);
        archive.append_data(&mut header, &name, content.as_slice()).with_context(|| format!("archive {name}"))?;
    }
    archive.into_inner()?.into_inner().with_context(|| format!("write {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("write {}", path.display()))
}

/// The files of the archive: an OCI image layout (image-layout.md of the OCI image specification).
fn contents(images: &[Image], compression: Compression) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::from([("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())]);
    let mut manifests = Vec::new();
    for image in images {
        let layers = image.layers.iter().map(|layer| compression.blob(layer)).collect::<Result<Vec<_>>>()?;
        let diff_ids: Vec<_> = image.layers.iter().map(|layer| digest(layer)).collect();
        let config = json!({
            "architecture": image.architecture,
            "os": "linux",
            "config": image.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = Blob::new("config.v1+json", serde_json::to_vec(&config)?);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": format!("{MEDIA_TYPE}.manifest.v1+json"),
            "config": config.descriptor(&json!({})),
            "layers": layers.iter().map(|layer| layer.descriptor(&json!({}))).collect::<Vec<_>>(),
        });
        let manifest = Blob::new("manifest.v1+json", serde_json::to_vec(&manifest)?);
        // containerd looks at the first of these, skopeo and podman at the second
        let names = json!({ "io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name });
        manifests.push(manifest.descriptor(&names));
        files.extend(
            layers
                .into_iter()
                .chain([config, manifest])
                .map(|blob| (format!("blobs/sha256/{}", blob.hash), blob.content)),
        );
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

    fn descriptor(&self, annotations: &Value) -> Value {
        let (digest, size) = (format!("sha256:{}", self.hash), self.content.len());
        json!({ "mediaType": self.media_type, "digest": digest, "size": size, "annotations": annotations })
    }
}

/// Of a layer as it is unpacked, which an image's configuration has.
fn digest(layer: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(layer))
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

/// Files of an image by path, sorted, so that a directory comes before what is in it. Paths are without a slash at the
/// beginning.
#[derive(Default)]
#[expect(missing_debug_implementations, reason = "megabytes of contents")]
pub struct Files(BTreeMap<String, Entry>);

impl Files {
    /// What every image has: the directories of a container's mounts, and names for root and nobody.
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

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.insert(path, Entry::Link(target.to_owned()));
    }

    /// Adds a directory, empty or not.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.insert(path, Entry::Directory { mode });
    }

    /// Path and size in bytes of each file.
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

    /// The files as an archive (tar).
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
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_archive_is_the_same_every_time_and_keeps_a_shared_layer_once() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("1.tar"), directory.path().join("2.tar"));
        write_archive(&first, &Image::standard().unwrap(), Compression::None).unwrap();
        write_archive(&second, &Image::standard().unwrap(), Compression::None).unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let mut archive = tar::Archive::new(File::open(&first).unwrap());
        // Two manifests, two configurations, one layer.
        let blobs = archive.entries().unwrap().filter(|e| e.as_ref().unwrap().path().unwrap().starts_with("blobs"));
        assert_eq!(blobs.count(), 5);
    }

    #[test]
    fn a_compressed_layer_is_the_same_when_it_is_unpacked() {
        let directory = tempfile::tempdir().unwrap();
        let layer = Files::root().layer().unwrap();
        let image = Image::new("a:1", "amd64", json!({}), vec![layer.clone()]);
        let path = directory.path().join("a.tar");
        write_archive(&path, &[image], Compression::Gzip).unwrap();
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let blobs: Vec<Vec<u8>> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut content = Vec::new();
                entry.unwrap().read_to_end(&mut content).unwrap();
                content
            })
            .collect();
        let mut unpacked = Vec::new();
        let compressed = blobs.iter().find(|blob| blob.starts_with(&[0x1f, 0x8b])).unwrap();
        flate2::read::GzDecoder::new(compressed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == layer && compressed.len() < layer.len());
        let text = |blob: &Vec<u8>| String::from_utf8_lossy(blob).into_owned();
        assert!(blobs.iter().any(|blob| text(blob).contains(&format!(r#""diff_ids":["{}"]"#, digest(&layer)))));
    }

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
