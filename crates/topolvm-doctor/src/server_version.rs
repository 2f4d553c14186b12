//! The oldest version of the API server with which the product works.

/// The oldest minor version of Kubernetes: since then there are admission policies (`v1`), and the token of a pod
/// contains its node, on which the policy of the manifests relies.
pub const OLDEST: (u32, u32) = (1, 30);

/// The first minor version whose API server keeps the selectable fields of a definition.
const FIRST_WITH_SELECTABLE_FIELDS: (u32, u32) = (1, 31);

/// A version: major, minor, and as the server spells it.
pub type Version = (u32, u32, String);

/// Returns true if this version is older than [`OLDEST`].
pub fn is_too_old((major, minor, _): &Version) -> bool {
    (*major, *minor) < OLDEST
}

/// Returns true if this version keeps the selectable fields of a definition.
pub(crate) fn has_selectable_fields((major, minor, _): &Version) -> bool {
    (*major, *minor) >= FIRST_WITH_SELECTABLE_FIELDS
}
