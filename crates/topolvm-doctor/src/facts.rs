//! The state of the cluster that the checks evaluate.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;
use topolvm_api::{ApiFlavor, DiskOperation, LogicalVolume, NodeStorage, SnapshotContent};

use crate::csi_persistent_volume::CsiPersistentVolume;
use crate::metrics::Metrics;
use crate::mode::Mode;
use crate::read_error::{ReadResult, read};
use crate::server_version::{OLDEST, Version};
use crate::snapshots::{Snapshot, SnapshotClass};
use crate::webhooks::Backend;
use crate::workloads::{Right, Role, Workload};

/// State of the cluster; each part is an error if it could not be read.
#[derive(Clone, Debug)]
pub struct Facts {
    /// API group of the installation.
    pub flavor: ApiFlavor,
    /// Namespace of our programs.
    pub namespace: String,
    /// Time at which the facts were read, by the clock of the API server if it reports one.
    pub now: Timestamp,
    /// Scheduling mode, if the reader of the facts knows it; else it is derived from the arguments of the controllers
    /// and from the webhooks.
    pub mode: Option<Mode>,
    /// Reason for which kube-scheduler does not call the extender, as the controllers report it; none if they report
    /// that it does, or report nothing.
    pub unproven: ReadResult<Option<String>>,
    /// True if the reader of the facts publishes free space itself; else this is derived from the arguments of the
    /// controllers.
    pub publishes_capacity: bool,
    /// True if the reader of the facts provisions volumes itself; else this is derived from the arguments of the
    /// controllers.
    pub provisions_volumes: bool,
    /// Version of the API server.
    pub version: ReadResult<Version>,
    /// Definitions of LogicalVolume, of both API groups.
    pub definitions: ReadResult<Vec<CustomResourceDefinition>>,
    /// All CSIDrivers.
    pub drivers: ReadResult<Vec<CSIDriver>>,
    /// All CSINodes.
    pub csi_nodes: ReadResult<Vec<CSINode>>,
    /// All Nodes.
    pub nodes: ReadResult<Vec<Node>>,
    /// Deployments and DaemonSets that run our programs, in any namespace.
    pub workloads: ReadResult<Vec<Workload>>,
    /// Leases of the controllers, in any namespace.
    pub leases: ReadResult<Vec<Lease>>,
    /// Leases of csi-provisioner for our driver, in any namespace.
    pub provisioner_leases: ReadResult<Vec<Lease>>,
    /// All configurations of mutating webhooks.
    pub webhooks: ReadResult<Vec<MutatingWebhookConfiguration>>,
    /// Services of our webhooks.
    pub backends: Vec<Backend>,
    /// All StorageClasses.
    pub classes: ReadResult<Vec<StorageClass>>,
    /// All Namespaces.
    pub namespaces: ReadResult<Vec<Namespace>>,
    /// Rights that our programs need.
    pub rights: ReadResult<Vec<Right>>,
    /// Pods of all namespaces. They must have been listed before the claims.
    pub pods: ReadResult<Vec<Pod>>,
    /// Claims of all namespaces. They must have been listed before PersistentVolumes and LogicalVolumes.
    pub claims: ReadResult<Vec<PersistentVolumeClaim>>,
    /// All PersistentVolumes.
    pub persistent: ReadResult<Vec<CsiPersistentVolume>>,
    /// LogicalVolumes of the installation's API group: the controller has them in its cache, tens of thousands in a
    /// large cluster.
    pub volumes: ReadResult<Vec<Arc<LogicalVolume>>>,
    /// CSIStorageCapacity objects of all namespaces.
    pub capacities: ReadResult<Vec<CSIStorageCapacity>>,
    /// Names of the resources of snapshots that are served.
    pub snapshot_resources: ReadResult<Vec<String>>,
    /// All VolumeSnapshotClasses; empty where they are not served.
    pub snapshot_classes: ReadResult<Vec<SnapshotClass>>,
    /// VolumeSnapshots of all namespaces; empty where they are not served.
    pub snapshots: ReadResult<Vec<Snapshot>>,
    /// All VolumeSnapshotContents; empty where they are not served.
    pub snapshot_contents: ReadResult<Vec<SnapshotContent>>,
    /// Events with the reason `FailedCreate`, with which controllers report pods that they could not create.
    pub creation_events: ReadResult<Vec<Event>>,
    /// Metrics of the pods of agents and lvmd, as far as they can be had.
    pub metrics: Vec<Metrics>,
    /// NodeStorages of the installation's API group; empty where there are no such objects.
    pub node_storage: ReadResult<Vec<NodeStorage>>,
    /// DiskOperations of the installation's API group; empty where there are no such objects.
    pub disk_operations: ReadResult<Vec<DiskOperation>>,
}

impl Facts {
    /// Makes the facts of a cluster in which nothing is.
    pub fn empty(flavor: ApiFlavor, namespace: &str, now: Timestamp) -> Self {
        Self {
            flavor,
            namespace: namespace.to_owned(),
            now,
            mode: None,
            unproven: Ok(None),
            publishes_capacity: false,
            provisions_volumes: false,
            version: Ok((OLDEST.0, OLDEST.1, String::new())),
            definitions: Ok(Vec::new()),
            drivers: Ok(Vec::new()),
            csi_nodes: Ok(Vec::new()),
            nodes: Ok(Vec::new()),
            workloads: Ok(Vec::new()),
            leases: Ok(Vec::new()),
            provisioner_leases: Ok(Vec::new()),
            webhooks: Ok(Vec::new()),
            backends: Vec::new(),
            classes: Ok(Vec::new()),
            namespaces: Ok(Vec::new()),
            rights: Ok(Vec::new()),
            pods: Ok(Vec::new()),
            claims: Ok(Vec::new()),
            persistent: Ok(Vec::new()),
            volumes: Ok(Vec::new()),
            capacities: Ok(Vec::new()),
            snapshot_resources: Ok(Vec::new()),
            snapshot_classes: Ok(Vec::new()),
            snapshots: Ok(Vec::new()),
            snapshot_contents: Ok(Vec::new()),
            creation_events: Ok(Vec::new()),
            metrics: Vec::new(),
            node_storage: Ok(Vec::new()),
            disk_operations: Ok(Vec::new()),
        }
    }

    /// Returns the service account of each program with roles, that of our manifests where no workload runs it.
    pub fn service_accounts(&self) -> [(Role, String); 2] {
        [Role::Controller, Role::Node].map(|role| {
            let mut ours = self.workloads_of(role).unwrap_or_default().into_iter();
            (role, ours.next().map_or_else(|| role.program().to_owned(), |workload| workload.account.clone()))
        })
    }

    /// Returns the workloads in the namespace of the programs that run this one.
    pub(crate) fn workloads_of(&self, role: Role) -> ReadResult<Vec<&Workload>> {
        let workloads = read(&self.workloads)?;
        let is_ours = |workload: &&Workload| workload.role == role && workload.namespace == self.namespace;
        Ok(workloads.iter().filter(is_ours).collect())
    }

    /// Returns the StorageClasses of our driver.
    pub(crate) fn our_classes(&self) -> ReadResult<Vec<&StorageClass>> {
        let is_ours = |class: &&StorageClass| class.provisioner == self.flavor.driver_name();
        Ok(read(&self.classes)?.iter().filter(is_ours).collect())
    }

    /// Returns the names of the nodes on which kubelet has registered the driver.
    pub(crate) fn registered_nodes(&self) -> ReadResult<BTreeSet<String>> {
        let has_driver = |node: &&CSINode| node.spec.drivers.iter().any(|one| one.name == self.flavor.driver_name());
        Ok(read(&self.csi_nodes)?.iter().filter(has_driver).map(ResourceExt::name_any).collect())
    }

    /// Returns true if a time is at least so long ago; a missing time is not.
    pub(crate) fn is_older(&self, time: Option<&Time>, than: SignedDuration) -> bool {
        time.is_some_and(|time| self.now.duration_since(time.0) >= than)
    }
}
