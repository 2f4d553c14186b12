//! The read-only web page of topolvm-controller: nodes with their room, volumes, and what is wrong.
//!
//! The server does the work, the browser holds one screenful. Each answer is computed from the caches that the
//! controller has anyway and is then forgotten, so that the page costs nothing while nobody looks.
//!
//! - `server` has the routes; `access` refuses requests of other web pages, and sets the headers that keep this one
//!   from loading or running anything that is not its own; `files` are the files of the page.
//! - `summary` and `volumes` compute the answers, `query` parses what is asked for.
//! - `changes` tells browsers that something has changed, and counts those who look.
//! - `node_storage` reads what a node has when somebody looks at the node.
//! - `usage` asks the agents of the nodes that are looked at for the metrics of their volumes.

mod access;
mod changes;
mod cluster;
mod files;
mod node_storage;
mod query;
mod server;
mod summary;
mod usage;
mod volume_state;
mod volumes;

#[cfg(test)]
mod tests;

pub use cluster::Cluster;
pub use server::WebPage;
