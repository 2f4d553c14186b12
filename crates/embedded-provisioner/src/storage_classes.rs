//! The StorageClasses of this driver, from a watch.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The StorageClasses of this driver. Clones share them.
#[derive(Clone)]
pub(crate) struct StorageClasses {
    driver: String,
    state: Arc<Mutex<State>>,
    listed: Arc<watch::Sender<bool>>,
}

#[derive(Default)]
struct State {
    classes: HashMap<String, Arc<StorageClass>>,
    /// The objects that a list which has not ended has named so far.
    listing: Option<HashMap<String, Arc<StorageClass>>>,
}

impl StorageClasses {
    /// Makes an empty set of StorageClasses of this driver.
    pub(crate) fn new(driver: String) -> Self {
        Self { driver, state: Arc::default(), listed: Arc::default() }
    }

    /// Forgets that the StorageClasses have been listed: another watch of them begins.
    pub(crate) fn await_list(&self) {
        self.listed.send_replace(false);
    }

    /// Waits until all StorageClasses have been listed.
    pub(crate) async fn wait_until_listed(&self) -> bool {
        self.listed.subscribe().wait_for(|listed| *listed).await.is_ok()
    }

    /// Returns the StorageClass of this name, if it is of this driver.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.state.lock().classes.get(name).cloned()
    }

    /// Applies an event of the watch. Returns the names of classes whose claims are to be tried again.
    pub(crate) fn apply(&self, event: Event<StorageClass>) -> Vec<String> {
        let mut state = self.state.lock();
        match event {
            Event::Init => state.listing = Some(HashMap::new()),
            Event::InitApply(class) => {
                let own = self.own(class);
                state.listing.get_or_insert_default().extend(own);
            }
            Event::InitDone => {
                state.classes = state.listing.take().unwrap_or_default();
                self.listed.send_replace(true);
                return state.classes.keys().cloned().collect();
            }
            Event::Apply(class) => {
                let Some((name, class)) = self.own(class) else { return Vec::new() };
                state.classes.insert(name.clone(), class);
                return vec![name];
            }
            Event::Delete(class) => {
                state.classes.remove(&class.name_any());
            }
        }
        Vec::new()
    }

    fn own(&self, mut class: StorageClass) -> Option<(String, Arc<StorageClass>)> {
        class.metadata.managed_fields = None;
        (class.provisioner == self.driver).then(|| (class.name_any(), Arc::new(class)))
    }
}

/// Returns whether the claims of the StorageClass wait until the scheduler has selected a node.
pub(crate) fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

#[cfg(test)]
mod tests {
    use topolvm_testkit::fixtures::storage_class;

    use super::*;

    #[test]
    fn storage_class_of_the_driver_appears_after_the_list() {
        let classes = StorageClasses::new("topolvm.io".to_owned());
        classes.apply(Event::Init);
        assert!(classes.apply(Event::InitApply(storage_class("fast").build())).is_empty());
        classes.apply(Event::InitApply(storage_class("other").provisioner("ebs.example").build()));
        assert!(classes.get("fast").is_none());
        assert_eq!(classes.apply(Event::InitDone), ["fast"]);
        assert!(classes.get("fast").is_some() && classes.get("other").is_none());
        assert_eq!(classes.apply(Event::Apply(storage_class("slow").build())), ["slow"]);
        classes.apply(Event::Delete(storage_class("fast").build()));
        assert!(classes.get("fast").is_none());
    }
}
