//! The files of published pods: one for each volume and pod, a JSON object.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

/// The pod that kubelet names in the volume context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInfo {
    /// Namespace, which is that of the claim; empty in records of versions that did not write it.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

impl PodInfo {
    /// Returns the reference to the pod for Events about it.
    pub fn object_ref(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// A volume that is published to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// CSI volume id.
    pub(super) volume: String,
    pub(super) target: PathBuf,
    pub(super) pod: PodInfo,
}

impl Record {
    /// Writes the file of the record. It need not survive a loss of power, which no mount survives either.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let Some(name) = self.file_name() else { return Ok(()) };
        std::fs::create_dir_all(directory)?;
        let Self { volume, target, pod } = self;
        let value = json!({"volume": volume, "target": target, "namespace": pod.namespace, "pod": pod.name,
            "uid": pod.uid});
        std::fs::write(directory.join(name), value.to_string())
    }

    /// Removes the file of the record.
    pub(super) fn remove(&self, directory: &Path) -> io::Result<()> {
        let Some(name) = self.file_name() else { return Ok(()) };
        ignore_not_found(std::fs::remove_file(directory.join(name)))
    }

    /// Returns the name of its file; `None` for ids that no API server makes, and which could lead out of the
    /// directory.
    fn file_name(&self) -> Option<String> {
        let is_plain = |id: &str| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            !id.is_empty() && id.len() <= 64 && id.chars().all(is_allowed)
        };
        let (volume, pod) = (&self.volume, &self.pod.uid);
        (is_plain(volume) && is_plain(pod)).then(|| format!("{volume}.{pod}.json"))
    }

    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let field = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let namespace = field("namespace").unwrap_or_default();
        let pod = PodInfo { namespace, name: field("pod")?, uid: field("uid")? };
        Some(Self { volume: field("volume")?, target: field("target")?.into(), pod })
    }
}

/// Loads the records in a directory. Files of target paths that are not `mounted`, and files that cannot be read, are
/// removed.
pub(super) fn load(directory: &Path, mounted: Option<&HashSet<PathBuf>>) -> Vec<Record> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "json"));
    let mut records = Vec::new();
    for file in files {
        let record = std::fs::read_to_string(&file).ok().and_then(|text| Record::parse(&text));
        match record.filter(|record| mounted.is_none_or(|mounted| is_mounted(&record.target, mounted))) {
            Some(record) => records.push(record),
            None => {
                if let Err(error) = ignore_not_found(std::fs::remove_file(&file)) {
                    tracing::warn!(file = %file.display(), %error, "cannot remove the record of a volume's pod");
                }
            }
        }
    }
    records
}

/// Returns whether something is mounted at a target path. The mount table has no links in its paths.
fn is_mounted(target: &Path, mounted: &HashSet<PathBuf>) -> bool {
    let resolved = || Some(std::fs::canonicalize(target.parent()?).ok()?.join(target.file_name()?));
    mounted.contains(target) || resolved().is_some_and(|target| mounted.contains(&target))
}

/// Turns "not found" into success.
fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        other => other,
    }
}
