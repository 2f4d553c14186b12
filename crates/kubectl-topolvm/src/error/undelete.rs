//! Errors of `undelete`.

#[derive(Debug, thiserror::Error)]
pub(crate) enum UndeleteError {
    #[error(
        "LogicalVolume {0} does not need recreation: it exists, or no PersistentVolume or VolumeSnapshotContent refers \
            to its volume; kubectl topolvm undelete --all --dry-run lists those that do"
    )]
    NothingToRestore(String),
    #[error(
        "the CustomResourceDefinition of LogicalVolumes is being deleted, or was deleted, together with all \
            LogicalVolumes; use kubectl topolvm undelete --all"
    )]
    DefinitionDeleted,
    #[error(
        "LogicalVolume {name} has the finalizer {finalizer} of another program, which must remove it first; nothing \
            was changed"
    )]
    OtherFinalizer { name: String, finalizer: String },
    #[error("LogicalVolume {0} has no finalizer but still exists; run the command again")]
    Stays(String),
    #[error(
        "CustomResourceDefinition {0} still exists; kubectl get logicalvolumes shows what blocks its deletion. Run the \
            command again"
    )]
    DefinitionStays(String),
    #[error("the API server does not serve CustomResourceDefinition {0} yet; run the command again")]
    NotServed(String),
}
