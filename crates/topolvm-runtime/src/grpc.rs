//! gRPC over unix sockets: errors to status codes in one place, and one layer that logs, times and counts every call.

mod authority;
mod code;
mod layer;
mod serve;

pub use code::{GrpcCode, into_status};
pub use layer::RpcMetrics;
pub use serve::serve;
