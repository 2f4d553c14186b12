//! Hands to lvmd what administrators wish of disks in annotations of the `NodeStorage`, tells in its status what has
//! become of each wish, and takes off those that are fulfilled for good.
//!
//! Only what an annotation says is done. That one is gone means nothing: the object may have been deleted and made
//! again in the middle of an evacuation, which lvmd has on record.

mod decision;
mod entry;

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::Api;
use kube::api::PatchParams;
use kube::core::{ObjectMeta, PartialObjectMeta};
use tokio::sync::watch;
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, DiskWish, DiskWishStatus, NodeStorage, NodeStorageStatus};
use topolvm_kube::{json_patch, take_annotation_off};
use topolvm_runtime::error_chain;

use super::lvmd_watch::Reading;
use super::object_watch::Object;
use crate::api_server::{self, DEADLINE};
use crate::events::Events;
use crate::lvmd_client::{LvmdClient, LvmdError};
use crate::orphans::node_reference;
use decision::{DiskCall, Step, Wish};
use entry::Entry;

/// Most refused requests that are not tried again and that the status goes on to report.
const MOST_REFUSED: usize = 16;

/// The states of the wishes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    uid: Option<String>,
    pub(super) wishes: Vec<DiskWishStatus>,
}

impl Told {
    /// Returns whether it is about this object, and not about another that had its name before.
    pub(super) fn is_of(&self, metadata: &ObjectMeta) -> bool {
        self.uid == metadata.uid
    }
}

/// Keeps the wishes about the disks of a node.
#[derive(Debug)]
pub(super) struct WishKeeper {
    flavor: ApiFlavor,
    lvmd: LvmdClient,
    api: Api<NodeStorage>,
    events: Events,
    told: watch::Sender<Option<Told>>,
    /// UID of the object whose wishes these are.
    uid: Option<String>,
    entries: Vec<Entry>,
}

impl WishKeeper {
    pub(super) fn new(
        flavor: ApiFlavor,
        lvmd: LvmdClient,
        api: Api<NodeStorage>,
        events: Events,
        told: watch::Sender<Option<Told>>,
    ) -> Self {
        Self { flavor, lvmd, api, events, told, uid: None, entries: Vec::new() }
    }

    /// Heeds wishes until one of the senders is gone.
    pub(super) async fn heed(
        mut self,
        mut readings: watch::Receiver<Option<Reading>>,
        nodes: watch::Receiver<Option<PartialObjectMeta<Node>>>,
        mut objects: watch::Receiver<Option<Object>>,
    ) {
        loop {
            let reading = readings.borrow_and_update().clone().unwrap_or_default();
            let object = objects.borrow_and_update().clone().flatten();
            if let Some(object) = object.filter(|object| object.metadata.deletion_timestamp.is_none()) {
                let node = nodes.borrow().as_ref().map(node_reference).unwrap_or_default();
                Box::pin(self.heed_all(&object, &reading, &node)).await;
            } else {
                self.uid = None;
                self.entries.clear();
            }
            let next = self.entries.iter().filter_map(Entry::next_try).min();
            let changed = tokio::select! {
                changed = readings.changed() => changed,
                changed = objects.changed() => changed,
                () = wait_until(next) => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Does the next step for each wish of the object.
    async fn heed_all(&mut self, object: &NodeStorage, reading: &Reading, node: &ObjectReference) {
        let mut wishes: Vec<_> = object.disk_wishes(self.flavor).map(|(uuid, text)| Wish::Of(uuid, text)).collect();
        wishes.extend(object.disks_to_add(self.flavor).into_iter().map(Wish::Add));
        let empty = NodeStorageStatus::default();
        let told = object.status.as_ref().unwrap_or(&empty);
        if self.uid != object.metadata.uid {
            self.uid.clone_from(&object.metadata.uid);
            // What was done before this agent was started. An addition that was refused is tried again
            let is_kept = |told: &&DiskWishStatus| wishes.iter().any(|wish| wish.is_told(told) && !wish.is_addition());
            self.entries = told.disk_wishes.iter().filter(is_kept).cloned().map(Entry::from).collect();
        }
        self.forget_others(&wishes, reading);
        self.tell();
        for wish in wishes {
            self.heed_wish(wish, object, told, reading, node).await;
            self.tell();
        }
    }

    /// Forgets wishes that do not stand any more, but for the last ones that were refused and are not tried again.
    fn forget_others(&mut self, wishes: &[Wish<'_>], reading: &Reading) {
        let is_settled = |entry: &Entry| reading.status.as_ref().is_some_and(|status| entry.is_settled(status));
        self.entries.retain_mut(|entry| {
            let stands = wishes.iter().any(|wish| entry.is_of(*wish));
            entry.see(stands) && (stands || (entry.is_refused_for_good() && !is_settled(entry)))
        });
        let refused = self.entries.iter().filter(|entry| entry.is_refused_for_good()).count();
        let mut too_many = refused.saturating_sub(MOST_REFUSED);
        self.entries.retain(|entry| {
            let is_dropped = too_many > 0 && entry.is_refused_for_good();
            too_many -= usize::from(is_dropped);
            !is_dropped
        });
    }

    /// Does the next step for a wish.
    async fn heed_wish(
        &mut self,
        wish: Wish<'_>,
        object: &NodeStorage,
        told: &NodeStorageStatus,
        reading: &Reading,
        node: &ObjectReference,
    ) {
        let place = self.entries.iter().position(|entry| entry.is_of(wish));
        let mut entry = place.map_or_else(|| Entry::new(wish), |place| self.entries.remove(place));
        entry.name_disk(reading);
        let mut step = wish.next_step(&entry.status, told, reading);
        if let Step::Call(call) = &step
            && entry.is_due()
        {
            entry.begin_try();
            let answer = self.ask(call).await;
            entry.set_answer(answer.as_ref().err());
            step = wish.next_step(&entry.status, told, reading);
        }
        match step {
            Step::Wait(why) => {
                entry.wait(why);
                entry.rest();
            }
            Step::Refuse(why) => {
                entry.refuse(&why);
                entry.rest();
            }
            Step::Stand => entry.rest(),
            Step::TakeOff if entry.is_due() => {
                entry.begin_try();
                if self.take_off(wish, object).await {
                    self.publish(wish, &entry, node).await;
                }
            }
            Step::TakeOff | Step::Call(_) => {}
        }
        self.entries.push(entry);
    }

    async fn ask(&self, call: &DiskCall) -> Result<(), LvmdError> {
        let answer = match call.clone() {
            DiskCall::Add(request) => self.lvmd.add_disk(request).await,
            DiskCall::Evacuate(request) => self.lvmd.evacuate_disk(request).await,
            DiskCall::Stop(request) => self.lvmd.stop_evacuation(request).await,
            DiskCall::Replace(request) => self.lvmd.replace_missing_disk(request).await,
        };
        match &answer {
            Ok(()) => tracing::info!(?call, "lvmd has taken what is wished of a disk"),
            Err(error) => {
                tracing::info!(?call, error = error_chain(error), "lvmd has not taken what is wished of a disk");
            }
        }
        answer
    }

    /// Takes a wish off the object. Returns whether it stood there.
    async fn take_off(&self, wish: Wish<'_>, object: &NodeStorage) -> bool {
        let key = match wish {
            Wish::Of(uuid, _) => self.flavor.disk_wish(uuid),
            Wish::Add(_) => self.flavor.add_disks().to_owned(),
        };
        let annotations = object.metadata.annotations.as_ref();
        let value = annotations.and_then(|annotations| annotations.get(&key)).map(String::as_str).unwrap_or_default();
        let others = value.split(',').filter(|other| wish.is_addition() && other.trim() != wish.disk());
        let left = others.collect::<Vec<_>>().join(",");
        let left = Some(left.as_str()).filter(|left| !left.trim_matches([',', ' ']).is_empty());
        let patch = json_patch(take_annotation_off(&object.metadata, &key, value, left));
        let params = PatchParams::default();
        match api_server::call(DEADLINE, self.api.patch_metadata(object.name(), &params, &patch)).await {
            Ok(_) => true,
            // Somebody has changed it meanwhile, or it is off already: the watch is about to say so
            Err(error) if matches!(error.status(), Some(404 | 409 | 422)) => false,
            Err(error) => {
                tracing::warn!(
                    annotation = key,
                    error = error_chain(&error),
                    "cannot take a fulfilled wish about a disk off the node's NodeStorage; if that is forbidden, allow \
                     patch of nodestorages in the ClusterRole; trying again"
                );
                false
            }
        }
    }

    /// Publishes what was fulfilled and cannot be seen in the status any more.
    async fn publish(&self, wish: Wish<'_>, entry: &Entry, node: &ObjectReference) {
        let Wish::Of(_, text) = wish else { return };
        // The status reports a refusal
        if entry.status.is_refused() {
            return;
        }
        let disk = &entry.status.message;
        match text.parse() {
            Ok(DiskWish::Remove { .. }) => {
                self.events.disk_removed(node, &format!("{disk}: it is empty, and has left the group")).await;
            }
            Ok(DiskWish::Replace) => {
                let message = format!("{disk}: what it had is on other disks, and the group has forgotten it");
                self.events.disk_replaced(node, &message).await;
            }
            Ok(DiskWish::Evacuate { .. } | DiskWish::Stop) | Err(_) => {}
        }
    }

    /// Sends what has become of the wishes to the writer of the status.
    fn tell(&self) {
        let mut wishes: Vec<_> = self.entries.iter().map(|entry| entry.status.clone()).collect();
        wishes.sort_by(|one, other| (&one.disk, &one.wish).cmp(&(&other.disk, &other.wish)));
        let told = Some(Told { uid: self.uid.clone(), wishes });
        self.told.send_if_modified(|before| {
            let differs = *before != told;
            *before = told;
            differs
        });
    }
}

/// Waits until then, or for ever.
async fn wait_until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next).await,
        None => std::future::pending().await,
    }
}
