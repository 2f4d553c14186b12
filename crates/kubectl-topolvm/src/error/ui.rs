//! Errors of `ui`.

use std::io;

use crate::request::RequestError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum UiError {
    #[error("the web page is not turned on; to turn it on: {0}")]
    Off(String),
    #[error("no topolvm-controller runs in the namespace {0}; name another one with -n, or see kubectl topolvm doctor")]
    NoPod(String),
    #[error("cannot listen on port {port} of this machine; choose another one with --port, or leave --port out")]
    Listen { port: u16, source: io::Error },
    #[error("cannot accept a connection of the browser")]
    Accept(#[source] io::Error),
    #[error("cannot wait for Ctrl-C")]
    Signal(#[source] io::Error),
    #[error("you may not forward a port to the pod {0}; ask for the rights get and create of pods/portforward")]
    Forbidden(String),
    #[error("cannot forward a port to the pod {pod}")]
    Forward { pod: String, source: Box<kube::Error> },
    #[error("the API server opened no stream to the pod {0}; run it again")]
    NoStream(String),
    #[error("the connection to the pod broke")]
    Broken(#[source] io::Error),
    #[error(transparent)]
    Request(#[from] RequestError),
}
