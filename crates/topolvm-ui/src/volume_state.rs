//! The state of a volume as one keyword, the same as in `kubectl topolvm volumes` where both know it.

use topolvm_api::{LogicalVolume, Readiness};

/// Keyword for a healthy volume.
pub(crate) const READY: &str = "Ready";

/// Returns the state of a volume.
pub(crate) fn state_of(volume: &LogicalVolume) -> &'static str {
    if volume.is_deleting() {
        return "Deleting";
    }
    match volume.readiness() {
        Readiness::VolumeReady if volume.is_snapshot() => "Snapshot",
        Readiness::VolumeReady => READY,
        Readiness::CreateFailed
        | Readiness::ExpandFailed
        | Readiness::VolumeLost
        | Readiness::Creating
        | Readiness::Expanding => volume.readiness().as_str(),
    }
}
