//! A kubectl plugin for administrators of the product: installation, upgrade and removal, volumes and free space,
//! Events, checks of the installation, and a support bundle.
//!
//! Each subcommand has a module. Those that show something list objects with `request`, a pure function turns them into
//! rows or findings, and `output` prints these. Only `install`, `trial`, `uninstall`, `restart-pending`, `orphans` and
//! `disk` change the cluster.

mod args;
mod bundle;
mod connection;
mod disk;
mod doctor;
mod error;
mod events;
mod generated;
mod install;
mod objects;
mod orphans;
mod output;
mod references;
mod request;
mod restart_pending;
mod run;
mod server_version;
mod size;
mod status;
mod table;
mod trial;
mod ui;
mod undelete;
mod uninstall;
mod volumes;

pub use args::Args;
pub use run::main;
