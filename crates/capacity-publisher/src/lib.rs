//! Publishes the free space of each node as CSIStorageCapacity objects, with which kube-scheduler finds nodes with
//! enough free space: one for each StorageClass of this driver whose claims wait for a pod, on each node.
//!
//! It replaces external-provisioner's `--enable-capacity`, which polls every minute and after its own calls only. The
//! objects are the same, with the same labels: after a switch between the two, each continues with the objects of the
//! other. It writes only objects that differ from the existing ones, soon after something has changed.
//!
//! `object` reads and builds the objects, `plan` compares, `published` is the cache of the watch.

mod object;
mod plan;
mod published;

use std::collections::HashMap;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, CREATED_BY};
use topolvm_capacity::{Capacity, Exemption, MinimumAllocation};
use topolvm_kube::{Owner, find_owner, watch_and_reconcile, watch_selected};
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

use object::{CapacityObject, DRIVER_LABEL, Segment};
use plan::{Change, plan_changes};
use published::PublishedObjects;

/// The time in which changes are gathered before they are written: a burst of volumes changes the capacity of a node
/// many times.
const GATHER: Duration = Duration::from_millis(100);

/// Writes at the same time.
const CONCURRENT_WRITES: usize = 16;

/// Writes that are prepared at the same time.
const PREPARED_WRITES: usize = 128;

/// The time that one write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pauses after writes that have failed.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// The publisher of capacity.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
#[derive(Clone)]
pub struct CapacityPublisher {
    /// Client of the API server.
    pub client: Client,
    /// API group of the driver.
    pub flavor: ApiFlavor,
    /// Smallest sizes of volumes.
    pub minimums: MinimumAllocation,
    /// Free space of the nodes.
    pub capacity: Capacity,
    /// The namespace of this pod and of the objects.
    pub namespace: String,
    /// The name of this pod, whose owner owns the objects.
    pub pod: String,
}

/// A write that was not done.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(
        "cannot {action} a CSIStorageCapacity object; check that the Role allows create, delete, list, patch and watch"
    )]
    Api { action: &'static str, source: Box<kube::Error> },
    #[error("cannot {action} a CSIStorageCapacity object: no answer in time")]
    Timeout { action: &'static str },
}

impl CapacityPublisher {
    /// Publishes until `term` is cancelled.
    pub async fn run(self, term: CancellationToken) -> anyhow::Result<()> {
        let objects = PublishedObjects::default();
        let (change, changed) = watch::channel(());
        let selection = watcher::Config::default().labels(&format!("{DRIVER_LABEL}={}", self.flavor.driver_name()));
        let (cache, flavor) = (objects.clone(), self.flavor);
        let watch = watch_selected("CSIStorageCapacities", self.api(), selection, term.clone(), move |event| {
            cache.apply(flavor, &event);
            change.send_replace(());
        });
        // Dropped wherever it is when the term ends: the next leader compares everything again
        let publishing = term.run_until_cancelled(self.publish(objects, changed)).map(drop);
        watch_and_reconcile(watch, Box::pin(publishing)).await
    }

    fn api(&self) -> Api<CSIStorageCapacity> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Writes what differs, again and again. Ends when the watch has ended.
    async fn publish(&self, objects: PublishedObjects, mut changed: watch::Receiver<()>) {
        let mut capacities = self.capacity.changes();
        let owner = find_owner(&self.client, &self.namespace, &self.pod).await;
        let mut backoff = RETRY;
        loop {
            capacities.mark_unchanged();
            changed.mark_unchanged();
            let mut retry_at = None;
            // Before, a reserved or published capacity would be missed
            if self.capacity.is_listed() && objects.is_listed() {
                let wanted = self.wanted();
                let changes = objects.read(|published| plan_changes(&wanted, published, owner.as_ref()));
                if self.write_all(&changes, &objects, owner.as_ref()).await {
                    backoff.reset();
                } else {
                    retry_at = Some(Instant::now() + backoff.fail());
                }
            }
            let release = [retry_at, self.capacity.next_release()].into_iter().flatten().min();
            tokio::select! {
                ended = changed.changed() => if ended.is_err() { return },
                _ = capacities.changed() => {}
                () = sleep_until(release) => {}
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Computes the objects that there should be: bytes by StorageClass and node.
    fn wanted(&self) -> HashMap<Segment, u64> {
        let segments = self.capacity.segments();
        let none = Exemption::default();
        let mut wanted = HashMap::new();
        // As external-provisioner: no scheduler asks for those that bind immediately
        for (class, parameters) in self.capacity.classes().into_iter().filter(|(_, class)| class.waits_for_consumer) {
            let minimum = parameters.minimum_volume_size(&self.minimums);
            for node in &segments {
                let free = self.capacity.free_bytes(node, &parameters.classes, &none).unwrap_or(0);
                // Less than the smallest volume is nothing, as GetCapacity answers
                let usable = if free < minimum { 0 } else { free };
                wanted.insert(Segment { class: class.clone(), node: node.clone() }, usable);
            }
        }
        wanted
    }

    /// Writes all changes, and returns whether all have succeeded.
    async fn write_all(&self, changes: &[Change], objects: &PublishedObjects, owner: Option<&Owner>) -> bool {
        let mut errors = Vec::new();
        // Not all at once: a write takes some memory while it waits
        for part in changes.chunks(PREPARED_WRITES) {
            let writes: Vec<_> = part.iter().map(|change| self.write(change, objects, owner)).collect();
            let results = futures::stream::iter(writes).buffer_unordered(CONCURRENT_WRITES);
            errors.extend(results.filter_map(|result| std::future::ready(result.err())).collect::<Vec<_>>().await);
        }
        if let Some(error) = errors.first() {
            let (failed, all) = (errors.len(), changes.len());
            tracing::warn!(
                failed,
                all,
                error = error_chain(error),
                "the published capacity is out of date; trying again"
            );
        } else if !changes.is_empty() {
            tracing::debug!(writes = changes.len(), "published capacity");
        }
        errors.is_empty()
    }

    async fn write(
        &self,
        change: &Change,
        objects: &PublishedObjects,
        owner: Option<&Owner>,
    ) -> Result<(), WriteError> {
        let api = self.api();
        let manager = Some(CREATED_BY.to_owned());
        match change {
            Change::Create { segment, bytes } => {
                let object = CapacityObject::build(self.flavor, segment, *bytes, owner);
                let params = PostParams { field_manager: manager, ..PostParams::default() };
                let created = with_timeout("create", api.create(&params, &object)).await?;
                objects.written(self.flavor, &created);
            }
            Change::Update { name, bytes } => {
                let patch = Patch::Merge(CapacityObject::patch(*bytes, owner));
                let params = PatchParams { field_manager: manager, ..PatchParams::default() };
                match none_if_gone(with_timeout("patch", api.patch(name, &params, &patch)).await)? {
                    Some(patched) => objects.written(self.flavor, &patched),
                    None => objects.removed(name),
                }
            }
            Change::Delete { name, uid } => {
                let exactly = Preconditions { uid: uid.clone(), resource_version: None };
                let params = DeleteParams::default().preconditions(exactly);
                none_if_gone(with_timeout("delete", api.delete(name, &params)).await)?;
                objects.removed(name);
            }
        }
        Ok(())
    }
}

async fn with_timeout<T>(action: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
    match tokio::time::timeout(WRITE_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|source| WriteError::Api { action, source: Box::new(source) }),
        Err(_elapsed) => Err(WriteError::Timeout { action }),
    }
}

/// Returns `None` for an object that no longer exists: the next comparison shows what to do instead.
fn none_if_gone<T>(result: Result<T, WriteError>) -> Result<Option<T>, WriteError> {
    let is_gone = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
    match result {
        Err(WriteError::Api { source, .. }) if is_gone(&source) => Ok(None),
        other => other.map(Some),
    }
}

/// Sleeps until this time; indefinitely without one.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
