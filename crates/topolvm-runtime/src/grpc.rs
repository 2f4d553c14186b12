//! gRPC over unix sockets: errors to status codes in one place, and one layer that logs, times and counts every call.

mod authority;
mod code;
mod layer;
mod serve;

pub use code::{GrpcCode, Reason, into_status, reason_of};
pub use layer::{RpcMetrics, RpcService, observed};
pub use serve::serve;
