//! A kubectl plugin for those who run the product: volumes and free space, Events, checks of the installation, and a
//! support bundle.
//!
//! Each subcommand has a module: it lists objects with `reading`, a pure function turns them into rows or findings, and
//! `output` prints these. Nothing in the cluster is changed.

mod args;
mod bundle;
mod connection;
mod doctor;
mod error;
mod events;
mod joined;
mod output;
mod printed;
mod reading;
mod run;
mod size;
mod status;
mod table;
mod volumes;

pub use args::Args;
pub use run::main;
