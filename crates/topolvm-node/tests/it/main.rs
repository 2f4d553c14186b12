//! Tests of the node agent's services and reconcilers over fakes that keep state: a Kubernetes API server, an LVM behind
//! the real lvmd, and a machine with mounts in memory.

#![expect(clippy::unwrap_used, reason = "tests")]

mod capacity;
mod cluster;
mod conditions;
mod copies;
mod csi;
mod embedded;
mod filesystems;
mod health;
mod lost;
mod lost_track;
mod lvmd_client;
mod lvmd_process;
mod machine;
mod node;
mod program;
mod proof;
mod reconcile;
mod records;
mod registrar;
mod staging;
mod system_mounter;
mod whole_agent;
mod wrong_device;
