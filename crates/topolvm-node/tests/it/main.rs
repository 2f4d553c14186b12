//! Tests of the node agent's services and reconcilers over fakes that keep state: a Kubernetes API server, an LVM
//! behind the real lvmd, and a machine with mounts in memory.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod absence;
mod capacity;
mod cluster;
mod conditions;
mod copies;
mod csi;
mod discards;
mod disk_operations;
mod disk_service;
mod embedded;
mod fake_machine;
mod filesystems;
mod freeze;
mod growth_reports;
mod health;
mod inventory;
mod io_limits;
mod kubelet_root;
mod lost;
mod lvmd_client;
mod lvmd_process;
mod node;
mod node_labels;
mod node_storage;
mod orphans;
mod orphans_and_events;
mod program;
mod reconcile;
mod records;
mod references;
mod registrar;
mod restored;
mod snapshot_groups;
mod staging;
mod topology_label;
mod unmount_failures;
mod volume_metrics;
mod whole_agent;
mod wrong_device;
