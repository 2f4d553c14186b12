//! Placement of volumes with a real kube-scheduler and csi-provisioner, with storage capacity tracking and with the
//! extender: each volume is created on the right node, or an Event reports the reason. Two nodes without a machine are
//! enough, because binding is all that counts.

mod changes;
mod classes;
mod copies;
mod immediate;
mod selected_node;
mod setup;
mod template_node;

use anyhow::Result;
use system_tests::scheduling::Mode;

use self::setup::run_in_mode;
use crate::Body;
use crate::fixture::Fixture;

pub(crate) const ALL: &[(&str, Body)] = &[
    ("capacity_tracking_places_volumes_or_reports_the_reason", track_capacity),
    ("extender_places_volumes_or_reports_the_reason", use_extender),
];

fn track_capacity(fixture: &Fixture) -> Result<()> {
    run_in_mode(fixture, Mode::Capacity, |setup| {
        classes::place_by_class(setup)?;
        classes::refuse_other_keys(setup)?;
        selected_node::select_by_hand(setup)?;
        copies::place_next_to_source(setup)?;
        immediate::place_at_once(setup)?;
        template_node::publish_capacity(setup)?;
        changes::change_capacity(setup)
    })
}

fn use_extender(fixture: &Fixture) -> Result<()> {
    run_in_mode(fixture, Mode::Extender, |setup| {
        classes::place_by_class(setup)?;
        selected_node::select_by_hand(setup)?;
        copies::place_next_to_source(setup)?;
        immediate::place_at_once(setup)?;
        changes::change_capacity(setup)
    })
}
