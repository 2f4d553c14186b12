//! Bursts of pods with volumes over nodes that are nearly full, with a real kube-scheduler, the stock csi-provisioner
//! and the product. No node may get more volumes than fit, and no pod may wait although a node has free space.

mod burst;
mod extender;
mod kube_scheduler;
mod mode;
mod outcome;
mod waiting;
mod workload;

pub use self::burst::{CAPACITY_INTERVAL, run_burst};
pub use self::extender::{EXTENDER, options_of_overlays, start_extender, stop_extender};
pub use self::kube_scheduler::{restart_kube_scheduler, restart_without_extender};
pub use self::mode::Mode;
pub use self::outcome::{Outcome, Sum};

/// Settings of a burst.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The way in which kube-scheduler learns of free space.
    pub mode: Mode,
    /// Seed of the sizes.
    pub seed: u64,
    /// Number of pods.
    pub pods: usize,
    /// Largest number of claims of a pod.
    pub claims: usize,
}
