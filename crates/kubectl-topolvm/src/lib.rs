//! A kubectl plugin for administrators of the product: installation, upgrade and removal, volumes and free space,
//! Events, checks of the installation, and a support bundle.
//!
//! Each subcommand has a module, but for those that change an installation, which are in `topolvm-install`. Those that
//! show something list objects with `request` of `cli-runtime`, a pure function turns them into rows or findings, and
//! `output` prints these. Of the others only `restart-pending`, `orphans`, `undelete` and `disk` change the cluster.

mod args;
mod bundle;
mod disk;
mod doctor;
mod error;
mod events;
mod generated;
mod orphans;
mod references;
mod restart_pending;
mod run;
mod status;
mod ui;
mod undelete;
mod volumes;

pub use args::Args;
pub use run::main;
