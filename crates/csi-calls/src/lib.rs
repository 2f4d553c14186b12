//! Calls the CSI Controller and GroupController services of this process, without a socket, as the controllers that
//! replace sidecars do.
//!
//! `csi` has the calls with their deadline and their error, `access_mode` the modes of a volume in CSI's words.

mod access_mode;
mod csi;

pub use access_mode::{access_mode, common_access_mode};
pub use csi::{CallError, Capabilities, CsiController, CsiGroupController, Expanded, Secrets};
pub use tonic::Code;
