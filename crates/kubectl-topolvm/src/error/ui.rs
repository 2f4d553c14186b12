//! Errors of `ui`.

use std::io;

use cli_runtime::request::RequestError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum UiError {
    #[error("the web page is disabled; to enable it: {0}")]
    Off(String),
    #[error(
        "no topolvm-controller runs in the namespace {0}; set another namespace with -n, or run kubectl topolvm doctor"
    )]
    NoPod(String),
    #[error("cannot listen on local port {port}; choose another port with --port, or omit --port")]
    Listen { port: u16, source: io::Error },
    #[error("cannot accept a connection from the browser")]
    Accept(#[source] io::Error),
    #[error("cannot wait for Ctrl-C")]
    Signal(#[source] io::Error),
    #[error("you may not forward a port to the pod {0}; request the rights get and create of pods/portforward")]
    Forbidden(String),
    #[error("cannot forward a port to the pod {pod}")]
    Forward { pod: String, source: Box<kube::Error> },
    #[error("the API server opened no stream to the pod {0}; run the command again")]
    NoStream(String),
    #[error("the connection to the pod was interrupted")]
    Broken(#[source] io::Error),
    #[error(transparent)]
    Request(#[from] RequestError),
}
