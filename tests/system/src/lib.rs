//! Starts the product on the test bed and drives it: code that the whole-system tests, the demo, the soak and the
//! benchmark share.

pub mod audit;
pub mod browser;
pub mod chart;
pub mod commands;
pub mod fake_api_server;
pub mod fake_node;
pub mod fresh_cluster;
pub mod io_rate;
pub mod isolated_lvm;
pub mod kustomization;
pub mod lvm_settings;
pub mod manifests;
pub mod monitoring;
pub mod objects;
pub mod plugin;
pub mod product_images;
pub mod random;
pub mod restarts;
pub mod sanity;
pub mod scenario;
pub mod scheduling;
pub mod shared;
pub mod web_page;
pub mod workloads;
