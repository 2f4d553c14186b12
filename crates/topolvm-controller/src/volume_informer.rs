//! The `LogicalVolume` informer: a cache of the objects of the cluster, and a signal for every change.
//!
//! What is read here may be a moment old. It wakes those who wait; decisions about data are made on what the API server
//! answers.

use std::future::Future;

use kube::Api;
use tokio::sync::watch;
use topolvm_api::LogicalVolume;
use topolvm_capacity::Capacity;
use topolvm_kube::{LogicalVolumeWriter, LogicalVolumes, watch_all};
use topolvm_runtime::CancellationToken;

/// The informer has stopped because the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped;

/// The cache of watched `LogicalVolume`s. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct VolumeInformer {
    pub(crate) cache: LogicalVolumes,
    changed: watch::Receiver<()>,
}

impl VolumeInformer {
    /// Returns the informer, and the task that keeps its cache and the reservations current until `shutdown` is
    /// cancelled.
    pub(crate) fn new(
        api: Api<LogicalVolume>,
        capacity: Capacity,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send) {
        // The sender lives in the task: waiters notice when it ends
        let (change, changed) = watch::channel(());
        let mut writer = LogicalVolumeWriter::of_cluster();
        let informer = Self { cache: writer.as_reader(), changed };
        let task = watch_all("LogicalVolumes", api, shutdown, move |mut event| {
            capacity.apply_volume(&event);
            writer.store(&mut event);
            change.send_replace(());
        });
        (informer, task)
    }

    /// Waits until `check` returns something for the object of this name; it is called once for each state of the
    /// object. `None` is an object that does not exist, or not yet.
    pub(crate) async fn wait_until<T>(
        &self,
        name: &str,
        mut check: impl FnMut(Option<&LogicalVolume>) -> Option<T>,
    ) -> Result<T, Stopped> {
        let mut changes = self.changes();
        let mut seen = None;
        loop {
            let state = self.cache.get(name);
            // Most changes are those of other objects
            if seen.as_ref() != Some(&state) {
                if let Some(answer) = check(state.as_deref()) {
                    return Ok(answer);
                }
                seen = Some(state);
            }
            changes.changed().await.map_err(|_| Stopped)?;
        }
    }

    /// Subscribes to the changes of any object from now on; several that come together may count as one. Subscribe
    /// before reading the cache, so that no change is lost in between.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        let mut changed = self.changed.clone();
        changed.mark_unchanged();
        changed
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use topolvm_testkit::fixtures::logical_volume;

    use super::*;

    #[tokio::test]
    async fn informer_wait_checks_each_state_of_its_object_once() {
        let (change, changed) = watch::channel(());
        let mut writer = LogicalVolumeWriter::default();
        let informer = VolumeInformer { cache: writer.as_reader(), changed };
        let sized = |name, size| Event::Apply(logical_volume(name).sized(size).build());
        let mut looks = Vec::new();
        let waiting = informer.wait_until("a", |object| {
            looks.push(object.map(|volume| volume.spec.size.0.clone()));
            (object?.spec.size.0 == "2Gi").then_some(())
        });
        let changing = async {
            for event in [sized("b", "1Gi"), sized("a", "1Gi"), sized("b", "2Gi"), sized("a", "2Gi")] {
                tokio::task::yield_now().await;
                writer.apply(event);
                change.send_replace(());
            }
        };
        let (answer, ()) = tokio::join!(waiting, changing);
        assert_eq!(answer, Ok(()));
        assert_eq!(looks, [None, Some("1Gi".to_owned()), Some("2Gi".to_owned())]);
    }

    #[tokio::test]
    async fn waiters_end_with_the_informer() {
        let (_, changed) = watch::channel(());
        let informer = VolumeInformer { cache: LogicalVolumeWriter::default().as_reader(), changed };
        assert_eq!(informer.wait_until("a", |object| object.map(|_| ())).await, Err(Stopped));
    }
}
