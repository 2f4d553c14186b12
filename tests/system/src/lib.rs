//! The product on the test bed: what the whole-system tests, the demo and the benchmark share.

pub mod audit;
pub mod bench;
pub mod chaos;
pub mod chart;
pub mod fresh_cluster;
pub mod kustomization;
pub mod lvm_settings;
pub mod manifests;
pub mod objects;
pub mod plugin;
pub mod product_images;
pub mod sanity;
pub mod scenario;
pub mod shared;
