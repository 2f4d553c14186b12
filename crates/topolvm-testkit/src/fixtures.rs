//! Builders for the objects that tests begin with: only what a test is about has to be said.

mod claim;
mod node;
mod volume;

pub use claim::{ClaimBuilder, PodBuilder, StorageClassBuilder, claim, pod, storage_class};
pub use node::{NodeBuilder, node};
pub use volume::{LogicalVolumeBuilder, logical_volume};
