//! Shared by agent and controller on top of the Kubernetes client: the client itself, whether its credentials are
//! accepted, calls with a deadline, watches that reconnect indefinitely, caches of watched objects, lists, patches of
//! metadata, Events, the work queue of reconcilers, their error and their metric, authorization of HTTP requests by the
//! API server, the objects that refer to a volume, the identity of the cluster, the pods of agents, the owner of what a
//! program makes for itself, and the state of the scheduler extender.
//!
//! It depends on no reconciler and not on CSI.

mod access_reviews;
mod agent_pods;
pub mod api_server;
mod cache;
mod cached_claim;
mod client;
mod cluster_identity;
mod credentials;
mod event_publisher;
mod events;
mod extender_informer;
mod list;
mod logical_volumes;
mod owner;
mod patches;
mod reconcile_error;
mod reconcile_metrics;
mod secret;
mod volume_references;
mod watch;
mod work_queue;

pub use access_reviews::{AccessReviewError, AccessReviews};
pub use agent_pods::AgentPod;
pub use cache::{Cache, CacheWriter, Cached};
pub use cached_claim::CachedClaim;
pub use client::{client, wait_until_reachable};
pub use cluster_identity::ClusterIdentity;
pub use credentials::{CredentialSource, Credentials, CredentialsRejected};
pub use event_publisher::EventPublisher;
pub use events::{EventRecorder, node_reference};
pub use extender_informer::{ExtenderInformer, ExtenderState};
pub use list::{list_in_pages, list_selected, node_selection};
pub use logical_volumes::{LogicalVolumeWriter, LogicalVolumes};
pub use owner::{Owner, find_owner};
pub use patches::{
    add_finalizer, has_finalizer, json_patch, remove_annotation, remove_finalizers, replace_status,
    replace_status_if_unchanged, set_annotation, set_label,
};
pub use reconcile_error::{ReconcileError, none_if_deleted, none_if_not_found};
pub use reconcile_metrics::ReconcileMetrics;
pub use secret::{SecretReadError, read_secret};
pub use volume_references::{VolumeReference, VolumeReferences};
pub use watch::{watch_all, watch_one, watch_one_if_served, watch_selected, watch_selected_if_served};
pub use work_queue::{WorkQueueConfig, reconcile_changes, watch_and_reconcile};
