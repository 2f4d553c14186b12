//! The read-only web page of topolvm-controller: nodes with their free space, volumes, and problems.
//!
//! The server does the work, the browser holds one screenful. Each answer is computed from the caches that the
//! controller has anyway and is then forgotten, so that the page costs nothing without viewers.
//!
//! - `server` has the routes; `access` refuses requests of other web pages, and sets the headers that keep this one
//!   from loading or running foreign content; `files` are the files of the page.
//! - `summary` and `volumes` compute the answers, `query` parses the query.
//! - `changes` notifies browsers that something has changed, and counts the viewers.
//! - `node_storage` reads the storage of a node when a viewer opens the node.
//! - `usage` queries the agents of the viewed nodes for the metrics of their volumes.

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
