use std::collections::BTreeMap;

use proptest::prelude::*;
use topolvm_testkit::fixtures::{ClaimBuilder, LogicalVolumeBuilder, claim, logical_volume, storage_class};

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MINIMUMS: MinimumAllocation =
    MinimumAllocation { block: 8 * MIB, ext4: 32 * MIB, xfs: 300 * MIB, btrfs: 200 * MIB };

/// Reservations, and the time.
struct World {
    reservations: Reservations,
    now: Instant,
}

impl World {
    /// Knows the StorageClass `fast`, of the device class `ssd`, and has listed that there is nothing else.
    fn new() -> Self {
        let mut world = Self { reservations: Reservations::new(ApiFlavor::TopoLvm, MINIMUMS), now: Instant::now() };
        for event in [Event::Init, Event::InitDone] {
            world.volume(&event);
            world.reservations.apply_claim(&event_of(&event), world.now, wall(0));
        }
        world.class(storage_class("fast").device_class("ssd").build());
        world
    }

    fn class(&mut self, class: StorageClass) {
        self.reservations.apply_class(&Event::Apply(class));
    }

    fn volume(&mut self, event: &Event<LogicalVolume>) {
        self.reservations.apply_volume(event, self.now);
    }

    fn apply(&mut self, volume: LogicalVolumeBuilder) {
        self.volume(&Event::Apply(volume.build()));
    }

    fn claim(&mut self, claim: &PersistentVolumeClaim) {
        self.reservations.apply_claim(&Event::Apply(claim.clone()), self.now, wall(0));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// GiB that are reserved in the class `ssd` of a node.
    fn reserved(&mut self, node: &str) -> u64 {
        self.reservations.refresh(self.now);
        self.reservations
            .on_node(node)
            .filter(|(classes, _)| **classes == "ssd".into())
            .map(|(_, bytes)| bytes)
            .sum::<u64>()
            / GIB
    }
}

fn event_of<T>(event: &Event<LogicalVolume>) -> Event<T> {
    if matches!(event, Event::Init) { Event::Init } else { Event::InitDone }
}

fn wall(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

/// A claim for the volume `pvc-UID`.
fn with_uid(uid: &str, claim: ClaimBuilder) -> PersistentVolumeClaim {
    let mut claim = claim.build();
    claim.metadata.uid = Some(uid.to_owned());
    claim
}

fn selected(uid: &str, node: &str) -> PersistentVolumeClaim {
    with_uid(uid, claim(&format!("data-{uid}")).class("fast").selected_node(node).sized("2Gi"))
}

fn volume(uid: &str) -> LogicalVolumeBuilder {
    logical_volume(&format!("pvc-{uid}")).class("ssd").sized("2Gi")
}

#[tokio::test(start_paused = true)]
async fn volume_is_reserved_once_from_node_selection_to_publication() {
    let mut world = World::new();
    world.claim(&selected("1", "n1"));
    assert_eq!(world.reserved("n1"), 2);
    world.apply(volume("1"));
    assert_eq!(world.reserved("n1"), 2);
    world.apply(volume("1").ready("u", "2Gi"));
    assert_eq!(world.reserved("n1"), 2);
    world.reservations.publish("n1", |_| 2 * GIB, world.now);
    assert_eq!(world.reserved("n1"), 0);
    // The claim is bound a moment later
    world.pass(SETTLING_TIME);
    assert_eq!(world.reserved("n1"), 0);
}

/// The node publishes its capacity before the status of the volume is written.
#[tokio::test(start_paused = true)]
async fn published_bytes_are_not_reserved_in_addition() {
    let mut world = World::new();
    world.apply(volume("1"));
    world.apply(volume("2"));
    world.claim(&selected("3", "n1"));
    world.reservations.publish("n1", |_| 2 * GIB, world.now);
    assert_eq!(world.reserved("n1"), 4);
    world.apply(volume("1").ready("u", "2Gi"));
    assert_eq!(world.reserved("n1"), 4);
    // Something else has taken as much
    world.reservations.publish("n1", |_| 2 * GIB, world.now);
    assert_eq!(world.reserved("n1"), 2);
    world.pass(SETTLING_TIME);
    assert_eq!(world.reserved("n1"), 4);
}

/// One of them has taken what the capacity has fallen by, and the other one may still come.
#[tokio::test(start_paused = true)]
async fn reservations_of_two_layouts_are_not_released_by_publication() {
    let mut world = World::new();
    world.apply(volume("1"));
    world.apply(volume("2").option_class("mirrored"));
    world.reservations.publish("n1", |_| 2 * GIB, world.now);
    world.apply(volume("1").ready("u", "2Gi"));
    world.reservations.publish("n1", |_| 2 * GIB, world.now);
    let sizes = |world: &mut World| {
        world.reservations.refresh(world.now);
        world.reservations.on_node("n1").map(|(_, bytes)| bytes / GIB).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&mut world), [2, 2]);
    world.pass(SETTLING_TIME);
    assert_eq!(sizes(&mut world), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_publish_ends_the_reservation_by_time() {
    let mut world = World::new();
    world.apply(volume("1"));
    world.apply(volume("1").ready("u", "2Gi"));
    assert_eq!((world.reserved("n1"), world.reservations.next_end(world.now)), (2, Some(world.now + SETTLING_TIME)));
    world.pass(SETTLING_TIME);
    assert_eq!((world.reserved("n1"), world.reservations.next_end(world.now)), (0, None));
}

#[tokio::test(start_paused = true)]
async fn ready_volume_at_the_start_is_not_reserved() {
    let mut reservations = Reservations::new(ApiFlavor::TopoLvm, MINIMUMS);
    let now = Instant::now();
    let volumes = [volume("1").ready("u", "2Gi"), volume("2")].map(|volume| Event::InitApply(volume.build()));
    for event in [Event::Init].into_iter().chain(volumes).chain([Event::InitDone]) {
        reservations.apply_volume(&event, now);
    }
    reservations.refresh(now);
    assert_eq!(reservations.on_node("n1").collect::<Vec<_>>(), [(&"ssd".into(), 2 * GIB)]);
}

#[tokio::test(start_paused = true)]
async fn only_what_a_growing_volume_lacks_is_reserved() {
    let mut world = World::new();
    world.apply(volume("1").ready("u", "2Gi"));
    world.pass(SETTLING_TIME);
    world.apply(volume("1").sized("5Gi").ready("u", "2Gi"));
    assert_eq!(world.reserved("n1"), 3);
    world.apply(volume("1").sized("5Gi").ready("u", "5Gi"));
    assert_eq!(world.reserved("n1"), 3);
    world.pass(SETTLING_TIME);
    assert_eq!(world.reserved("n1"), 0);
}

/// Short-lived volumes come and go between two publications, of which neither shows them.
#[tokio::test(start_paused = true)]
async fn volume_removed_before_publication_is_not_reserved_any_more() {
    let mut world = World::new();
    for uid in ["1", "2"] {
        world.apply(volume(uid));
        world.apply(volume(uid).ready(uid, "2Gi"));
    }
    assert_eq!(world.reserved("n1"), 4);
    world.volume(&Event::Delete(volume("1").ready("1", "2Gi").build()));
    assert_eq!(world.reserved("n1"), 2);
    world.reservations.publish("n1", |_| 2 * GIB, world.now);
    assert_eq!(world.reserved("n1"), 0);
}

#[tokio::test(start_paused = true)]
async fn failure_and_deletion_release() {
    let mut world = World::new();
    world.claim(&selected("1", "n1"));
    world.apply(volume("1"));
    world.apply(volume("1").failed(8, "full"));
    assert_eq!(world.reserved("n1"), 0);
    // The node tries again
    world.apply(volume("1"));
    assert_eq!(world.reserved("n1"), 2);
    world.volume(&Event::Delete(volume("1").build()));
    assert_eq!(world.reserved("n1"), 2);
    // external-provisioner gives the claim back to the scheduler, which chooses another node
    world.claim(&with_uid("1", claim("data-1").class("fast")));
    assert_eq!(world.reserved("n1"), 0);
    world.claim(&selected("1", "n2"));
    assert_eq!((world.reserved("n1"), world.reserved("n2")), (0, 2));
    let gone = selected("1", "n2");
    world.reservations.apply_claim(&Event::Delete(gone), world.now, wall(0));
    assert_eq!(world.reserved("n2"), 0);
}

#[tokio::test(start_paused = true)]
async fn claim_without_progress_reserves_for_five_minutes() {
    let mut world = World::new();
    world.claim(&selected("1", "n1"));
    world.pass(CLAIM_TIMEOUT / 2);
    // Something else of it changes
    world.claim(&selected("1", "n1"));
    assert_eq!(world.reserved("n1"), 2);
    world.pass(CLAIM_TIMEOUT / 2);
    assert_eq!(world.reserved("n1"), 0);
    world.claim(&selected("1", "n2"));
    assert_eq!(world.reserved("n2"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_begin_the_five_minutes_again() {
    let mut reservations = World::new().reservations;
    let mut old = selected("1", "n1");
    let fields = serde_json::json!([{"manager": "kube-scheduler", "operation": "Update", "time": wall(0),
        "fieldsV1": {"f:metadata": {"f:annotations": {"f:volume.kubernetes.io/selected-node": {}}}}}]);
    old.metadata.managed_fields = serde_json::from_value(fields).unwrap();
    let now = Instant::now();
    for event in [Event::Init, Event::InitApply(old), Event::InitDone] {
        reservations.apply_claim(&event, now, wall(240));
    }
    reservations.refresh(now);
    assert_eq!(reservations.next_end(now), Some(now + Duration::from_mins(1)));
}

#[tokio::test(start_paused = true)]
async fn claims_of_other_drivers_reserve_nothing() {
    let mut world = World::new();
    world.class(storage_class("other").provisioner("ebs.example").build());
    let foreign = with_uid("1", claim("data").class("other").selected_node("n1"));
    world.claim(&foreign);
    assert_eq!(world.reserved("n1"), 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_new_list_lacks_is_gone() {
    let mut world = World::new();
    world.claim(&selected("1", "n1"));
    world.apply(volume("2"));
    assert_eq!(world.reserved("n1"), 4);
    for event in [Event::Init, Event::InitDone] {
        world.volume(&event);
        world.reservations.apply_claim(&event_of(&event), world.now, wall(0));
    }
    assert_eq!(world.reserved("n1"), 0);
}

#[tokio::test(start_paused = true)]
async fn volume_creation_reserves_in_place_of_the_claim() {
    let mut world = World::new();
    world.claim(&selected("1", "n1"));
    let key = VolumeKey::from_name("pvc-1");
    let reservation = Reservation { node: "n2".into(), classes: "ssd".into(), bytes: 2 * GIB };
    world.reservations.begin_creation(key.clone(), reservation.clone());
    assert_eq!((world.reserved("n1"), world.reserved("n2")), (0, 2));
    world.reservations.end_creation(&key, false, world.now);
    assert_eq!((world.reserved("n1"), world.reserved("n2")), (2, 0));
    world.reservations.begin_creation(key.clone(), reservation);
    world.reservations.end_creation(&key, true, world.now);
    assert_eq!((world.reserved("n1"), world.reserved("n2")), (0, 2));
    world.apply(volume("1").on("n2"));
    assert_eq!((world.reserved("n1"), world.reserved("n2")), (0, 2));
    world.pass(SETTLING_TIME);
    assert_eq!(world.reserved("n2"), 2);
}

#[tokio::test(start_paused = true)]
async fn own_reservations_can_be_left_out() {
    let mut world = World::new();
    world.claim(&selected("1", "n1"));
    world.claim(&selected("2", "n1"));
    world.apply(volume("2"));
    let now = world.now;
    let own = |exemption: &Exemption| exemption.bytes("n1", &"ssd".into()) / GIB;
    assert_eq!(own(&world.reservations.exempt_volume("pvc-1", now)), 2);
    assert_eq!(own(&world.reservations.exempt_volume("pvc-2", now)), 2);
    assert_eq!(own(&world.reservations.exempt_volume("pvc-3", now)), 0);
    assert_eq!(own(&world.reservations.exempt_claims("default", &["data-1", "data-2", "x"], now)), 4);
    assert_eq!(own(&world.reservations.exempt_claims("elsewhere", &["data-1"], now)), 0);
}

/// An object of one of the volumes `0` to `4`.
#[derive(Clone, Debug)]
enum Object {
    Claim { uid: u8, node: u8, gib: u64, is_bound: bool },
    Volume { uid: u8, node: u8, gib: u64, state: u8 },
}

impl Object {
    /// Applies it, and returns false if all totals are what they were.
    fn apply(&self, reservations: &mut Reservations, now: Instant) -> bool {
        match *self {
            Self::Claim { uid, node, gib, is_bound } => {
                let claim = claim(&format!("data-{uid}")).class("fast").sized(&format!("{gib}Gi"));
                let claim = claim.selected_node(&format!("n{node}"));
                let claim = if is_bound { claim.bound_to("pv") } else { claim };
                reservations.apply_claim(&Event::Apply(with_uid(&uid.to_string(), claim)), now, wall(0)).is_changed
            }
            Self::Volume { uid, node, gib, state } => {
                let volume = volume(&uid.to_string()).on(&format!("n{node}")).sized(&format!("{gib}Gi"));
                let volume = match state {
                    0 => volume,
                    1 => volume.failed(8, "full"),
                    2 => volume.ready("u", "1Gi"),
                    _ => volume.ready("u", &format!("{gib}Gi")),
                };
                reservations.apply_volume(&Event::Apply(volume.build()), now)
            }
        }
    }

    /// The volume, and whether this is its `LogicalVolume`, which comes before its claim.
    fn key(&self) -> (u8, bool) {
        match *self {
            Self::Claim { uid, .. } => (uid, true),
            Self::Volume { uid, .. } => (uid, false),
        }
    }

    /// The node and the bytes that are reserved if this is what counts for the volume.
    fn reservation(&self) -> (String, u64) {
        match *self {
            Self::Claim { node, gib, is_bound, .. } => (format!("n{node}"), if is_bound { 0 } else { gib * GIB }),
            Self::Volume { node, gib, state, .. } => {
                let missing = match state {
                    0 => gib,
                    2 => gib - 1,
                    _ => 0,
                };
                (format!("n{node}"), missing * GIB)
            }
        }
    }
}

fn object() -> impl Strategy<Value = Object> {
    let claim = (0..5_u8, 0..2_u8, 1..4_u64, any::<bool>()).prop_map(|(uid, node, gib, is_bound)| Object::Claim {
        uid,
        node,
        gib,
        is_bound,
    });
    let volume = (0..5_u8, 0..2_u8, 1..4_u64, 0..4_u8).prop_map(|(uid, node, gib, state)| Object::Volume {
        uid,
        node,
        gib,
        state,
    });
    prop_oneof![claim, volume]
}

fn objects() -> impl Strategy<Value = (Vec<Object>, Vec<Object>)> {
    proptest::collection::vec(object(), 0..12).prop_flat_map(|mut objects| {
        // Each object as it is in the end
        objects.sort_by_key(Object::key);
        objects.dedup_by_key(|object| object.key());
        (Just(objects.clone()).prop_shuffle(), Just(objects).prop_shuffle())
    })
}

proptest! {
    #[test]
    fn each_volume_counts_once_whatever_the_order_of_events((first, second) in objects()) {
        let runtime = tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build().unwrap();
        let _guard = runtime.enter();
        let [one, other] = [&first, &second].map(|objects| {
            let mut world = World::new();
            for object in objects {
                object.apply(&mut world.reservations, world.now);
            }
            world.pass(SETTLING_TIME);
            world.reservations.refresh(world.now);
            world.reservations.totals
        });
        let mut counted: BTreeMap<u8, &Object> = BTreeMap::new();
        for object in &first {
            let (uid, is_claim) = object.key();
            if !is_claim || !counted.contains_key(&uid) {
                counted.insert(uid, object);
            }
        }
        let mut expected = Totals::default();
        for (node, bytes) in counted.values().map(|object| object.reservation()) {
            expected.add(&Reservation { node: node.into(), classes: "ssd".into(), bytes });
        }
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(one, expected);
    }

    #[test]
    fn totals_stay_after_events_that_change_none(objects in proptest::collection::vec(object(), 0..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build().unwrap();
        let _guard = runtime.enter();
        let mut world = World::new();
        world.reservations.refresh(world.now);
        for object in objects {
            let is_changed = object.apply(&mut world.reservations, world.now);
            let has_changed = world.reservations.refresh(world.now);
            prop_assert!(is_changed || !has_changed, "{object:?}");
            // The same again
            prop_assert!(!object.apply(&mut world.reservations, world.now), "{object:?}");
        }
    }
}

/// Totals would be computed for each of hundreds of thousands of volumes when a controller starts.
#[tokio::test(start_paused = true)]
async fn settled_volumes_and_bound_claims_of_a_list_change_no_total() {
    let (mut reservations, now) = (Reservations::new(ApiFlavor::TopoLvm, MINIMUMS), Instant::now());
    let bound = with_uid("1", claim("data-1").class("fast").selected_node("n1").bound_to("pvc-1"));
    assert!(!reservations.apply_claim(&Event::InitApply(bound), now, wall(0)).is_changed);
    assert!(!reservations.apply_volume(&Event::InitApply(volume("1").ready("u", "2Gi").build()), now));
    assert!(reservations.apply_claim(&Event::InitApply(selected("2", "n1")), now, wall(0)).is_changed);
    assert!(reservations.apply_volume(&Event::InitApply(volume("2").ready("v", "2Gi").build()), now));
    assert!(reservations.apply_volume(&Event::InitApply(volume("3").build()), now));
}
