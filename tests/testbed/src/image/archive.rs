//! OCI archives of images (image-layout.md of the OCI image specification), the same bytes every time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType};

use super::Image;
use super::files::header;

const MEDIA_TYPE: &str = "application/vnd.oci.image";

/// Compression of the layers of images in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// None: compression saves nothing for a file of this machine, and a guest would have to decompress it at every
    /// start.
    None,
    /// gzip, which every container engine and registry reads.
    Gzip,
}

impl Compression {
    /// Compresses a layer.
    fn compress(self, layer: &[u8]) -> Result<Blob> {
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

/// Returns the files of an archive by path.
fn contents(images: &[Image], compression: Compression) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::from([("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())]);
    let mut manifests = Vec::new();
    for image in images {
        let layers = image.layers.iter().map(|layer| compression.compress(layer)).collect::<Result<Vec<_>>>()?;
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
        // containerd reads the first of these, skopeo and podman the second
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

/// A content-addressed file: its name is the hash of its content.
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

/// Returns the digest of an uncompressed layer, which the configuration of an image has.
fn digest(layer: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(layer))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::Files;
    use super::*;

    #[test]
    fn archive_is_reproducible_and_stores_a_shared_layer_once() {
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
}
