//! The pods to which volumes are published, by volume. kubelet names the pod when it publishes a volume
//! (`podInfoOnMount` of the CSIDriver) and never again, so that a small file for each target path survives a restart of
//! the agent. Metrics rely on it, and limits of I/O.

mod record;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux_mount::{FILE_DEADLINE, run_blocking};
use parking_lot::Mutex;
use topolvm_runtime::error_chain;

pub use record::PodInfo;
use record::Record;

/// Pods by the id of the volume and the target path.
type Pods = HashMap<String, HashMap<PathBuf, PodInfo>>;

/// The pods to which volumes are published. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct PublishedPods {
    pods: Arc<Mutex<Pods>>,
    /// Directory of the records; `None` keeps them in memory alone.
    directory: Option<PathBuf>,
}

impl PublishedPods {
    /// Loads the records in a directory, and removes those of target paths at which nothing is mounted any more, as
    /// after a boot. Without `mounted` all are kept.
    pub async fn load(directory: PathBuf, mounted: Option<HashSet<PathBuf>>) -> Self {
        let read = move |directory: &Path| Ok(record::load(directory, mounted.as_ref()));
        let records = run_blocking(FILE_DEADLINE, &directory, read).await.unwrap_or_else(|error| {
            tracing::warn!(
                error = error_chain(&error),
                "cannot read which pods use volumes; metrics have no pod names"
            );
            Vec::new()
        });
        let mut pods = Pods::new();
        for Record { volume, target, pod } in records {
            pods.entry(volume).or_default().insert(target, pod);
        }
        Self { pods: Arc::new(Mutex::new(pods)), directory: Some(directory) }
    }

    /// Stores that a volume is published to a pod at a target path.
    pub async fn insert(&self, volume: &str, target: &Path, pod: PodInfo) {
        let before = self.pods.lock().entry(volume.to_owned()).or_default().insert(target.to_owned(), pod.clone());
        // kubelet repeats its calls
        if before.as_ref() == Some(&pod) {
            return;
        }
        let record = Record { volume: volume.to_owned(), target: target.to_owned(), pod };
        self.change_file(&record, Record::write).await;
    }

    /// Removes what is stored of a target path.
    pub async fn remove(&self, volume: &str, target: &Path) {
        let removed = {
            let mut pods = self.pods.lock();
            let of_volume = pods.get_mut(volume);
            let (removed, is_last) =
                of_volume.map_or((None, false), |targets| (targets.remove(target), targets.is_empty()));
            if is_last {
                pods.remove(volume);
            }
            removed
        };
        if let Some(pod) = removed {
            let record = Record { volume: volume.to_owned(), target: target.to_owned(), pod };
            self.change_file(&record, Record::remove).await;
        }
    }

    /// Returns the pods to which a volume is published.
    pub fn pods(&self, volume: &str) -> Vec<PodInfo> {
        let pods = self.pods.lock();
        let by_uid = pods.get(volume).into_iter().flat_map(HashMap::values).map(|pod| (pod.uid.as_str(), pod));
        by_uid.collect::<BTreeMap<_, _>>().into_values().cloned().collect()
    }

    /// Returns the pod to which a volume is published at a target path.
    pub fn pod_at(&self, volume: &str, target: &Path) -> Option<PodInfo> {
        self.pods.lock().get(volume)?.get(target).cloned()
    }

    /// Returns whether a volume is published to the pod of this UID.
    pub fn contains(&self, volume: &str, uid: &str) -> bool {
        let pods = self.pods.lock();
        pods.get(volume).into_iter().flat_map(HashMap::values).any(|pod| pod.uid == uid)
    }

    /// Returns the ids of the volumes that are published to the pod of this UID.
    pub fn volumes(&self, uid: &str) -> Vec<String> {
        let pods = self.pods.lock();
        let has_pod = |targets: &HashMap<PathBuf, PodInfo>| targets.values().any(|pod| pod.uid == uid);
        pods.iter().filter(|(_, targets)| has_pod(targets)).map(|(volume, _)| volume.clone()).collect()
    }

    /// Returns the names of the pods to which a volume is published, in their order, with commas between them.
    pub fn names(&self, volume: &str) -> String {
        let pods = self.pods.lock();
        let names: BTreeSet<&str> =
            pods.get(volume).into_iter().flat_map(HashMap::values).map(|pod| pod.name.as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(",")
    }

    /// Writes or removes the file of a record. A failure costs the name of a pod, and
    /// changes of its limits of I/O, after the next restart.
    async fn change_file(&self, record: &Record, change: fn(&Record, &Path) -> std::io::Result<()>) {
        let Some(directory) = &self.directory else { return };
        let owned = record.clone();
        let change = move |directory: &Path| {
            change(&owned, directory).map_err(|error| linux_mount::MountError::io("write to", directory, error))
        };
        if let Err(error) = run_blocking(FILE_DEADLINE, directory, change).await {
            tracing::warn!(
                volume = record.volume,
                error = error_chain(&error),
                "cannot store which pod uses the volume"
            );
        }
    }
}

#[cfg(test)]
mod tests;
