//! Builders of Kubernetes objects with defaults: a test sets only the fields that it is about.

mod admission_review;
mod claim;
mod node;
mod stateful_set;
mod volume;

pub use admission_review::{creation_review, pod_review_of_length, pod_with_claims};
pub use claim::{ClaimBuilder, PodBuilder, StorageClassBuilder, claim, pod, storage_class};
pub use node::{NodeBuilder, node};
pub use stateful_set::{apply_claim_on_n1, remove_node, stateful_set_on_a_node};
pub use volume::{LogicalVolumeBuilder, logical_volume};
