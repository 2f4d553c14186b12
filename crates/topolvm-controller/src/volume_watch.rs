//! The `LogicalVolume`s of the cluster as the API server told about them, and a signal for every change.
//!
//! What is read here may be a moment old. It wakes those who wait; decisions about data are made on what the API server
//! answers.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};

use futures::FutureExt as _;
use kube::Api;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_runtime::CancellationToken;
use topolvm_runtime::kubernetes::watching::follow;

/// The watch has ended because the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped;

/// Reads the watched `LogicalVolume`s. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct VolumeWatch {
    flavor: ApiFlavor,
    store: Store<LogicalVolume>,
    names: Arc<RwLock<Names>>,
    changed: watch::Receiver<()>,
}

/// Names of `LogicalVolume`s by volume id.
type Names = HashMap<String, String>;

impl VolumeWatch {
    /// The watch, and the task that keeps it current until `shutdown` is cancelled.
    pub(crate) fn new(
        api: Api<LogicalVolume>,
        flavor: ApiFlavor,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send) {
        let mut writer = store::Writer::new(flavor);
        // The sender lives in the task: waiters notice when it ends
        let (change, changed) = watch::channel(());
        let watch = Self { flavor, store: writer.as_reader(), names: Arc::default(), changed };
        let (names, store) = (Arc::clone(&watch.names), watch.store.clone());
        let task = async move {
            follow("LogicalVolumes", api, shutdown, |mut event| {
                // The largest parts of an object, and nothing here reads them
                if let Event::Apply(volume) | Event::InitApply(volume) = &mut event {
                    volume.metadata.managed_fields = None;
                    if let Some(status) = &mut volume.status {
                        status.conditions = Vec::new();
                    }
                }
                writer.apply_watcher_event(&event);
                index(&mut names.write().unwrap_or_else(PoisonError::into_inner), &event, &store);
                change.send_replace(());
            })
            .await
        };
        (watch, task)
    }

    /// Whether all objects have been listed once.
    pub(crate) fn is_synced(&self) -> bool {
        matches!(self.store.wait_until_ready().now_or_never(), Some(Ok(())))
    }

    /// The object of this name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<LogicalVolume>> {
        self.store.get(&ObjectRef::new_with(name, self.flavor))
    }

    /// All objects, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<LogicalVolume>> {
        self.store.state()
    }

    /// The name of the object that has this volume id.
    pub(crate) fn name_of(&self, volume_id: &str) -> Option<String> {
        self.names.read().unwrap_or_else(PoisonError::into_inner).get(volume_id).cloned()
    }

    /// Names of the objects for which `look` is true.
    pub(crate) fn names_of(&self, look: impl Fn(&LogicalVolume) -> bool) -> Vec<String> {
        let volumes = self.store.state();
        volumes.iter().filter(|volume| look(volume)).filter_map(|volume| volume.metadata.name.clone()).collect()
    }

    /// Waits until `look` at the object of this name has an answer. `None` is an object that is not there, or not yet.
    pub(crate) async fn until<T>(
        &self,
        name: &str,
        mut look: impl FnMut(Option<&LogicalVolume>) -> Option<T>,
    ) -> Result<T, Stopped> {
        let mut changes = self.changes();
        loop {
            if let Some(answer) = look(self.get(name).as_deref()) {
                return Ok(answer);
            }
            changes.next().await?;
        }
    }

    /// The changes from now on. Made before looking, so that no change is lost in between.
    pub(crate) fn changes(&self) -> Changes {
        let mut changed = self.changed.clone();
        changed.mark_unchanged();
        Changes { changed }
    }
}

/// Changes of any object. Several that come together may count as one.
#[derive(Debug)]
pub(crate) struct Changes {
    changed: watch::Receiver<()>,
}

impl Changes {
    /// Waits for the next change.
    pub(crate) async fn next(&mut self) -> Result<(), Stopped> {
        self.changed.changed().await.map_err(|_| Stopped)
    }
}

/// Brings the index up to date after the store.
fn index(names: &mut Names, event: &Event<LogicalVolume>, store: &Store<LogicalVolume>) {
    let entry = |volume: &LogicalVolume| Some((volume.volume_id()?.to_owned(), volume.metadata.name.clone()?));
    match event {
        Event::Apply(volume) => names.extend(entry(volume)),
        Event::Delete(volume) => {
            if let Some(id) = volume.volume_id() {
                names.remove(id);
            }
        }
        Event::InitDone => *names = store.state().iter().filter_map(|volume| entry(volume)).collect(),
        Event::Init | Event::InitApply(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use topolvm_api::{LogicalVolumeSpec, LogicalVolumeStatus};

    use super::*;

    fn volume(name: &str, id: &str) -> LogicalVolume {
        let mut volume = LogicalVolume::new(
            ApiFlavor::TopoLvm,
            LogicalVolumeSpec { name: name.to_owned(), ..LogicalVolumeSpec::default() },
        );
        volume.status = Some(LogicalVolumeStatus { volume_id: id.to_owned(), ..LogicalVolumeStatus::default() });
        volume
    }

    #[test]
    fn the_index_follows_changes_and_a_new_list_replaces_it() {
        let mut writer = store::Writer::new(ApiFlavor::TopoLvm);
        let mut names = Names::new();
        let mut feed = |events: Vec<Event<LogicalVolume>>| {
            for event in events {
                writer.apply_watcher_event(&event);
                index(&mut names, &event, &writer.as_reader());
            }
            let mut found: Vec<_> = names.clone().into_iter().collect();
            found.sort();
            found
        };
        let pair = |id: &str, name: &str| (id.to_owned(), name.to_owned());

        assert_eq!(feed(vec![Event::Apply(volume("a", ""))]), []);
        assert_eq!(
            feed(vec![Event::Apply(volume("a", "1")), Event::Apply(volume("b", "2"))]),
            [pair("1", "a"), pair("2", "b")]
        );
        assert_eq!(feed(vec![Event::Delete(volume("a", "1"))]), [pair("2", "b")]);
        assert_eq!(feed(vec![Event::Init, Event::InitApply(volume("c", "3")), Event::InitDone]), [pair("3", "c")]);
    }
}
