//! The chart without a cluster: helm renders the objects that kustomize builds, and values that contradict each other
//! are refused. The alert rules and the dashboard without a Prometheus.
#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "starts helm, kubectl and promtool; reading a member that a JSON value lacks gives null"
)]

mod equality;
mod monitoring;
mod mounts;
mod names;
mod objects;
mod ports;
mod refusals;
mod strategy;
mod tolerance;
mod upstream;

use std::process::ExitCode;

use testbed::{machine, suite};

/// A test and its name.
type Test = (&'static str, fn() -> anyhow::Result<()>);

const TESTS: [Test; 12] = [
    ("chart_renders_the_objects_of_the_kustomizations", equality::compare_with_kustomizations),
    ("chart_and_its_sets_of_values_pass_helm_lint", equality::lint_all_values),
    ("chart_has_no_dangling_reference_under_another_name", names::check_references),
    ("chart_passes_the_strategy_to_controller_and_extender", strategy::check_strategy),
    ("chart_renders_the_values_of_topolvms_chart", upstream::check_rendered_values),
    ("chart_takes_empty_sections_and_names_values_of_older_charts", tolerance::check_tolerance),
    ("chart_mounts_no_volume_in_another_one", mounts::check_mounts),
    ("chart_opens_the_ports_of_its_network_policy", ports::check_ports),
    ("chart_links_alerts_to_the_page_of_its_values", monitoring::check_runbooks),
    ("chart_refuses_contradicting_values_and_names_them", refusals::check_refusals),
    ("alerts_fire_on_their_own_fault_alone", monitoring::test_alerts),
    ("queries_of_dashboard_and_documentation_are_valid", monitoring::check_queries),
];

fn main() -> ExitCode {
    let missing = machine::missing_for_go_programs().or_else(machine::missing_for_packages);
    let tests = TESTS.into_iter().map(|(name, test)| suite::test(name, test));
    suite::on_host_unless(missing, tests.collect())
}
