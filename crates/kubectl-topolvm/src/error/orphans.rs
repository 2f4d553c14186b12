//! Errors of `orphans`.

use cli_runtime::request::RequestError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OrphanError {
    #[error("Node {0} does not exist")]
    NoNode(String),
    #[error(
        "topolvm-node on node {node} reports no LV {lv} without a LogicalVolume; kubectl topolvm orphans list shows \
            the existing ones"
    )]
    NoOrphan { node: String, lv: String },
    #[error("cannot read the annotation of Node {node} that lists its LVs; this plugin may be older than topolvm-node")]
    Annotation { node: String, source: serde_json::Error },
    #[error("the tags of LV {0} do not name the LogicalVolume it was created for; choose a name with --name")]
    NoName(String),
    #[error("{kind} {name} already exists; choose another name, or delete the object if it belonged to this LV")]
    Exists { kind: &'static str, name: String },
    #[error(
        "LV {lv} is not an orphan, and nothing was changed: {owner} uses it; to remove its data delete the claim, or \
            the LogicalVolume if there is no claim"
    )]
    Owned { lv: String, owner: String },
    #[error(
        "LogicalVolume {0} is taking over the LV: another kubectl topolvm orphans restore or delete has not finished; \
            run that command again, or delete the LogicalVolume, which does not change the LV"
    )]
    Pending(String),
    #[error(
        "PersistentVolume {name} is reserved for the claim {reserved}; use that claim, or delete the PersistentVolume, \
            which keeps the data because its reclaim policy is Retain"
    )]
    Reserved { name: String, reserved: String },
    #[error(
        "{reference} refers to the data in LV {lv}, and nothing was changed: kubectl topolvm undelete --all recreates \
            the LogicalVolume, and the claim can be used again"
    )]
    Referenced { lv: String, reference: String },
    #[error("topolvm-node cannot assign the LV to a LogicalVolume, and the LV is unchanged: {0}")]
    Refused(String),
    #[error(
        "topolvm-node has not assigned the LV to LogicalVolume {0} yet; check the log of topolvm-node on the node and \
            run the command again, or delete the LogicalVolume"
    )]
    Slow(String),
    #[error("the watch failed")]
    Watch(#[source] Box<kube::runtime::watcher::Error>),
    #[error(transparent)]
    Request(#[from] RequestError),
}
