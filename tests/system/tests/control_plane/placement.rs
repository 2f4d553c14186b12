//! Placement of volumes with a real kube-scheduler and csi-provisioner, with storage capacity tracking and with the
//! extender: each volume is created on the right node, or an Event reports the reason. Two nodes without a machine are
//! enough, because binding is all that counts.

mod bed;
mod changes;
mod classes;
mod copies;
mod immediate;
mod selected_node;
mod template_node;

use anyhow::Result;
use system_tests::scheduling::Mode;

use self::bed::run_in_mode;
use crate::Body;
use crate::fixture::Fixture;

pub(crate) const ALL: &[(&str, Body)] = &[
    ("capacity_tracking_places_volumes_or_reports_the_reason", track_capacity),
    ("extender_places_volumes_or_reports_the_reason", use_extender),
];

fn track_capacity(fixture: &Fixture) -> Result<()> {
    run_in_mode(fixture, Mode::Capacity, |bed| {
        classes::place_by_class(bed)?;
        classes::refuse_other_keys(bed)?;
        selected_node::select_by_hand(bed)?;
        copies::place_next_to_source(bed)?;
        immediate::place_at_once(bed)?;
        template_node::publish_capacity(bed)?;
        changes::change_capacity(bed)
    })
}

fn use_extender(fixture: &Fixture) -> Result<()> {
    run_in_mode(fixture, Mode::Extender, |bed| {
        classes::place_by_class(bed)?;
        selected_node::select_by_hand(bed)?;
        copies::place_next_to_source(bed)?;
        immediate::place_at_once(bed)?;
        changes::change_capacity(bed)
    })
}
