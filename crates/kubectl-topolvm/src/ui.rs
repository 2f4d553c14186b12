//! `ui`: forwards a port of this machine to the web page of the leading topolvm-controller, and opens it in a browser.

mod browser;
mod forward;
mod target;

use std::net::Ipv4Addr;

use cli_runtime::output;
use kube::Client;
use tokio::net::TcpListener;

use crate::error::{Error, UiError};

use target::Target;

/// Forwards until Ctrl-C. `port` is one of this machine; without it any that is free.
pub(crate) async fn run(client: &Client, namespace: &str, port: Option<u16>, opens: bool) -> Result<(), Error> {
    let target = Target::find(client, namespace).await?;
    let wanted = (Ipv4Addr::LOCALHOST, port.unwrap_or(0));
    let listener = TcpListener::bind(wanted).await.map_err(|source| UiError::Listen { port: wanted.1, source })?;
    let address = listener.local_addr().map_err(|source| UiError::Listen { port: wanted.1, source })?;
    let url = format!("http://{address}/");
    output::print(&format!("{url}\nThis page is served by the pod {}. Press Ctrl-C to stop.\n", target.pod))?;
    if opens && !browser::open(&url) {
        output::print("Cannot start a browser: open the address above.\n")?;
    }
    forward::serve(client, namespace, target, &listener).await
}
