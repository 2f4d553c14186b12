//! The oldest version of the API server with which the product works.

/// The oldest minor version of Kubernetes: since then the token of a pod says which node the pod is on, on which the
/// admission policy of the manifests relies, and definitions have selectable fields.
pub const OLDEST: (u32, u32) = (1, 32);

/// A version: major, minor, and as the server spells it.
pub type Version = (u32, u32, String);

/// Returns true if this version is older than [`OLDEST`].
pub fn is_too_old((major, minor, _): &Version) -> bool {
    (*major, *minor) < OLDEST
}
