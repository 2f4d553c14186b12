//! Errors of `undelete`.

#[derive(Debug, thiserror::Error)]
pub(crate) enum UndeleteError {
    #[error(
        "LogicalVolume {0} is neither being deleted nor gone while a PersistentVolume or VolumeSnapshotContent refers \
            to its volume; kubectl topolvm undelete --all --dry-run lists those that are"
    )]
    NothingToRestore(String),
    #[error(
        "the CustomResourceDefinition of LogicalVolumes is being deleted, or gone, and all of them with it; use \
            kubectl topolvm undelete --all"
    )]
    DefinitionDeleted,
    #[error(
        "LogicalVolume {name} has the finalizer {finalizer} of another program, which has to take it off first; \
            nothing was changed"
    )]
    OtherFinalizer { name: String, finalizer: String },
    #[error("LogicalVolume {0} has no finalizer any more and is still there; run the command again")]
    Stays(String),
    #[error(
        "CustomResourceDefinition {0} is still there; kubectl get logicalvolumes shows what holds it. Run the command \
            again"
    )]
    DefinitionStays(String),
    #[error("the API server does not serve CustomResourceDefinition {0} yet; run the command again")]
    NotServed(String),
}
