//! The alert rules and the dashboard in `deploy/monitoring`, and a Prometheus that evaluates them in a cluster.

mod faults;
mod injected;
mod queries;
mod server;
mod silence;
mod watch;

pub use self::faults::{check_faults, faults_spec};
pub use self::injected::{OF_REFUSED_CLASS, OF_VOLUMES, WITHOUT_DATA_FOR_CAPACITY, WITHOUT_LVMD};
pub use self::queries::{
    Query, RuleNames, directory, queries_of_dashboard, read_rules, rule_names, rules_in_fast_time,
};
pub use self::server::{Prometheus, Sample};
pub use self::silence::check_silence;
