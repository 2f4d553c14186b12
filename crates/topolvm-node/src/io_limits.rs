//! Limits of the I/O of volumes: what objects and pods ask for, put into the kernel for each pod that has a volume, and
//! what is to be told of it.

mod enforcement;
mod limiter;
mod pod_wishes;
mod port;
mod report;

pub(crate) use enforcement::VolumeRates;
pub(crate) use limiter::IoLimiter;
pub(crate) use pod_wishes::PodWatch;
pub(crate) use port::LimitIo;
pub(crate) use report::{IoReport, find_condition};
