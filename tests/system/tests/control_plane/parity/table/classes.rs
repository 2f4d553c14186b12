//! StorageClasses: missing, deleted, changed, of other drivers; their parameters, and annotations that name a driver.

use serde_json::json;

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, SELF, Scenario, immediate_on, on, parameters};

const OTHER: &str = "other.example.com";
const GA: &str = "volume.kubernetes.io/storage-provisioner";
const BETA_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-provisioner";

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, json!({}));
    let annotated = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    vec![
        Scenario::new("class-created-later").claim("a", [on(ALPHA)]).barrier().record().class(json!({})).bound("a"),
        class("class-deleted-before-selection")
            .claim("a", [])
            .delete(Kind::Class, SELF)
            .select("a", ALPHA)
            .barrier()
            .record()
            .class(json!({}))
            .bound("a"),
        Scenario::with_class("class-deleted-after-failure", parameters(&json!({"topolvm.io/device-class": "missing"})))
            .claim("a", [on(ALPHA)])
            .unselected("a")
            .delete(Kind::Class, SELF)
            .class(json!({}))
            .select("a", ALPHA)
            .bound("a"),
        class("class-deleted-before-deletion")
            .claim("a", [on(ALPHA)])
            .bound("a")
            .delete(Kind::Class, SELF)
            .deleted("a"),
        Scenario::with_class("class-of-another-driver", json!({"provisioner": OTHER}))
            .claim("a", [on(ALPHA)])
            .barrier()
            .record(),
        Scenario::with_class("class-changes-driver", json!({"provisioner": OTHER}))
            .claim("a", [on(ALPHA)])
            .barrier()
            .delete(Kind::Class, SELF)
            .class(json!({}))
            .bound("a"),
        Scenario::new("claim-without-class")
            .claim("a", [on(ALPHA), json!({"spec": {"storageClassName": ""}})])
            .barrier()
            .record(),
        class("class-by-annotation")
            .claim(
                "a",
                [
                    on(ALPHA),
                    json!({"spec": {"storageClassName": null}}),
                    annotated("volume.beta.kubernetes.io/storage-class", SELF),
                ],
            )
            .bound("a"),
        class("beta-annotation").claim("a", [on(ALPHA), annotated(BETA_ANNOTATION, "topolvm.io")]).bound("a"),
        class("beta-annotation-of-another-driver")
            .claim("a", [on(ALPHA), annotated(BETA_ANNOTATION, OTHER)])
            .bound("a"),
        class("annotation").claim("a", [on(ALPHA), annotated(GA, "topolvm.io")]).bound("a"),
        class("annotation-of-another-driver").claim("a", [on(ALPHA), annotated(GA, OTHER)]).decided("a"),
        class("annotation-without-selected-node")
            .claim("a", [annotated(GA, "topolvm.io")])
            .barrier()
            .record()
            .select("a", ALPHA)
            .bound("a"),
        class("annotations-differ")
            .claim("a", [on(ALPHA), annotated(GA, "topolvm.io"), annotated(BETA_ANNOTATION, OTHER)])
            .decided("a"),
        Scenario::with_class("annotation-for-class-of-another-driver", json!({"provisioner": OTHER}))
            .claim("a", [on(ALPHA), annotated(GA, "topolvm.io")])
            .barrier()
            .record(),
        Scenario::with_class("parameter-unknown", parameters(&json!({"color": "red"})))
            .claim("a", [on(ALPHA)])
            .bound("a"),
        Scenario::with_class("parameter-unknown-of-csi", parameters(&json!({"csi.storage.k8s.io/color": "red"})))
            .claim("a", [on(ALPHA)])
            .failed("a", "csi.storage.k8s.io/color"),
        Scenario::with_class("parameter-device-class", parameters(&json!({"topolvm.io/device-class": "thin"})))
            .claim("a", [on(ALPHA)])
            .bound("a")
            .deleted("a"),
        Scenario::with_class("parameter-device-class-missing", parameters(&json!({"topolvm.io/device-class": "none"})))
            .claim("a", [on(ALPHA)])
            .failed("a", "none")
            .unselected("a"),
        Scenario::with_class(
            "parameter-lvcreate-option-class-missing",
            parameters(&json!({"topolvm.io/lvcreate-option-class": "none"})),
        )
        .claim("a", [on(ALPHA)])
        .failed("a", "none"),
        Scenario::with_class("parameter-mkfs-options", parameters(&json!({"topolvm.io/mkfs-options": "-m 1"})))
            .claim("a", [on(ALPHA)])
            .bound("a"),
        Scenario::with_class("parameter-mkfs-options-bad", parameters(&json!({"topolvm.io/mkfs-options": "/dev/sda"})))
            .claim("a", [on(ALPHA)])
            .failed("a", "mkfs"),
        // A request that cannot succeed is tried again at once when the StorageClass is another one
        Scenario::with_class("parameter-corrected", parameters(&json!({"topolvm.io/mkfs-options": "/dev/sda"})))
            .claim("a", [on(ALPHA)])
            .failed("a", "mkfs")
            .delete(Kind::Class, SELF)
            .class(json!({}))
            .patch(Kind::Claim, "a", json!({"metadata": {"labels": {"changed": "yes"}}}))
            .bound("a"),
        Scenario::with_class("mount-options", json!({"mountOptions": ["noatime", "nodiratime"]}))
            .claim("a", [on(ALPHA)])
            .bound("a"),
        Scenario::with_class("immediate-mount-options", immediate_on(ALPHA))
            .named_class("$SELF-2", json!({"mountOptions": ["discard"]}))
            .claim("a", [on(ALPHA), json!({"spec": {"storageClassName": "$SELF-2"}})])
            .bound("a"),
        class("class-annotations-and-labels")
            .claim(
                "a",
                [on(ALPHA), json!({"metadata": {"annotations": {"example.com/note": "x"}, "labels": {"app": "db"}}})],
            )
            .bound("a"),
    ]
}
