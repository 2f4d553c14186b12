//! Generated gRPC code, and nothing else: the CSI services, lvmd's services and kubelet's plugin registration.
//!
//! The sources are in `proto/` at the top of the repository.

/// Container Storage Interface 1.13.0.
pub mod csi {
    tonic::include_proto!("csi.v1");
}

/// lvmd's own protocol; the package on the wire is literally `proto`.
pub mod lvmd {
    tonic::include_proto!("proto");
}

/// kubelet's plugin registration, version 1.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
