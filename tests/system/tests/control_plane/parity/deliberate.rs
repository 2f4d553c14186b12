//! Differences from csi-provisioner, csi-resizer and csi-snapshotter that are deliberate. docs/embedded-controllers.md
//! lists them for users.

use super::difference::Deliberate;

const LABELS: &str = "every label of Nodes may be in allowedTopologies";
const OTHER_NODE: &str = "the scheduler selects again if the node is not in allowedTopologies";
const HELD: &str = "a finalizer keeps the claim while the outcome of an attempt is unknown";
const SUCCESS: &str =
    "success is reported about a claim that is being deleted, because the finalizer keeps it until then";
const REFUSED: &str = "an Event reports that the API server refuses the PersistentVolume";
const TAKEN: &str = "an Event names the PersistentVolume that has the name of the new one";

pub(super) const DELIBERATE: &[Deliberate] = &[
    Deliberate { scenario: "topology-foreign-label", field: "/end", reason: LABELS },
    Deliberate { scenario: "topology-foreign-label", field: "/events", reason: LABELS },
    Deliberate { scenario: "topology-foreign-label", field: "/volumes/a", reason: LABELS },
    Deliberate { scenario: "topology-hostname", field: "/end", reason: LABELS },
    Deliberate { scenario: "topology-hostname", field: "/events", reason: LABELS },
    Deliberate { scenario: "topology-hostname", field: "/volumes/a", reason: LABELS },
    Deliberate { scenario: "topology-immediate-foreign-label", field: "/end", reason: LABELS },
    Deliberate { scenario: "topology-immediate-foreign-label", field: "/events", reason: LABELS },
    Deliberate { scenario: "topology-immediate-foreign-label", field: "/volumes/a", reason: LABELS },
    Deliberate { scenario: "topology-immediate-hostname", field: "/end", reason: LABELS },
    Deliberate { scenario: "topology-immediate-hostname", field: "/events", reason: LABELS },
    Deliberate { scenario: "topology-immediate-hostname", field: "/volumes/a", reason: LABELS },
    Deliberate { scenario: "topology-label-changes", field: "/end", reason: LABELS },
    Deliberate { scenario: "topology-label-changes", field: "/events", reason: LABELS },
    Deliberate { scenario: "topology-label-changes", field: "/volumes/a", reason: LABELS },
    Deliberate { scenario: "topology-own-and-foreign-label", field: "/end", reason: LABELS },
    Deliberate { scenario: "topology-own-and-foreign-label", field: "/events", reason: LABELS },
    Deliberate { scenario: "topology-own-and-foreign-label", field: "/volumes/a", reason: LABELS },
    Deliberate {
        scenario: "topology-hostname-of-other-node",
        field: "/end/Claim a/metadata/annotations/volume.kubernetes.io~1selected-node",
        reason: OTHER_NODE,
    },
    Deliberate {
        scenario: "topology-own-label-of-other-node",
        field: "/end/Claim a/metadata/annotations/volume.kubernetes.io~1selected-node",
        reason: OTHER_NODE,
    },
    Deliberate {
        scenario: "topology-unknown-label",
        field: "/end/Claim a/metadata/annotations/volume.kubernetes.io~1selected-node",
        reason: OTHER_NODE,
    },
    Deliberate {
        scenario: "claim-deleted-after-timeout",
        field: "/events/PersistentVolumeClaim a/Normal ProvisioningSucceeded",
        reason: SUCCESS,
    },
    Deliberate {
        scenario: "claim-deleted-while-volume-is-made",
        field: "/events/PersistentVolumeClaim a/Normal ProvisioningSucceeded",
        reason: SUCCESS,
    },
    Deliberate {
        scenario: "claim-deleted-while-volume-is-refused",
        field: "/events/PersistentVolumeClaim a/Normal ProvisioningSucceeded",
        reason: SUCCESS,
    },
    Deliberate {
        scenario: "claim-deleted-while-volume-is-refused",
        field: "/events/PersistentVolumeClaim a/Warning ProvisioningFailed",
        reason: REFUSED,
    },
    Deliberate {
        scenario: "volume-refused",
        field: "/events/PersistentVolumeClaim a/Warning ProvisioningFailed",
        reason: REFUSED,
    },
    Deliberate { scenario: "volume-of-the-same-name", field: "/events/PersistentVolumeClaim a", reason: TAKEN },
    Deliberate {
        scenario: "volume-of-the-same-name-meanwhile",
        field: "/events/PersistentVolumeClaim a/Normal ProvisioningSucceeded",
        reason: TAKEN,
    },
    Deliberate {
        scenario: "volume-of-the-same-name-meanwhile",
        field: "/events/PersistentVolumeClaim a/Warning ProvisioningFailed",
        reason: TAKEN,
    },
    Deliberate {
        scenario: "volume-of-the-same-name-meanwhile",
        field: "/end/LogicalVolume pvc-<Claim a>",
        reason: "a volume whose name is taken while it is created does not leak",
    },
    Deliberate { scenario: "volume-refused", field: "/records/*/Claim a/metadata/finalizers", reason: HELD },
];

const ERROR: &str = "the error of an earlier attempt is removed when the driver has expanded the volume";
const CLAIM_GONE: &str = "an expansion whose claim was deleted meanwhile is no failure";
const ONE_CALL: &str = "a modification waits for the end of an expansion of the same volume";
const SECRET: &str = "an Event reports the missing Secret";
const CLASS_DRIVER: &str = "the driver of the VolumeAttributesClass is reported";

/// Of resizers.
pub(super) const OF_RESIZERS: &[Deliberate] = &[
    Deliberate {
        scenario: "filesystem-fails",
        field: "/records/*/Claim a/status/conditions/ControllerResizeError",
        reason: ERROR,
    },
    Deliberate {
        scenario: "claim-deleted-while-device-grows",
        field: "/events/a/Warning VolumeResizeFailed",
        reason: CLAIM_GONE,
    },
    Deliberate {
        scenario: "class-requested-while-device-grows",
        // Of two calls for a volume at once the driver refuses the second, whichever it is
        field: "/events/a",
        reason: ONE_CALL,
    },
    Deliberate {
        scenario: "secret-of-modification-missing",
        field: "/events/a/Warning VolumeModifyFailed",
        reason: SECRET,
    },
    Deliberate { scenario: "class-of-another-driver", field: "/end", reason: CLASS_DRIVER },
    Deliberate { scenario: "class-of-another-driver", field: "/events/a", reason: CLASS_DRIVER },
];

const CALLED: &str = "the annotation about a creation is not added before the driver is called";
const OTHER_DRIVER: &str = "the driver of the VolumeSnapshotClass is reported";

/// Of snapshotters.
pub(super) const OF_SNAPSHOTTERS: &[Deliberate] = &[
    Deliberate { scenario: "reserved-parameter", field: "/end/*/metadata/annotations", reason: CALLED },
    Deliberate { scenario: "content-unbound", field: "/end/*/metadata/annotations", reason: CALLED },
    Deliberate { scenario: "group-reserved-parameter", field: "/end/*/metadata/annotations", reason: CALLED },
    Deliberate { scenario: "group-content-unbound", field: "/end/*/metadata/annotations", reason: CALLED },
    Deliberate { scenario: "content-with-class-of-other-driver", field: "/end/*/status", reason: OTHER_DRIVER },
    Deliberate { scenario: "content-with-class-of-other-driver", field: "/events", reason: OTHER_DRIVER },
];
