//! Paths at which kubelet mounts or binds a volume for itself: no pod has the volume by them.

use std::path::{Component, Path};

/// Returns whether a path is a staging path of kubelet: `plugins/kubernetes.io/csi/DRIVER/HASH/globalmount` in its
/// directory, or `plugins/kubernetes.io/csi/pv/NAME/globalmount` before Kubernetes 1.24.
pub(crate) fn is_staging_path(path: &Path) -> bool {
    matches!(names(path).as_slice(), [.., plugins, kubernetes, csi, _, _, last]
        if *plugins == "plugins" && *kubernetes == "kubernetes.io" && *csi == "csi" && *last == "globalmount")
}

/// Returns whether a path is where kubelet binds the block volume once more that is published at `target`: its map of
/// devices and pods, `plugins/kubernetes.io/csi/volumeDevices/NAME/dev/POD`, where the target is
/// `volumeDevices/publish/NAME/POD`.
pub(crate) fn is_device_map_path(target: &Path, path: &Path) -> bool {
    matches!((names(path).as_slice(), names(target).as_slice()),
        ([.., devices, name, dev, pod], [.., target_devices, publish, target_name, target_pod])
            if *devices == "volumeDevices" && *dev == "dev" && name == target_name && pod == target_pod
                && *target_devices == "volumeDevices" && *publish == "publish")
}

/// Returns the components of a path.
fn names(path: &Path) -> Vec<&std::ffi::OsStr> {
    path.components().map(Component::as_os_str).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/var/lib/kubelet/plugins/kubernetes.io/csi/topolvm.io/4e07408562be/globalmount", true)]
    #[case("/k/plugins/kubernetes.io/csi/pv/pvc-1/globalmount", true)]
    #[case("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pvc-1/mount", false)]
    #[case("/mnt/globalmount", false)]
    #[case("/", false)]
    fn only_kubelets_own_place_is_a_staging_path(#[case] path: &str, #[case] expected: bool) {
        assert_eq!(is_staging_path(Path::new(path)), expected);
    }

    #[rstest]
    #[case("/k/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/pod-1", true)]
    #[case("/k/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/pod-2", false)]
    #[case("/k/plugins/kubernetes.io/csi/volumeDevices/pvc-2/dev/pod-1", false)]
    #[case("/k/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/pod-2", false)]
    #[case("/mnt/pvc-1/dev/pod-1", false)]
    fn only_the_same_pods_place_in_kubelets_map_is_no_other_target(#[case] path: &str, #[case] expected: bool) {
        let target = Path::new("/k/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/pod-1");
        assert_eq!(is_device_map_path(target, Path::new(path)), expected);
    }
}
