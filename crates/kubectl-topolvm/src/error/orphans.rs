//! Errors of `orphans`.

use crate::request::RequestError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OrphanError {
    #[error("there is no Node {0}")]
    NoNode(String),
    #[error(
        "topolvm-node on node {node} tells of no LV {lv} without a LogicalVolume; kubectl topolvm orphans list shows \
            those that there are"
    )]
    NoOrphan { node: String, lv: String },
    #[error("the annotation of Node {node} with its LVs cannot be read; is this plugin older than topolvm-node?")]
    Annotation { node: String, source: serde_json::Error },
    #[error("the tags of LV {0} do not say for which LogicalVolume it was made; choose a name with --name")]
    NoName(String),
    #[error("there is a {kind} {name} already; choose another name, or delete it if it is what was there before")]
    Exists { kind: &'static str, name: String },
    #[error(
        "LV {lv} is no orphan, and nothing was changed: {owner} has it; to remove its data delete the claim, or \
            without one the LogicalVolume"
    )]
    Owned { lv: String, owner: String },
    #[error(
        "LogicalVolume {0} is getting the LV: another kubectl topolvm orphans restore or delete has not finished; \
            repeat that command, or delete the LogicalVolume, which leaves the LV as it is"
    )]
    Pending(String),
    #[error(
        "PersistentVolume {name} is reserved for the claim {reserved}; name that claim, or delete the \
            PersistentVolume, which is kept (Retain) and leaves the data as it is"
    )]
    Reserved { name: String, reserved: String },
    #[error(
        "{reference} refers to the data in LV {lv}, and nothing was changed: kubectl topolvm undelete --all makes the \
            LogicalVolume new, and the claim can be used again"
    )]
    Referenced { lv: String, reference: String },
    #[error("the LV cannot be given to a LogicalVolume, and stays as it is: {0}")]
    Refused(String),
    #[error(
        "topolvm-node has not given the LV to LogicalVolume {0} yet; see the log of topolvm-node on the node and run \
            it again, or delete the LogicalVolume"
    )]
    Slow(String),
    #[error("the watch failed")]
    Watch(#[source] Box<kube::runtime::watcher::Error>),
    #[error(transparent)]
    Request(#[from] RequestError),
}
