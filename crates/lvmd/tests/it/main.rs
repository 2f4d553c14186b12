//! lvmd as its clients and administrators see it.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "in a test a panic is the right answer")]

mod burst;
mod disk_groups;
mod disk_groups_of_nodes;
mod disk_scenarios;
mod embedded;
mod external_changes;
mod foreign_groups;
mod former_classes;
mod group_pools;
mod growing_pools;
mod log;
mod lv_service;
mod metrics;
mod model;
mod moved_classes;
mod node;
mod optional_classes;
mod program;
mod quarantine;
mod refused_classes;
mod removal;
mod service;
mod snapshot;
mod snapshot_group;
mod storage;
mod thin;
mod unfinished;
mod unit_file;
mod vg_service;
mod watch;
mod wiping;
mod wire;
