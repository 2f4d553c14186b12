//! Secrets that StorageClasses name, with templates.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, SELF, Scenario, on, parameters};

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name, keys: Value| Scenario::with_class(name, parameters(&keys));
    let secret = |kind: &str, name: &str, namespace: &str| {
        let [name_key, namespace_key] =
            ["name", "namespace"].map(|part| format!("csi.storage.k8s.io/{kind}secret-{part}"));
        json!({name_key: name, namespace_key: namespace})
    };
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": ""}, "stringData": {"password": "x"},
    });
    vec![
        class("secret-missing", secret("provisioner-", "missing", SELF)).claim("a", [on(ALPHA)]).failed("a", "missing"),
        class("secret-exists", secret("provisioner-", "key", SELF))
            .create(Kind::Secret, "key", object)
            .claim("a", [on(ALPHA)])
            .decided("a"),
        class("secret-of-node-stage", secret("node-stage-", "key", SELF))
            .claim("a", [on(ALPHA)])
            .bound("a")
            .deleted("a"),
        class("secret-of-node-publish", secret("node-publish-", "${pvc.name}", "${pvc.namespace}"))
            .claim("a", [on(ALPHA)])
            .bound("a"),
        class("secret-of-expansion", secret("controller-expand-", "${pv.name}", "${pvc.namespace}"))
            .claim("a", [on(ALPHA)])
            .bound("a"),
        class("secret-of-modification", secret("controller-modify-", "key", SELF)).claim("a", [on(ALPHA)]).bound("a"),
        class("secret-of-annotation", secret("node-publish-", "${pvc.annotations['example.com/key']}", SELF))
            .claim("a", [on(ALPHA), json!({"metadata": {"annotations": {"example.com/key": "of-a"}}})])
            .bound("a"),
        class("secret-default", secret("", "key", SELF)).claim("a", [on(ALPHA)]).decided("a"),
        class("secret-template-unknown", secret("node-publish-", "${pvc.color}", SELF))
            .claim("a", [on(ALPHA)])
            .failed("a", "color"),
        class("secret-template-of-namespace", secret("node-publish-", "key", "${pvc.name}"))
            .claim("a", [on(ALPHA)])
            .failed("a", "pvc.name"),
        class("secret-name-invalid", secret("node-publish-", "a/b", SELF)).claim("a", [on(ALPHA)]).failed("a", ""),
        class("secret-without-namespace", json!({"csi.storage.k8s.io/node-publish-secret-name": "key"}))
            .claim("a", [on(ALPHA)])
            .failed("a", "secret"),
        class(
            "secret-by-old-keys",
            json!({
                "csiNodePublishSecretName": "key", "csiNodePublishSecretNamespace": SELF,
            }),
        )
        .claim("a", [on(ALPHA)])
        .bound("a"),
    ]
}
