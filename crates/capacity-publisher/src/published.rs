//! The cache of the existing CSIStorageCapacity objects: from the watch, and from the API server's answers to writes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use topolvm_api::ApiFlavor;

use super::object::CapacityObject;

/// The objects by name. Clones share them.
#[derive(Clone, Default)]
pub(super) struct PublishedObjects {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: HashMap<String, CapacityObject>,
    /// The names in the list that is being taken in.
    listing: Option<HashSet<String>>,
    is_listed: bool,
}

impl State {
    /// Keeps an object, unless a later state of it is known: the watch may lag behind our own writes.
    fn keep(&mut self, flavor: ApiFlavor, object: &CSIStorageCapacity) {
        let name = object.name_any();
        if let Some(listing) = &mut self.listing {
            listing.insert(name.clone());
        }
        let object = CapacityObject::from_object(flavor, object);
        if !self.objects.get(&name).is_some_and(|known| object.is_older_than(known)) {
            self.objects.insert(name, object);
        }
    }
}

impl PublishedObjects {
    /// Applies an event of the watch.
    pub(super) fn apply(&self, flavor: ApiFlavor, event: &Event<CSIStorageCapacity>) {
        let mut state = self.state.lock();
        match event {
            Event::Init => state.listing = Some(HashSet::new()),
            Event::InitApply(object) | Event::Apply(object) => state.keep(flavor, object),
            Event::Delete(object) => drop(state.objects.remove(&object.name_any())),
            Event::InitDone => {
                let listed = state.listing.take().unwrap_or_default();
                state.objects.retain(|name, _| listed.contains(name));
                state.is_listed = true;
            }
        }
    }

    /// Takes note of what a write returned.
    pub(super) fn written(&self, flavor: ApiFlavor, object: &CSIStorageCapacity) {
        self.state.lock().keep(flavor, object);
    }

    /// Takes note that an object is gone.
    pub(super) fn removed(&self, name: &str) {
        self.state.lock().objects.remove(name);
    }

    /// Returns whether all objects have been listed once.
    pub(super) fn is_listed(&self) -> bool {
        self.state.lock().is_listed
    }

    /// Reads the objects.
    pub(super) fn read<T>(&self, read: impl FnOnce(&HashMap<String, CapacityObject>) -> T) -> T {
        read(&self.state.lock().objects)
    }
}
