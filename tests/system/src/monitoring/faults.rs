//! Injects faults one after the other into a cluster with all features that the rules cover: the scheduling mode
//! extender with its webhooks, thin pools, a class that wipes, disks that can be disconnected. Each fault raises its
//! alerts, in fast time, and is repaired.

mod absence;
mod blocked_evacuation;
mod certificate;
mod disks;
mod extender;
mod full_classes;
mod leader;
mod limited_group;
mod mount;
mod rights;
mod setup;
mod slow_lvm;
mod thin_pool;
mod volume;
mod wiping;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::topolvm::TopolvmSpec;

pub use self::setup::faults_spec;

use self::setup::Setup;
use super::queries::{read_rules, rules_in_fast_time};
use super::server::Prometheus;

/// A group of faults that are injected together.
#[derive(Debug)]
struct Group {
    /// The alerts that they raise.
    alerts: &'static [&'static str],
    /// Injects the faults, waits for all the alerts, and repairs the faults.
    run: fn(&Setup<'_>) -> Result<()>,
}

/// The groups in their order. kube-scheduler does not call the extender before the end of the first one.
const GROUPS: [Group; 14] = [
    Group { alerts: &extender::ALERTS, run: extender::leave_extender_unused },
    Group { alerts: &full_classes::ALERTS, run: full_classes::fill_class },
    Group { alerts: &limited_group::ALERTS, run: limited_group::limit_volumes },
    Group { alerts: &thin_pool::ALERTS, run: thin_pool::fill_pool },
    Group { alerts: &volume::ALERTS, run: volume::fill_filesystem },
    Group { alerts: &disks::ALERTS, run: disks::take_groups_away },
    Group { alerts: &blocked_evacuation::ALERTS, run: blocked_evacuation::block_evacuation },
    Group { alerts: &wiping::ALERTS, run: wiping::fail_to_wipe },
    Group { alerts: &slow_lvm::ALERTS, run: slow_lvm::hold_lock },
    Group { alerts: &mount::ALERTS, run: mount::refuse_mount },
    Group { alerts: &rights::ALERTS, run: rights::take_rights_away },
    Group { alerts: &certificate::ALERTS, run: certificate::lose_certificate },
    Group { alerts: &leader::ALERTS, run: leader::lose_lease },
    Group { alerts: &absence::ALERTS, run: absence::take_programs_away },
];

/// Injects the faults of all groups into a cluster of [`faults_spec`], with a Prometheus whose files are in a
/// directory. Fails if an alert does not fire, or lacks a value in its text, and if a panel of the dashboard without
/// data in the cluster test has none here either. Returns the alerts and the time until each fired.
pub fn check_faults(cluster: &Cluster, node: &Node, spec: &TopolvmSpec, directory: &Path) -> Result<String> {
    let rules = rules_in_fast_time(read_rules()?)?;
    let prometheus = Prometheus::start(cluster, directory, &rules)?;
    let setup = Setup { cluster, node, manifests: &spec.manifests, prometheus: &prometheus };
    let (mut report, mut wrong) = (String::new(), Vec::new());
    for group in &GROUPS {
        let (start, alerts) = (Instant::now(), group.alerts.join(", "));
        // Run the other groups also after a failure
        wrong.extend((group.run)(&setup).err().map(|error| format!("{alerts}: {error:#}\n{}", setup.logs())));
        writeln!(report, "{alerts} after {:.0} s", start.elapsed().as_secs_f64())?;
    }
    prometheus.stop()?;
    ensure!(wrong.is_empty(), "{report}{}", wrong.join("\n"));
    Ok(report + "each alert of the groups has fired, and no text lacks a value")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::injected::{OF_REFUSED_CLASS, OF_VOLUMES, WITHOUT_LVMD};
    use super::super::queries::rule_names;
    use super::*;

    #[test]
    fn each_alert_has_exactly_one_injected_fault() {
        let of_test = [&OF_REFUSED_CLASS[..], &OF_VOLUMES, &WITHOUT_LVMD].concat();
        let of_groups: Vec<&str> = GROUPS.iter().flat_map(|group| group.alerts).copied().collect();
        let injected = [of_test, of_groups].concat();
        let alerts = rule_names(&read_rules().unwrap()).alerts;
        let as_set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(as_set(&injected), alerts.iter().cloned().collect());
        assert_eq!(injected.len(), alerts.len(), "a fault is injected twice");
    }
}
