//! VolumeAttributesClasses that claims request after their volume was created.

use serde_json::{Value, json};

use super::device_expansions::{device, expandable, with_device_on};
use super::dynamic_contents::{readable_secret, secret};
use super::expansion_faults::{device_on, refusing_logical_volumes};
use super::filesystem_expansions::filesystem_on;
use crate::parity::kinds::Kind;
use crate::parity::merge::merge;
use crate::parity::scenario::{ALPHA, DRIVER, SELF, Scenario, Step, Target, Until, attributes_class, on};

const FAST: &str = "$SELF-fast";
const SLOW: &str = "$SELF-slow";
const WRONG: &str = "$SELF-wrong";
const STATUS: &str = "/status/modifyVolumeStatus/status";

/// Adds VolumeAttributesClasses that are fast, slow, and refused by the driver.
pub(super) fn with_classes(scenario: Scenario) -> Scenario {
    scenario.attributes(FAST, DRIVER, &limit("100Mi")).attributes(SLOW, DRIVER, &limit("1Mi")).attributes(
        WRONG,
        DRIVER,
        &json!({"color": "red"}),
    )
}

fn limit(bytes: &str) -> Value {
    json!({"topolvm.io/read-bytes-per-second": bytes})
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let unclassified = |name| with_classes(device(name));
    let slow = |name| {
        let claim = merge(attributes_class(SLOW), json!({"spec": {"volumeMode": "Block"}}));
        with_classes(expandable(name, json!({}))).claim("a", [on(ALPHA), claim]).wait(Kind::Claim, "a", Until::Bound)
    };
    let of_node = |name, node| with_classes(device_on(name, node, 1, 0));
    let with_secret = |name, secret| with_classes(with_device_on(expandable(name, secret), ALPHA, "a"));
    let with_other = |scenario: Scenario| with_device_on(scenario, ALPHA, "b");
    // The volume of the claim `b` is modified after all that was requested before
    let modified_other = |scenario: Scenario| {
        let current = Until::Field("/status/currentVolumeAttributesClassName", FAST.into());
        scenario.request_class("b", FAST).wait(Kind::Claim, "b", current)
    };
    vec![
        unclassified("class-applied").request_class("a", FAST).modified("a", FAST),
        slow("class-changed").request_class("a", FAST).modified("a", FAST),
        slow("class-changed-twice")
            .request_class("a", FAST)
            .wait(Kind::Claim, "a", Until::Field("/status/currentVolumeAttributesClassName", FAST.into()))
            .request_class("a", SLOW)
            .modified("a", SLOW),
        slow("class-with-another-limit")
            .attributes(SELF, DRIVER, &json!({"topolvm.io/write-bytes-per-second": "1Mi"}))
            .request_class("a", SELF)
            .modified("a", SELF),
        with_classes(filesystem_on(expandable("class-of-filesystem", json!({})), ALPHA))
            .request_class("a", FAST)
            .modified("a", FAST),
        unclassified("class-missing").request_class("a", SELF).modification("a", "Pending"),
        unclassified("class-missing-and-another-requested")
            .request_class("a", SELF)
            .modification("a", "Pending")
            .request_class("a", FAST)
            .modified("a", FAST),
        slow("class-missing-and-former-requested")
            .request_class("a", SELF)
            .modification("a", "Pending")
            .request_class("a", SLOW)
            .modified("a", SLOW),
        modified_other(
            with_other(unclassified("class-of-another-driver"))
                .attributes(SELF, "other.example.com", &limit("10Mi"))
                .request_class("a", SELF),
        ),
        unclassified("class-refused").request_class("a", WRONG).modification("a", "Infeasible"),
        unclassified("class-with-another-option-class")
            .attributes(SELF, DRIVER, &json!({"topolvm.io/lvcreate-option-class": "other"}))
            .request_class("a", SELF)
            .modification("a", "Infeasible"),
        unclassified("class-refused-and-another-requested")
            .request_class("a", WRONG)
            .modification("a", "Infeasible")
            .request_class("a", FAST)
            .modified("a", FAST),
        slow("class-refused-and-former-requested")
            .request_class("a", WRONG)
            .modification("a", "Infeasible")
            .request_class("a", SLOW)
            .modified("a", SLOW),
        unclassified("class-refused-and-none-requested")
            .request_class("a", WRONG)
            .modification("a", "Infeasible")
            .patch(Kind::Claim, "a", json!({"spec": {"volumeAttributesClassName": null}}))
            .wait(Kind::Claim, "a", Until::Event("VolumeModifyCanceled", ""))
            .barrier()
            .record(),
        // The API server refuses what the driver writes
        refusing_logical_volumes(of_node("class-cannot-be-written", "refused-2"), "refused-2")
            .request_class("a", FAST)
            .wait(Kind::Claim, "a", Until::Condition("ModifyVolumeError"))
            .modification("a", "InProgress")
            .delete(Kind::AdmissionBinding, SELF)
            .modified("a", FAST),
        refusing_logical_volumes(of_node("class-changed-after-failure", "refused-3"), "refused-3")
            .request_class("a", FAST)
            .wait(Kind::Claim, "a", Until::Condition("ModifyVolumeError"))
            .modification("a", "InProgress")
            .request_class("a", SLOW)
            .barrier()
            .record()
            .delete(Kind::AdmissionBinding, SELF)
            .modified("a", SLOW),
        // Both at once
        modified_other(
            with_other(of_node("class-requested-while-device-grows", "slow-9"))
                .step(Step::StopAgent("slow-9"))
                .request("a", "128Mi")
                .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Field("/spec/size", "128Mi".into())))
                .request_class("a", FAST),
        )
        .step(Step::StartAgent("slow-9"))
        .wait(Kind::Claim, "a", Until::Field("/status/capacity/storage", "128Mi".into()))
        .modified("a", FAST),
        unclassified("class-and-size-requested")
            .request("a", "128Mi")
            .expanded("a", "128Mi")
            .request_class("a", FAST)
            .modified("a", FAST)
            .request("a", "256Mi")
            .expanded("a", "256Mi"),
        // Secrets
        modified_other(
            with_secret("secret-of-modification-missing", secret("controller-modify", "missing"))
                .named_class("$SELF-other", json!({}))
                .claim("b", [on(ALPHA), json!({"spec": {"storageClassName": "$SELF-other"}})])
                .wait(Kind::Claim, "b", Until::Bound)
                .request_class("a", FAST)
                .wait(Kind::Claim, "a", Until::Field(STATUS, "InProgress".into())),
        )
        .record(),
        readable_secret(with_secret("secret-of-modification", secret("controller-modify", "key")), "key")
            .request_class("a", FAST)
            .modified("a", FAST),
        readable_secret(with_secret("secret-of-expansion-modifies", secret("controller-expand", "key")), "key")
            .request_class("a", FAST)
            .modified("a", FAST),
    ]
}
