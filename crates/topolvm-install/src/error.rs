//! Errors of an installation, an upgrade or a removal.

use std::io;
use std::path::PathBuf;

use cli_runtime::connection::ConnectionError;
use cli_runtime::output::OutputError;
use cli_runtime::request::RequestError;

/// Error of a command: its message says what to do.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] InstallError);

impl Error {
    /// Returns true if the reader of the output has gone, as `head` does, which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(&self.0, InstallError::Output(error) if error.is_broken_pipe())
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("{0}")]
    Flag(String),
    #[error("cannot read {path}; name a file with the configuration of lvmd")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write the manifests to a temporary directory; set TMPDIR to a writable directory")]
    Directory(#[source] io::Error),
    #[error("cannot start kubectl, which renders the manifests; install kubectl in a directory of PATH")]
    Kubectl(#[source] io::Error),
    #[error("kubectl kustomize cannot render the manifests: {0}")]
    Kustomize(String),
    #[error("cannot read the output of kubectl kustomize: {0}")]
    Rendered(String),
    #[error("cannot create an object for the API server")]
    Object(#[source] serde_json::Error),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the cluster does not meet the requirements; nothing was changed:\n{}", listed(.0))]
    Unfit(Vec<String>),
    #[error(
        "cannot read the record of the installation, the ConfigMap topolvm-installation; correct it, or delete it and \
            use --adopt"
    )]
    Record(#[source] serde_json::Error),
    #[error("TopoLVM was not installed by this command; use kubectl topolvm install")]
    NotInstalled,
    #[error("the API server refuses {what}: {message}")]
    Refused { what: String, message: String },
    #[error("cannot wait for {what}")]
    Wait { what: String, source: Box<kube::runtime::wait::Error> },
    #[error(
        "{what} takes more than {seconds} s; check what it waits for, and use a longer --timeout if it is only slow"
    )]
    Slow { what: String, seconds: u64 },
    #[error("the pods are not ready:\n{}\ncorrect this and run the command again", listed(.0))]
    NotReady(Vec<String>),
    #[error("the volume of the smoke test is not usable:\n{}\nthe installation itself is complete", listed(.0))]
    Smoke(Vec<String>),
    #[error("volumes are in use; remove them, or use --keep-volumes to remove only the programs:\n{}", listed(.0))]
    InUse(Vec<String>),
    #[error(
        "claims are being recreated, and only topolvm-controller releases them; run the command again when the claims' \
            pods run, or remove the finalizer:\n{}", listed(.0)
    )]
    Rebuilding(Vec<String>),
    #[error("volumes of the trial are in use; remove them first:\n{}", listed(.0))]
    TrialInUse(Vec<String>),
    #[error("part of the trial could not be removed; correct this and run the command again:\n{}", listed(.0))]
    TrialStays(Vec<String>),
    #[error("interrupted")]
    Interrupted,
}

/// Lines with a bullet each.
fn listed(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  - {line}")).collect::<Vec<_>>().join("\n")
}
