//! The checks, in the order in which one looks.

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
        "the admission policy and the watches of the agents need what older servers do not have",
        api::version,
    ),
    check(
        "crd",
        "LogicalVolume is defined, served, and has the fields that our programs write",
        "the API server drops fields that it does not know, and agents then watch the objects of all nodes",
        api::definition,
    ),
    check(
        "api-groups",
        "only one of topolvm.io and topolvm.cybozu.com is installed",
        "one process speaks one API group: nobody looks after the objects of the other",
        api::groups,
    ),
    check(
        "csidriver",
        "the CSIDriver object is as our programs work",
        "kubelet and kube-scheduler do what this object says, and else wait for what nobody does",
        driver::object,
    ),
    check(
        "owner",
        "nobody else runs a driver of the same name",
        "two that make volumes for one driver do each other's work twice",
        driver::owner,
    ),
    check(
        "node-agents",
        "each node with storage has the driver registered and publishes its free space",
        "no volume is made or mounted on a node without all three; a driver that is missing in the CSINode although \
            the \
            agent runs means most often that kubelet has another root directory",
        programs::agents,
    ),
    check(
        "topology-labels",
        "the topology label of each node is the name of the node",
        "the kubelet sets this label when it registers the driver and never corrects it: with another value it refuses \
            the driver, and kube-scheduler takes the node for the one that the label names",
        topology::labels,
    ),
    check(
        "controller",
        "the replicas of the controller are ready and one holds the Lease",
        "nobody cleans up after deleted nodes and claims without a leader",
        programs::controller,
    ),
    check(
        "leases",
        "the leader is not another one every few minutes, and no clock is far off",
        "leaders that come and go have no CPU, no network to the API server, or clocks that do not agree",
        leases::stability,
    ),
    check(
        "webhooks",
        "webhooks point to a Service that answers, and their certificates are valid",
        "the API server refuses pods and claims, or leaves them as they are, when it cannot call a webhook",
        settings::webhooks,
    ),
    check(
        "webhook-exemptions",
        "pods of kube-system and of the programs themselves do not wait for the webhooks",
        "a cluster that starts cannot start what the webhook itself needs",
        settings::exemptions,
    ),
    check(
        "storage-classes",
        "StorageClasses of our provisioner have parameters that work",
        "a StorageClass without a device class asks for the default class of the node, 00default in annotations; nodes \
            that publish only named classes have none, and no volume and no pod fits anywhere",
        classes::check,
    ),
    check(
        "extender-called",
        "kube-scheduler calls the extender, if pods are given the resource that only the extender understands",
        "the resource is a marker that no node offers: kube-scheduler passes over it only if its configuration names \
            the \
            extender with managedResources and ignoredByScheduler; otherwise no pod with a volume fits any node, \
            although all programs look healthy",
        scheduling::extender,
    ),
    check(
        "blocked-pods",
        "no pod waits for the resource of the extender",
        "resources of a pod cannot be changed: one that has the marker keeps it, and has to be made anew when the \
            fault \
            that extender-called names is mended",
        scheduling::blocked_pods,
    ),
    check(
        "marker-pods",
        "with storage capacity tracking no pod carries the resource of the extender",
        "a pod from before the change goes on running, and could not be scheduled again as it is",
        scheduling::marker_pods,
    ),
    check(
        "capacity-tracking",
        "with storage capacity tracking csi-provisioner publishes the free space of each node and StorageClass",
        "kube-scheduler puts no pod with a new volume on a node without a CSIStorageCapacity object, and believes one \
            that is out of date",
        capacity::tracking,
    ),
    check(
        "unscheduled-pods",
        "no pod with a claim that waits for its node was put on a node past kube-scheduler",
        "kube-scheduler alone says on which node the volume of such a claim is to be made; with spec.nodeName nobody \
            does, and the claim waits for ever",
        placement::bypassing_pods,
    ),
    check(
        "selected-nodes",
        "nodes that were selected for waiting claims exist and take pods",
        "the volume is to be made on a node that is gone or cordoned",
        placement::selected_nodes,
    ),
    check(
        "copies",
        "claims that wait for a copy ask for what the source can give",
        "a copy is as large as its source at least, is in the same device class and on the same node",
        copies::check,
    ),
    check(
        "snapshots",
        "where there are snapshot classes, everything that makes snapshots is there",
        "VolumeSnapshots need three definitions, the snapshot-controller of the cluster, and csi-snapshotter beside \
            our \
            controller",
        snapshots::check,
    ),
    check(
        "volumes",
        "each LogicalVolume has its PersistentVolume or VolumeSnapshotContent, its node and its LV, and vice versa",
        "what belongs to nothing takes space, and a PersistentVolume without a LogicalVolume cannot be mounted",
        volumes::check,
    ),
    check(
        "storage",
        "lvmd answers, volume groups are whole, and thin pools are not about to be full",
        "a thin pool that is full stops every volume in it, and a volume group without one of its disks is not changed",
        storage::check,
    ),
    check(
        "kernels",
        "the kernels of the nodes mount what mkfs.xfs makes",
        "mkfs.xfs makes filesystems with features that kernels before Linux 5.10 refuse",
        kernels::check,
    ),
    check(
        "leftovers",
        "no finalizer and no annotation of the API group that is not installed is left",
        "an object with a finalizer of a program that does not run any more is never deleted",
        leftovers::check,
    ),
    check(
        "rights",
        "the service accounts may do what the programs do",
        "what the API server forbids is tried again for ever, and seen in logs only",
        programs::rights,
    ),
];

const fn check(name: &'static str, about: &'static str, explanation: &'static str, run: CheckFn) -> Check {
    Check { name, about, explanation, run }
}
