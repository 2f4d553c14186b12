//! I/O limits of volumes: the limits that objects and pods request, set in the kernel for each pod that uses a volume,
//! and the report about them.

mod enforcement;
mod limiter;
mod pod_requests;
mod port;
mod report;

pub(crate) use enforcement::VolumeRates;
pub(crate) use limiter::IoLimiter;
pub(crate) use pod_requests::PodWatch;
pub(crate) use port::LimitIo;
pub(crate) use report::{IoReport, find_condition};
