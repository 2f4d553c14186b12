//! Checks that an LV is in the volume group and thin pool of its class, and that a copy is one of its source. A copy
//! that was created as an empty volume, or of another volume, has the right size and the wrong data; LVM keeps its
//! origin.

use serde_json::Value;
use testbed::topolvm::{THIN_CLASS, THIN_POOL, THIN_VG};

use super::disagreement::{Disagreement, Kind};
use super::fields::{find_by_name, text, volume_id};
use super::state::{Lv, State, THICK_CLASS, THICK_VG};

/// Compares the LV of a LogicalVolume with the class and the source in its spec.
pub(super) fn check_lineage(state: &State, object: &Value, lv: &Lv, all: &mut Vec<Disagreement>) {
    let (name, id) = (text(object, "/metadata/name"), volume_id(object));
    let mut report = |what: String| all.push(Disagreement::new(Kind::Different, &[name, id], what));
    let class = text(object, "/spec/deviceClass");
    let is_in = (lv.group.as_str(), lv.pool.as_str());
    match group_and_pool(class) {
        Some(place) if place == is_in => {}
        Some(place) => {
            report(format!("LogicalVolume {name} of class {class:?} should be in {place:?} and is in {is_in:?}"));
        }
        None => report(format!("LogicalVolume {name} is of class {class:?}, which no node has")),
    }
    let source = text(object, "/spec/source");
    if !source.is_empty() && lv.pool.is_empty() {
        report(format!("LogicalVolume {name} is a copy of {source} outside any thin pool"));
    }
    // LVM forgets an origin that is removed
    let origin = find_by_name(&state.objects, source).map_or("", |source| volume_id(source));
    if lv.origin != origin {
        report(format!(
            "LogicalVolume {name} should come from {origin:?}, the LV of {source:?}, and comes from {:?}",
            lv.origin
        ));
    }
}

/// Returns the volume group and the thin pool of a device class.
fn group_and_pool(class: &str) -> Option<(&'static str, &'static str)> {
    match class {
        "" | THICK_CLASS => Some((THICK_VG, "")),
        THIN_CLASS => Some((THIN_VG, THIN_POOL)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::{consistent_state, lv, messages};
    use super::*;

    fn after(change: impl FnOnce(&mut State)) -> String {
        let mut state = consistent_state();
        change(&mut state);
        let mut all = Vec::new();
        for object in &state.objects {
            let uid = text(object, "/metadata/uid");
            let lv = state.nodes.iter().flat_map(|node| &node.lvm).find(|lv| lv.name == uid).unwrap();
            check_lineage(&state, object, lv, &mut all);
        }
        messages(&all)
    }

    #[test]
    fn copies_of_what_they_say_are_in_order() {
        assert_eq!(after(|_| {}), "");
    }

    #[test]
    fn another_origin_is_noticed() {
        let other = after(|state| lv(state, "lv3").origin = "lv1".to_owned());
        assert!(other.contains(r#"LogicalVolume pv-r should come from "lv2""#), "{other}");
        assert!(after(|state| lv(state, "lv2").origin.clear()).contains("LogicalVolume content should come from"));
        let copied = after(|state| lv(state, "lv1").origin = "lv9".to_owned());
        assert!(copied.contains(r#"LogicalVolume pv should come from """#), "{copied}");
    }

    #[test]
    fn an_origin_may_be_gone_when_its_source_is_and_must_be() {
        let without_snapshot =
            |state: &mut State| state.objects.retain(|object| text(object, "/metadata/name") != "content");
        let kept = after(without_snapshot);
        assert!(kept.contains("LogicalVolume pv-r should come from"), "{kept}");
        let forgotten = after(|state| {
            without_snapshot(state);
            lv(state, "lv3").origin.clear();
        });
        assert_eq!(forgotten, "");
    }

    #[test]
    fn a_volume_outside_the_pool_of_its_class_is_noticed() {
        let thick = after(|state| lv(state, "lv3").pool.clear());
        assert!(
            thick.contains(r#"should be in ("thinvg", "pool0")"#) && thick.contains("outside any thin pool"),
            "{thick}"
        );
        assert!(after(|state| lv(state, "lv1").group = "myvg1".to_owned()).contains("LogicalVolume pv of class"));
        assert!(after(|state| lv(state, "lv4").pool = "pool0".to_owned()).contains("LogicalVolume pv-t of class"));
        assert!(after(|state| state.objects[0]["spec"]["deviceClass"] = json!("tape")).contains("which no node has"));
    }
}
