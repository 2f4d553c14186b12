//! Boots real kernels and a real Kubernetes cluster for the tests.
#![expect(clippy::disallowed_methods, reason = "starting processes and reading settings is what a test bed is for")]

pub mod agent;
pub mod assets;
pub mod cache;
pub mod cluster;
mod control_plane;
pub mod exec;
pub mod failure;
mod forward;
mod frame;
pub mod guest;
mod https;
pub mod image;
mod interrupt;
pub mod kubeconfig;
mod log;
pub mod machine;
pub mod netns;
pub mod network;
pub mod node;
pub mod page;
pub mod pki;
pub mod process;
mod processes;
pub mod program;
mod proxy;
mod reaper;
mod reexec;
pub mod sidecars;
pub mod size;
pub mod suite;
pub mod times;
pub mod topolvm;
