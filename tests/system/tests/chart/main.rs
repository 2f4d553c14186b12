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
mod refusals;
mod strategy;
mod tolerance;
mod upstream;

use std::process::ExitCode;

use system_tests::chart::Helm;
use testbed::{machine, suite};

/// A trial's function, which runs with a version of helm.
type Body = fn(Helm) -> anyhow::Result<()>;
/// A trial's function, which needs no helm.
type Alone = fn() -> anyhow::Result<()>;

fn main() -> ExitCode {
    let bodies: [(&str, Body); 9] = [
        ("renders_the_objects_of_the_kustomizations_and_no_others", equality::compare_with_kustomizations),
        ("finds_no_fault_with_the_chart_and_its_sets_of_values", equality::lint_all_values),
        ("renders_a_release_of_another_name_in_another_namespace_in_one_piece", names::check_references),
        ("tells_controller_and_extender_the_strategy_in_their_own_words", strategy::check_strategy),
        ("renders_values_of_topolvms_chart_with_what_they_say", upstream::check_rendered_values),
        ("takes_empty_sections_and_names_values_of_older_charts", tolerance::check_tolerance),
        ("mounts_no_volume_in_another_one", mounts::check_mounts),
        ("links_alerts_to_the_page_that_the_values_name", monitoring::check_runbooks),
        ("refuses_values_that_contradict_each_other_and_names_them", refusals::check_refusals),
    ];
    let mut trials = Vec::new();
    for (version, helm) in [("helm_3", Helm::Three), ("helm_4", Helm::Four)] {
        for (name, body) in bodies {
            trials.push(suite::test(format!("{version}_{name}"), move || body(helm)));
        }
    }
    let alone: [(&str, Alone); 2] = [
        ("each_alert_fires_on_its_fault_alone_and_none_in_a_healthy_cluster", monitoring::test_alerts),
        ("every_query_of_the_dashboard_and_of_the_documentation_is_understood", monitoring::check_queries),
    ];
    for (name, body) in alone {
        trials.push(suite::test(name, body));
    }
    let missing = machine::missing_for_go_programs().or_else(machine::missing_for_packages);
    suite::on_host_unless(missing, trials)
}
