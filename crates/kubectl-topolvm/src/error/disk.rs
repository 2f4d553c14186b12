//! Errors of `disk`.

#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error(
        "there is no NodeStorage {0}: topolvm-node of the node does not run, or its lvmd does not tell what disks \
            there are; kubectl get nodestorages shows the nodes that do"
    )]
    NoStorage(String),
    #[error("node {node} has no disk {disk}; it has these:\n{there}")]
    NoDisk { node: String, disk: String, there: String },
    #[error(
        "{disk} is the name of several disks of node {node}; name the UUID, or the name in /dev/disk/by-id:\n{there}"
    )]
    Ambiguous { node: String, disk: String, there: String },
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
    #[error("on node {node} {what}. If you want this, say --yes")]
    Unconfirmed { node: String, what: String },
    #[error("{0:?} has a comma or a space, and cannot be named; add this disk with vgextend on the node")]
    Name(String),
    #[error("others change the NodeStorage {0} all the time; run it again")]
    Busy(String),
    #[error(
        "it is refused: {message}\nThe wish stays, and is tried again when something changes; kubectl topolvm disk \
            evacuate {node} {uuid} --stop takes it back"
    )]
    Refused { node: String, uuid: String, message: String },
    #[error("not waiting any more for node {node}: {message}")]
    Dropped { node: String, message: String },
    #[error("the disk is not added to node {node}: {message}")]
    AdditionRefused { node: String, message: String },
    #[error("the NodeStorage {0} was deleted, and what was wished with it; an evacuation that lvmd has begun goes on")]
    Deleted(String),
    #[error(
        "not waiting any more; it goes on. kubectl topolvm disk list {node} shows how far it is, and kubectl topolvm \
            disk evacuate {node} {uuid} --stop ends it"
    )]
    InterruptedEvacuation { node: String, uuid: String },
    #[error("not waiting any more; it goes on. kubectl topolvm disk list {node} shows what becomes of disk {uuid}")]
    Interrupted { node: String, uuid: String },
    #[error("not waiting any more; the disk is added all the same. kubectl topolvm disk list {0} shows it")]
    InterruptedAddition(String),
}
