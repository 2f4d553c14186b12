//! Errors of `disk`.

#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error(
        "there is no NodeStorage {0}: topolvm-node of the node does not run, or its lvmd does not report its disks; \
            kubectl get nodestorages shows the nodes that have one"
    )]
    NoStorage(String),
    #[error("node {node} has no disk {disk}; it has these:\n{disks}")]
    NoDisk { node: String, disk: String, disks: String },
    #[error(
        "{disk} is the name of several disks of node {node}; name the UUID, or the name in /dev/disk/by-id:\n{disks}"
    )]
    Ambiguous { node: String, disk: String, disks: String },
    #[error("{disk} of node {node} is in no volume group")]
    InNoGroup { node: String, disk: String },
    #[error("{disk} of node {node} is in volume group {group} already")]
    InGroup { node: String, disk: String, group: String },
    #[error(
        "lvmd of node {0} has no disk groups, and so no disk to add; docs/disk-groups.md explains them, or run \
            vgextend on the node"
    )]
    NoDiskGroups(String),
    #[error(
        "{disk} of node {node} is not missing; to have another disk in its place add that one, and then remove this \
            one, which moves its volumes"
    )]
    NotMissing { node: String, disk: String },
    #[error("on node {node} {what}. To do it, add --yes")]
    Unconfirmed { node: String, what: String },
    #[error("the disk operation on node {node} has failed: {message}\nIt is not retried; run the command again")]
    Failed { node: String, message: String },
    #[error("the disk operation on node {0} was deleted, which cancels it")]
    Canceled(String),
    #[error(
        "the wait has ended, and the operation goes on. kubectl get diskoperations {name} shows it, and kubectl delete \
            diskoperations {name} cancels it"
    )]
    Interrupted { name: String },
}
