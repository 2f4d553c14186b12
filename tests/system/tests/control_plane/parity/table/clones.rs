//! Claims whose data source is another claim, or an object that the provisioner does not know.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, BETA, DRIVER, Scenario, Until, on, parameters, size};

const PROTECTION: &str = "provisioner.storage.kubernetes.io/cloning-protection";

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, parameters(&json!({"topolvm.io/device-class": "thin"})));
    let with_source = |name| class(name).claim("source", [on(ALPHA)]).bound("source");
    let of = |source: &str| json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": source}}});
    let block = || json!({"spec": {"volumeMode": "Block"}});
    let finalizers = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    let has_protection = Until::Contains("/metadata/finalizers", PROTECTION.into());
    vec![
        with_source("clone")
            .claim("a", [on(ALPHA), of("source")])
            .wait(Kind::Claim, "source", has_protection)
            .bound("a")
            .deleted("source")
            .deleted("a"),
        with_source("clone-larger").claim("a", [on(ALPHA), of("source"), size("128Mi")]).bound("a"),
        with_source("clone-smaller").claim("a", [on(ALPHA), of("source"), size("32Mi")]).failed("a", "33554432"),
        with_source("clone-of-block-source").claim("a", [on(ALPHA), of("source"), block()]).failed("a", "mode"),
        with_source("clone-on-other-node").claim("a", [on(BETA), of("source")]).failed("a", "").unselected("a"),
        with_source("clone-with-other-class")
            .named_class("$SELF-2", parameters(&json!({"topolvm.io/device-class": "thin"})))
            .claim("a", [on(ALPHA), of("source"), json!({"spec": {"storageClassName": "$SELF-2"}})])
            .bound("a"),
        with_source("clone-with-other-device-class")
            .named_class("$SELF-2", parameters(&json!({"topolvm.io/device-class": "ssd"})))
            .claim("a", [on(ALPHA), of("source"), json!({"spec": {"storageClassName": "$SELF-2"}})])
            .failed("a", "class"),
        with_source("clone-by-reference")
            .claim(
                "a",
                [
                    on(ALPHA),
                    json!({
                        "spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "source"}},
                    }),
                ],
            )
            .bound("a"),
        class("clone-of-thick-volume")
            .named_class("$SELF-2", json!({}))
            .claim("source", [on(ALPHA), json!({"spec": {"storageClassName": "$SELF-2"}})])
            .bound("source")
            .claim("a", [on(ALPHA), of("source"), json!({"spec": {"storageClassName": "$SELF-2"}})])
            .failed("a", "")
            // During each attempt it has a LogicalVolume
            .delete(Kind::Claim, "a")
            .gone("a")
            .barrier(),
        class("clone-source-missing").claim("a", [on(ALPHA), of("missing")]).failed("a", "missing"),
        class("clone-source-created-later")
            .claim("a", [on(ALPHA), of("source")])
            .failed("a", "source")
            .claim("source", [on(ALPHA)])
            .bound("a"),
        class("clone-source-unbound")
            .claim("source", [])
            .claim("a", [on(ALPHA), of("source")])
            .failed("a", "source")
            .select("source", ALPHA)
            .bound("a"),
        class("clone-source-being-deleted")
            .claim("source", [on(ALPHA), finalizers(json!(["example.com/keep"]))])
            .bound("source")
            .delete(Kind::Claim, "source")
            .wait(Kind::Claim, "source", Until::Contains("/metadata/finalizers", "example.com/keep".into()))
            .claim("a", [on(ALPHA), of("source")])
            .failed("a", "deleted")
            .patch(Kind::Claim, "source", finalizers(json!([])))
            .gone("source"),
        // A source that is deleted while its clone is pending stays until the clone is made
        with_source("clone-source-deleted-meanwhile")
            .claim("a", [on(BETA), of("source")])
            .unselected("a")
            .delete(Kind::Claim, "source")
            .record()
            .deleted("a")
            .gone("source"),
        class("source-of-unknown-kind")
            .claim(
                "a",
                [
                    on(ALPHA),
                    json!({
                        "spec": {"dataSourceRef": {"apiGroup": "example.com", "kind": "Backup", "name": "b"}},
                    }),
                ],
            )
            .wait(Kind::Claim, "a", Until::Event("Provisioning", "populator"))
            // kube-controller-manager may be later
            .wait(
                Kind::Claim,
                "a",
                Until::Field("/metadata/annotations/volume.kubernetes.io~1storage-provisioner", DRIVER.into()),
            )
            .record(),
    ]
}
