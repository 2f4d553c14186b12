//! Errors that end a command.

mod disk;
mod install;
mod orphans;
mod ui;
mod undelete;

use std::io;
use std::path::PathBuf;

use crate::request::{RequestError, error_chain};

pub(crate) use disk::DiskError;
pub(crate) use install::InstallError;
pub(crate) use orphans::OrphanError;
pub(crate) use ui::UiError;
pub(crate) use undelete::UndeleteError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "cannot determine how to reach the API server; set --kubeconfig or KUBECONFIG, and --context, as for kubectl"
    )]
    Infer(#[from] kube::config::InferConfigError),
    #[error(
        "cannot use the kubeconfig; correct --kubeconfig and --context (kubectl config get-contexts lists contexts)"
    )]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("cannot create a client for the API server; check the certificates and the exec plugin of the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    #[error("neither topolvm.io nor topolvm.cybozu.com is installed in this cluster; see `kubectl topolvm doctor`")]
    NotInstalled,
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Orphan(#[from] OrphanError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Ui(#[from] UiError),
    #[error(transparent)]
    Undelete(#[from] UndeleteError),
    #[error("the watch failed")]
    Watch(#[source] Box<kube::runtime::watcher::Error>),
    #[error("cannot print")]
    Print(#[source] io::Error),
    #[error("cannot print as JSON")]
    Json(#[from] serde_json::Error),
    #[error("cannot print as YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
    #[error("cannot write {path}; choose a file or directory that does not exist yet or is writable")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot start")]
    Runtime(#[source] io::Error),
}

impl Error {
    /// Returns true for EPIPE: the reader of the output has gone, as `head` does, which is no failure.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the message with those of its causes.
    pub(crate) fn chain(&self) -> String {
        error_chain(self)
    }
}
