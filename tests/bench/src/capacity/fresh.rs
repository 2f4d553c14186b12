//! Measures on a real node the time after which published free space is that of LVM again: after volumes of the product
//! are created, grown, snapshotted and removed, and after logical volumes are created and removed by hand.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use testbed::topolvm::{self, THIN_CLASS, Topolvm};
use tokio::runtime;
use topolvm_api::{ApiFlavor, LogicalVolume, LogicalVolumeSpec, format_bytes, parse_bytes};

use super::{NAMESPACE, publishing};
use crate::figure::Figure;
use system_tests::manifests::storage_class;

const GIB: u64 = 1 << 30;
const TIMES: u8 = 3;
const VG: &str = "myvg1";
const VOLUME: &str = "pvc-fresh";
const SNAPSHOT: &str = "snapshot-fresh";
/// StorageClass of the manifests, of the default device class.
const DEFAULT: &str = "topolvm-provisioner";

/// Timeout of each step.
const LIMIT: Duration = Duration::from_mins(1);

/// Starts a cluster with one node and measures it.
pub(super) fn run(directory: &Path) -> Result<Vec<Figure>> {
    let topolvm = topolvm::up_with(directory, &publishing(1)?.with_thin_class())?;
    let thin = storage_class(ApiFlavor::TopoLvm, THIN_CLASS, Some(THIN_CLASS), false).to_string();
    let figures = topolvm.cluster.apply(&thin).and_then(|_| measure(&topolvm));
    topolvm.cluster.down(None)?;
    figures
}

fn measure(topolvm: &Topolvm) -> Result<Vec<Figure>> {
    let node = topolvm.nodes.first().context("the cluster has no node")?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    let client = runtime.block_on(topolvm.cluster.client())?;
    let published = |storage_class, device_class| Published {
        client: client.clone(),
        node: node.name().to_owned(),
        storage_class,
        device_class,
    };
    let (thick, thin) = (published(DEFAULT, ""), published(THIN_CLASS, THIN_CLASS));
    let (all, all_thin) = (runtime.block_on(thick.first())?, runtime.block_on(thin.first())?);
    let (mut own, mut snapshot, mut by_hand): (f64, f64, f64) = (0.0, 0.0, 0.0);
    for _ in 0..TIMES {
        own = own.max(runtime.block_on(time_own_volume(&thick, all))?);
        snapshot = snapshot.max(runtime.block_on(time_snapshot(&thin, all_thin))?);
        for (command, free) in [("lvcreate -qy -L1g -n by-hand", all - GIB), ("lvremove -qy", all)] {
            let target = if free == all { format!("{VG}/by-hand") } else { VG.to_owned() };
            node.script(&format!("{command} {target}"))?;
            by_hand = by_hand.max(runtime.block_on(thick.time_until(free))?);
        }
    }
    let figure = |name, value| Figure { name, value, unit: "ms", goal: 2000.0 };
    Ok(vec![
        figure("capacity.fresh.own_ms", own),
        figure("capacity.fresh.snapshot_ms", snapshot),
        figure("capacity.fresh.by_hand_ms", by_hand),
    ])
}

/// Creates, grows and removes a volume. Returns the longest time from the new size in its status until its publication.
async fn time_own_volume(published: &Published, all: u64) -> Result<f64> {
    let volumes = published.volumes();
    published.create(VOLUME, "").await?;
    wait_for_size(&volumes, VOLUME, Some(GIB)).await?;
    let made = published.time_until(all - GIB).await?;
    let larger = Patch::Merge(json!({"spec": {"size": format_bytes(2 * GIB)}}));
    volumes.patch(VOLUME, &PatchParams::default(), &larger).await.context("grow a LogicalVolume")?;
    wait_for_size(&volumes, VOLUME, Some(2 * GIB)).await?;
    let grown = published.time_until(all - 2 * GIB).await?;
    Ok(made.max(grown).max(published.time_deletion(VOLUME, all).await?))
}

/// Creates and removes a snapshot, which takes as much capacity as its source, and returns the longest time as
/// [`time_own_volume`] does.
async fn time_snapshot(published: &Published, all: u64) -> Result<f64> {
    published.create(VOLUME, "").await?;
    wait_for_size(&published.volumes(), VOLUME, Some(GIB)).await?;
    published.time_until(all - GIB).await?;
    published.create(SNAPSHOT, VOLUME).await?;
    wait_for_size(&published.volumes(), SNAPSHOT, Some(GIB)).await?;
    let made = published.time_until(all - 2 * GIB).await?;
    let removed = published.time_deletion(SNAPSHOT, all - GIB).await?;
    published.time_deletion(VOLUME, all).await?;
    Ok(made.max(removed))
}

/// Waits until the volume has this size, or with `None` until it is deleted.
async fn wait_for_size(volumes: &Api<LogicalVolume>, name: &str, size: Option<u64>) -> Result<()> {
    let start = Instant::now();
    loop {
        let volume = volumes.get_opt(name).await.context("read a LogicalVolume")?;
        let is_there = volume.is_some();
        if volume.and_then(|volume| volume.current_bytes()) == size && is_there == size.is_some() {
            return Ok(());
        }
        pause(start).await?;
    }
}

/// The free bytes that are published of a node, for a StorageClass and its device class.
struct Published {
    client: Client,
    node: String,
    storage_class: &'static str,
    /// The node's default class if empty.
    device_class: &'static str,
}

impl Published {
    fn volumes(&self) -> Api<LogicalVolume> {
        Api::all_with(self.client.clone(), &ApiFlavor::TopoLvm)
    }

    /// Creates a LogicalVolume of one GiB; with a source, as a snapshot of it.
    async fn create(&self, name: &str, source: &str) -> Result<()> {
        let spec = LogicalVolumeSpec {
            name: name.to_owned(),
            node_name: self.node.clone(),
            size: format_bytes(GIB),
            device_class: self.device_class.to_owned(),
            source: source.to_owned(),
            access_type: if source.is_empty() { String::new() } else { "ro".to_owned() },
            ..LogicalVolumeSpec::default()
        };
        let volume = LogicalVolume::new(ApiFlavor::TopoLvm, spec);
        self.volumes().create(&PostParams::default(), &volume).await.context("create a LogicalVolume").map(drop)
    }

    /// Deletes a LogicalVolume, and returns the milliseconds from its removal until the free space is published.
    async fn time_deletion(&self, name: &str, bytes: u64) -> Result<f64> {
        self.volumes().delete(name, &DeleteParams::default()).await.context("delete a LogicalVolume")?;
        wait_for_size(&self.volumes(), name, None).await?;
        self.time_until(bytes).await
    }

    /// Waits for the first published value, and returns it.
    async fn first(&self) -> Result<u64> {
        let start = Instant::now();
        loop {
            if let (Some(object), Some(annotation)) = self.read().await?
                && object == annotation
                && object > 0
            {
                return Ok(object);
            }
            pause(start).await?;
        }
    }

    /// Returns the milliseconds until this is published by the node and for the scheduler.
    async fn time_until(&self, bytes: u64) -> Result<f64> {
        let start = Instant::now();
        while self.read().await? != (Some(bytes), Some(bytes)) {
            pause(start).await?;
        }
        Ok(start.elapsed().as_secs_f64() * 1000.0)
    }

    /// Reads the free space in the object and in the annotation of the Node.
    async fn read(&self) -> Result<(Option<u64>, Option<u64>)> {
        let objects: Api<CSIStorageCapacity> = Api::namespaced(self.client.clone(), NAMESPACE);
        let objects = objects.list(&ListParams::default()).await.context("list CSIStorageCapacity objects")?;
        let object = objects.items.iter().find(|object| object.storage_class_name == self.storage_class);
        let object = object.and_then(|object| parse_bytes(object.capacity.as_ref()?).ok());
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get_metadata(&self.node).await.context("read the Node")?;
        let annotation = node.annotations().get(&ApiFlavor::TopoLvm.capacity_annotation(self.device_class));
        Ok((object, annotation.and_then(|bytes| bytes.parse().ok())))
    }
}

/// Pauses before the next poll.
async fn pause(start: Instant) -> Result<()> {
    ensure!(start.elapsed() < LIMIT, "it has not happened in {LIMIT:?}");
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(())
}
