//! Errors that end a command.

mod disk;
mod orphans;
mod ui;
mod undelete;

use std::io;
use std::path::PathBuf;

use cli_runtime::connection::ConnectionError;
use cli_runtime::output::OutputError;
use cli_runtime::request::{RequestError, error_chain};

pub(crate) use disk::DiskError;
pub(crate) use orphans::OrphanError;
pub(crate) use ui::UiError;
pub(crate) use undelete::UndeleteError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Install(#[from] topolvm_install::Error),
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
    #[error("cannot write {path}; choose a file or directory that does not exist yet or is writable")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot start")]
    Runtime(#[source] io::Error),
}

impl Error {
    /// Returns true for EPIPE: the reader of the output has gone, as `head` does, which is no failure.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_broken_pipe())
            || matches!(self, Self::Install(error) if error.is_broken_pipe())
    }

    /// Returns the message with those of its causes.
    pub(crate) fn chain(&self) -> String {
        error_chain(self)
    }
}
