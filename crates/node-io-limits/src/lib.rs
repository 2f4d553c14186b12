//! I/O limits of volumes: the limits that objects and pods request, set in the kernel for each pod that uses a volume,
//! and the report about them.

mod args;
mod enforcement;
mod events;
mod limiter;
mod pod_requests;
mod port;
mod report;
mod reports;

pub use args::IoLimitSettings;
pub use limiter::IoLimiter;
pub use pod_requests::{PodRequests, PodWatch};
