//! A server that lists the metadata of Nodes in pages, as the API server does, and sends no watch events.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::requests::metadata;

/// Starts the server in threads that last as long as this process.
pub(super) fn start(nodes: usize) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on a free port")?;
    let address = listener.local_addr().context("ask for the free port")?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away ends its thread
            thread::spawn(move || serve(stream, nodes).ok());
        }
    });
    Ok(address)
}

/// Answers the requests of a connection.
fn serve(mut stream: TcpStream, nodes: usize) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while let Some(line) = lines.next().transpose()? {
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        // No request has a body
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        if find_parameter(&path, "watch=").is_some() {
            stream.write_all(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
            )?;
        } else {
            let page = page(&path, nodes).to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:";
            write!(stream, "{head} {}\r\n\r\n{page}", page.len())?;
        }
    }
    Ok(())
}

/// Returns the page of the list that `continue` selects.
fn page(path: &str, nodes: usize) -> Value {
    let begin = find_parameter(path, "continue=").unwrap_or(0);
    let end = find_parameter(path, "limit=").map_or(nodes, |limit| nodes.min(begin + limit));
    let item = |number| {
        json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata(number),
        })
    };
    let next = if end < nodes { end.to_string() } else { String::new() };
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
        "metadata": {"resourceVersion": "7", "continue": next},
        "items": (begin..end).map(item).collect::<Vec<_>>(),
    })
}

/// Returns the number of a parameter of the query; 1 for `true`.
fn find_parameter(path: &str, name: &str) -> Option<usize> {
    let value = path.split(['?', '&']).find_map(|parameter| parameter.strip_prefix(name))?;
    if value == "true" { Some(1) } else { value.parse().ok() }
}
