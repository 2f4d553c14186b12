//! Generated gRPC code of CSI, lvmd and kubelet's plugin registration, and the plugin capabilities that every CSI
//! socket of the driver announces.
//!
//! The sources are in `proto/` at the top of the repository.

/// Container Storage Interface 1.13.0.
pub mod csi {
    tonic::include_proto!("csi.v1");
}

pub mod plugin;

/// lvmd's own protocol; the package on the wire is literally `proto`.
pub mod lvmd {
    tonic::include_proto!("proto");
}

/// kubelet's plugin registration, version 1.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
