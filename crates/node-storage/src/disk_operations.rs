//! Carries out the `DiskOperation` objects of this node: asks lvmd for what each requests, and writes its state to the
//! status.
//!
//! Only an object requests something. That one is gone means nothing: its definition may have been deleted in the
//! middle of an evacuation, which LVM has on record.

mod decision;
mod disk;
mod entry;
mod operation_watch;

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use lvmd_client::{LvmdClient, LvmdError};
use tokio::sync::watch;
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, DiskOperation, DiskOperationStatus, DiskOperationType, EvacuationStatus, parse_bytes};
use topolvm_kube::api_server::ApiError;
use topolvm_kube::node_reference;
use topolvm_runtime::{CancellationToken, Tasks, error_chain};

use crate::disks::cut;
use crate::events::Events;
use crate::lvmd_watch::Reading;
use crate::operation_objects::{OperationObjects, time_to_live};
use decision::{CANCELED, DiskCall, End, RecordedDisk, Situation, Step, next_step};
use entry::Entry;
use operation_watch::Operations;

const UNIMPLEMENTED: &str = "lvmd on the node does not support this operation; install the version of topolvm-node";
/// Shortest time between two writes of nothing but progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Carries out the disk operations of a node.
#[derive(Debug)]
pub(crate) struct DiskOperations {
    flavor: ApiFlavor,
    lvmd: LvmdClient,
    objects: OperationObjects<DiskOperation>,
    events: Events,
    now: fn() -> Timestamp,
    /// By UID.
    entries: HashMap<String, Entry>,
}

impl DiskOperations {
    /// Makes the operations of the node, of which nothing is known yet.
    pub(crate) fn new(
        flavor: ApiFlavor,
        client: Client,
        lvmd: LvmdClient,
        events: Events,
        now: fn() -> Timestamp,
    ) -> Self {
        let api = Api::all_with(client, &flavor);
        let objects = OperationObjects::new(api, flavor.disk_operation_finalizer());
        Self { flavor, lvmd, objects, events, now, entries: HashMap::new() }
    }

    /// Starts the tasks.
    pub(crate) fn start(
        self,
        client: Client,
        node: String,
        readings: watch::Receiver<Option<Reading>>,
        nodes: watch::Receiver<Option<PartialObjectMeta<Node>>>,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) {
        let (sender, operations) = watch::channel(None);
        let api = Api::all_with(client, &self.flavor);
        tasks.spawn("own DiskOperations", operation_watch::follow(api, node, sender, shutdown.clone()));
        let until_shutdown = shutdown.clone();
        let running = self.run(readings, nodes, operations);
        tasks.spawn("disk operations", async move {
            until_shutdown.run_until_cancelled(running).await;
            Ok(())
        });
    }

    /// Carries out operations until one of the senders is gone.
    async fn run(
        mut self,
        mut readings: watch::Receiver<Option<Reading>>,
        nodes: watch::Receiver<Option<PartialObjectMeta<Node>>>,
        mut operations: watch::Receiver<Option<Operations>>,
    ) {
        loop {
            let reading = readings.borrow_and_update().clone();
            let seen = operations.borrow_and_update().clone();
            if let (Some(seen), Some(reading)) = (seen, reading) {
                let node = nodes.borrow().as_ref().map(node_reference).unwrap_or_default();
                Box::pin(self.advance_all(&seen, &reading, &node)).await;
            }
            let next = self.entries.values().filter_map(Entry::next).min();
            let changed = tokio::select! {
                changed = readings.changed() => changed,
                changed = operations.changed() => changed,
                () = wait_until(next) => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Does what can be done now for each operation, the oldest first.
    async fn advance_all(&mut self, seen: &Operations, reading: &Reading, node: &ObjectReference) {
        let is_seen = |uid: &str| seen.values().any(|operation| operation.metadata.uid.as_deref() == Some(uid));
        self.entries.retain(|uid, _| is_seen(uid));
        let mut all: Vec<_> = seen.values().map(|seen| self.entry(seen).newest(seen)).collect();
        all.sort_by_key(|operation| (operation.metadata.creation_timestamp.clone(), operation.name().to_owned()));
        for place in 0..all.len() {
            let Some(operation) = all.get(place).cloned() else { return };
            let others = all.iter().enumerate().filter(|(other, operation)| {
                let comes_before = *other < place || operation.disk_uuid().is_some();
                *other != place && comes_before && !operation.phase().is_final()
            });
            let others: Vec<_> = others.map(|(_, other)| other).collect();
            let advanced = self.advance(operation, &others, reading, node).await;
            if let Some(known) = all.get_mut(place) {
                *known = advanced;
            }
        }
    }

    fn entry(&mut self, operation: &DiskOperation) -> &mut Entry {
        self.entries.entry(operation.metadata.uid.clone().unwrap_or_default()).or_default()
    }

    /// Does one step after the other. Returns the object as it was written last.
    async fn advance(
        &mut self,
        mut operation: DiskOperation,
        others: &[&DiskOperation],
        reading: &Reading,
        node: &ObjectReference,
    ) -> DiskOperation {
        let uid = operation.metadata.uid.clone().unwrap_or_default();
        let mut entry = self.entries.remove(&uid).unwrap_or_default();
        while entry.writes.is_due() {
            match self.do_step(&operation, &mut entry, others, reading, node).await {
                Ok(Some(written)) => {
                    entry.writes.reset();
                    entry.written = Some(written.clone());
                    operation = written;
                }
                Ok(None) => break,
                Err(error) => {
                    if entry.writes.is_first() {
                        tracing::warn!(
                            operation = operation.name(),
                            error = error_chain(&error),
                            "cannot write the DiskOperation; if that is forbidden, apply the ClusterRole and the \
                             admission policy of this version; trying again"
                        );
                    }
                    entry.writes.postpone();
                }
            }
        }
        self.entries.insert(uid, entry);
        operation
    }

    /// Does the next step. Returns the written object; `None` if there is nothing more to do now.
    async fn do_step(
        &self,
        operation: &DiskOperation,
        entry: &mut Entry,
        others: &[&DiskOperation],
        reading: &Reading,
        node: &ObjectReference,
    ) -> Result<Option<DiskOperation>, ApiError> {
        let finalizer = self.flavor.disk_operation_finalizer();
        let end = entry.end.take_if(|_| !operation.phase().is_final());
        let step = end.map_or_else(|| next_step(operation, Situation { others, finalizer, reading }), Step::End);
        let mut status = operation.status.clone().unwrap_or_default();
        match step {
            Step::Rest => return self.delete_expired(operation, entry).await,
            Step::Release => return self.objects.release(&operation.metadata).await,
            Step::Hold => return self.objects.hold(&operation.metadata).await,
            Step::Wait(why) => status.operation.wait(why),
            Step::Record(RecordedDisk { uuid, volume_group, path }) => {
                (status.disk_uuid, status.volume_group, status.device_path) = (uuid, volume_group, path);
            }
            Step::Follow(evacuation) => {
                entry.calls.reset();
                if !self.follow(&mut status, &evacuation, entry) {
                    return Ok(None);
                }
            }
            Step::Call(_) if !entry.calls.is_due() => return Ok(None),
            Step::Call(call) => {
                entry.calls.postpone();
                let answer = self.ask(operation, &call).await;
                if let Some(end) = self.record_answer(operation, &call, answer, &mut status) {
                    return self.end(operation, end, entry, status, node).await;
                }
            }
            Step::End(end) => return self.end(operation, end, entry, status, node).await,
        }
        self.write(operation, &status).await
    }

    /// Adds the state of an evacuation to the status. Returns whether it is to be written now.
    fn follow(&self, status: &mut DiskOperationStatus, evacuation: &EvacuationStatus, entry: &mut Entry) -> bool {
        let before = status.clone();
        let remaining = evacuation.remaining.as_ref();
        if let Some(bytes) = remaining.and_then(|remaining| parse_bytes(remaining).ok()) {
            status.operation.advance(bytes);
        }
        if evacuation.is_blocked() {
            status.operation.block("EvacuationBlocked", &evacuation.message, (self.now)());
        } else {
            let left = remaining.map_or_else(String::new, |remaining| format!("; {} left to move", remaining.0));
            let message = format!("moving the volumes to the other disks of {}{left}", status.volume_group);
            status.operation.run(&message, (self.now)());
        }
        let is_progress_alone = (before.operation.phase, &before.operation.conditions)
            == (status.operation.phase, &status.operation.conditions);
        let is_early = entry.progress_from.is_some_and(|from| from > Instant::now());
        let is_written = before != *status && !(is_progress_alone && is_early);
        if is_written {
            entry.progress_from = Some(Instant::now() + PROGRESS_INTERVAL);
        }
        is_written
    }

    async fn ask(&self, operation: &DiskOperation, call: &DiskCall) -> Result<(), LvmdError> {
        let answer = match call.clone() {
            DiskCall::Add(request) => self.lvmd.add_disk(request).await,
            DiskCall::Evacuate(request) => self.lvmd.evacuate_disk(request).await,
            DiskCall::Stop(request) => self.lvmd.stop_evacuation(request).await,
            DiskCall::Replace(request) => self.lvmd.replace_missing_disk(request).await,
        };
        let name = operation.name();
        match &answer {
            Ok(()) => tracing::info!(operation = name, ?call, "lvmd has accepted a disk operation"),
            Err(error) => {
                tracing::info!(operation = name, ?call, error = error_chain(error), "lvmd refuses a disk operation");
            }
        }
        answer
    }

    /// Records the answer of lvmd. Returns the end of the operation if it is one.
    fn record_answer(
        &self,
        operation: &DiskOperation,
        call: &DiskCall,
        answer: Result<(), LvmdError>,
        status: &mut DiskOperationStatus,
    ) -> Option<End> {
        let is_cancellation = operation.is_deleting();
        match answer {
            Ok(()) if is_cancellation => return Some(End::Canceled(CANCELED.to_owned())),
            Ok(()) if matches!(call, DiskCall::Add(_)) => {
                return Some(End::Succeeded("the disk has been added to its disk group".to_owned()));
            }
            Ok(()) => status.operation.run("lvmd has accepted the operation", (self.now)()),
            // It has left the group since lvmd's last report, perhaps by this operation: the next report decides
            Err(error) if error.is_disk_gone() => {}
            // An administrator deletes an object once: lvmd is asked until nothing is in the way
            Err(error) if is_cancellation || error.is_transient() => status.operation.wait(&cut(error_chain(&error))),
            Err(error) if error.is_unimplemented() => {
                return Some(End::Failed { reason: "Unsupported", message: UNIMPLEMENTED.to_owned() });
            }
            Err(error) => return Some(End::Failed { reason: "Refused", message: cut(error.detail()) }),
        }
        None
    }

    /// Writes the end of an operation, and publishes it.
    async fn end(
        &self,
        operation: &DiskOperation,
        end: End,
        entry: &mut Entry,
        mut status: DiskOperationStatus,
        node: &ObjectReference,
    ) -> Result<Option<DiskOperation>, ApiError> {
        let now = (self.now)();
        entry.end = Some(end.clone());
        match &end {
            End::Succeeded(message) => status.operation.succeed(message, now),
            End::Failed { reason, message } => status.operation.fail(reason, message, now),
            End::Canceled(message) => status.operation.cancel(message, now),
        }
        let written = self.write(operation, &status).await?;
        if written.is_some() {
            entry.end = None;
            let (name, phase) = (operation.name(), status.operation.phase);
            tracing::info!(operation = name, ?phase, message = status.operation.message, "a disk operation has ended");
            self.publish(operation, &end, node).await;
        }
        Ok(written)
    }

    /// Publishes an end that the status of the NodeStorage does not show.
    async fn publish(&self, operation: &DiskOperation, end: &End, node: &ObjectReference) {
        match (end, operation.spec.type_) {
            (End::Succeeded(message), DiskOperationType::Remove) => self.events.disk_removed(node, message).await,
            (End::Succeeded(message), DiskOperationType::Replace) => self.events.disk_replaced(node, message).await,
            (End::Failed { message, .. }, type_) => {
                let (name, type_, disk) = (operation.name(), type_.as_str(), &operation.spec.disk);
                let note = format!("DiskOperation {name} ({type_} of disk {disk}) has failed: {message}");
                self.events.disk_operation_failed(node, &note).await;
            }
            (End::Succeeded(_) | End::Canceled(_), _) => {}
        }
    }

    /// Deletes a finished operation when its time is over.
    async fn delete_expired(
        &self,
        operation: &DiskOperation,
        entry: &mut Entry,
    ) -> Result<Option<DiskOperation>, ApiError> {
        let ttl = operation.spec.ttl_seconds_after_finished;
        let status = operation.status.as_ref().filter(|_| !operation.is_deleting());
        let left = status.and_then(|status| time_to_live(&status.operation, ttl, (self.now)()));
        if left.is_some_and(|left| left.is_zero()) {
            self.objects.delete(&operation.metadata).await?;
            // The watch is about to show that it is gone
            entry.writes.postpone();
        }
        entry.expires = left.map(|left| Instant::now() + left);
        Ok(None)
    }

    /// Writes the status if it differs.
    async fn write(
        &self,
        operation: &DiskOperation,
        status: &DiskOperationStatus,
    ) -> Result<Option<DiskOperation>, ApiError> {
        if operation.status.as_ref() == Some(status) {
            return Ok(None);
        }
        self.objects.write_status(&operation.metadata, status).await
    }
}

/// Waits until then, or forever.
async fn wait_until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next).await,
        None => std::future::pending().await,
    }
}
