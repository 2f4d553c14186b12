//! Foundation of the commands of the plugin, in the way that `k8s.io/cli-runtime` is that of kubectl's: flags for the
//! cluster and for the format of the output, the client, requests whose errors name the missing right, the objects that
//! volumes consist of, and the text of answers.
//!
//! It has no command of its own.

pub mod connection;
pub mod objects;
pub mod output;
pub mod request;
pub mod server_version;
pub mod size;
pub mod table;
