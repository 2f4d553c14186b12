//! The checks, in the order in which an administrator would make them.

mod api;
mod capacity;
mod classes;
mod copies;
mod disks;
mod driver;
mod kernels;
mod leases;
mod leftovers;
mod orphans;
mod placement;
mod programs;
mod recreation;
mod scheduling;
mod settings;
mod snapshots;
mod startup;
mod storage;
mod switch;
mod topology;
mod volumes;

use crate::check::{Check, CheckFn};

/// All checks.
pub(crate) const ALL: &[Check] = &[
    check(
        "api-server",
        "the version of the API server is supported",
        "the admission policy and the field selectors of the agents need Kubernetes features that older API servers \
         lack",
        api::version,
    ),
    check(
        "crd",
        "the CRD of LogicalVolume exists, is served, and has all fields that TopoLVM writes",
        "the API server drops unknown fields, and agents then watch the objects of all nodes",
        api::definition,
    ),
    check(
        "api-groups",
        "only one of topolvm.io and topolvm.cybozu.com is installed",
        "a process uses one API group only: nothing reconciles the objects of the other",
        api::groups,
    ),
    check(
        "csidriver",
        "the CSIDriver object matches this driver",
        "without these CSIDriver settings kubelet and kube-scheduler wait for steps that no component performs",
        driver::object,
    ),
    check(
        "owner",
        "no other driver with the same name is installed",
        "two installations that provision volumes for one driver name conflict",
        driver::owner,
    ),
    check(
        "node-agents",
        "each node with storage has registered the driver and publishes its free space",
        "a node without all three cannot create or mount volumes; if the driver is missing in the CSINode although the \
            agent runs, the kubelet usually has another root directory",
        programs::agents,
    ),
    check(
        "topology-labels",
        "the topology label of each node is the name of the node",
        "the kubelet sets this label when it registers the driver and never corrects it: with another value it refuses \
            the driver, and kube-scheduler confuses the node with the one in the label",
        topology::labels,
    ),
    check(
        "controller",
        "the replicas of the controller are ready and one holds the Lease",
        "without a leader nothing cleans up after deleted nodes and claims",
        programs::controller,
    ),
    check(
        "leases",
        "the leader does not change every few minutes, and clocks are in sync",
        "frequent leader changes indicate missing CPU, network problems to the API server, or clocks that are out of \
         sync",
        leases::stability,
    ),
    check(
        "webhooks",
        "webhooks point to a Service with endpoints, and their certificates are valid",
        "if the API server cannot call a webhook, it rejects pods and claims or skips the webhook, depending on \
         failurePolicy",
        settings::webhooks,
    ),
    check(
        "webhook-exemptions",
        "the webhooks exclude pods of kube-system and of TopoLVM",
        "otherwise a cluster cannot start the pods that the webhook itself needs",
        settings::exemptions,
    ),
    check(
        "storage-classes",
        "StorageClasses of the provisioner have valid parameters",
        "a StorageClass without a device class requests the default class of the node, 00default in annotations; nodes \
            that publish only named classes have no default class, so no volume and no pod fits there",
        classes::check,
    ),
    check(
        "extender-called",
        "kube-scheduler calls the extender if pods get the resource that only the extender handles",
        "the resource is a marker that no node offers: kube-scheduler ignores it only if its configuration names the \
            extender with managedResources and ignoredByScheduler; otherwise no pod with a volume fits any node, \
            although all programs look healthy",
        scheduling::extender,
    ),
    check(
        "blocked-pods",
        "no pod waits for the resource of the extender",
        "resources of a pod cannot be changed: a pod with the marker keeps it, and must be recreated after the fault \
            reported by extender-called is fixed",
        scheduling::blocked_pods,
    ),
    check(
        "marker-pods",
        "with storage capacity tracking no pod has the resource of the extender",
        "a pod created before the change keeps running, but could not be scheduled again unchanged",
        scheduling::marker_pods,
    ),
    check(
        "capacity-tracking",
        "with storage capacity tracking the free space of each node and StorageClass is published",
        "kube-scheduler places no pod with a new volume on a node without a CSIStorageCapacity object, and trusts an \
            object that is out of date",
        capacity::tracking,
    ),
    check(
        "unscheduled-pods",
        "no pod with an unbound WaitForFirstConsumer claim bypassed kube-scheduler (spec.nodeName)",
        "only kube-scheduler selects the node for the volume of such a claim; with spec.nodeName no component does, \
            and the claim stays Pending",
        placement::bypassing_pods,
    ),
    check(
        "selected-nodes",
        "nodes that were selected for waiting claims exist and are schedulable",
        "the selected node of the volume is deleted or cordoned",
        placement::selected_nodes,
    ),
    check(
        "copies",
        "claims that wait for a copy request what the source supports",
        "a copy must be at least as large as its source, in the same device class and on the same node",
        copies::check,
    ),
    check(
        "snapshots",
        "if a VolumeSnapshotClass exists, all snapshot components are installed",
        "VolumeSnapshots need three CRDs, the snapshot-controller of the cluster, and topolvm-controller with \
            --controllers=snapshotter, or csi-snapshotter in its pod",
        snapshots::check,
    ),
    check(
        "volumes",
        "each LogicalVolume has a PersistentVolume or VolumeSnapshotContent, a node and an LV, and each of these a \
         LogicalVolume",
        "unreferenced objects take up space, and a PersistentVolume without a LogicalVolume cannot be mounted",
        volumes::check,
    ),
    check(
        "storage",
        "lvmd answers, volume groups are complete, and thin pools have free space",
        "a full thin pool stops all its volumes, and a volume group with a missing disk cannot be changed",
        storage::check,
    ),
    check(
        "kernels",
        "the kernels of the nodes can mount filesystems made by mkfs.xfs",
        "mkfs.xfs enables features that kernels before Linux 5.10 refuse",
        kernels::check,
    ),
    check(
        "leftovers",
        "no finalizer or annotation of an API group that is not installed remains",
        "an object with the finalizer of a program that no longer runs is never deleted",
        leftovers::check,
    ),
    check(
        "rights",
        "the service accounts have the rights that the programs need",
        "forbidden requests are retried forever, and are visible only in logs",
        programs::rights,
    ),
];

const fn check(name: &'static str, about: &'static str, explanation: &'static str, run: CheckFn) -> Check {
    Check { name, about, explanation, run }
}
