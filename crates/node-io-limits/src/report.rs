//! The condition `IOLimited` of a LogicalVolume: whether the limits of its I/O are in force on the node. Volumes
//! without limits have none.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use topolvm_api::{IO_LIMITED, IoLimits, LogicalVolume, io_limited_condition};

use crate::enforcement::{Enforcement, INVALID};

/// Longest message in characters that the agent writes. The API server takes 32768.
const LONGEST_MESSAGE: usize = 4096;

/// Report of the limits of a volume; empty if no limit is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IoReport(Option<Statement>);

/// Contents of the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Statement {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl IoReport {
    /// Makes the report of a LogicalVolume whose limits cannot be meant: nothing is changed.
    pub(crate) fn invalid(message: &str) -> Self {
        Self::new("False", INVALID, &format!("{message}; the previous I/O limits stay in force"))
    }

    /// Creates the report of a volume with these own limits, and of the pods that use it.
    pub(crate) fn of<'a>(own: &IoLimits, pods: impl Iterator<Item = &'a Enforcement>) -> Self {
        let mut pods: Vec<_> = pods.collect();
        if pods.is_empty() && !own.is_empty() {
            return Self::new(
                "Unknown",
                "NotPublished",
                &format!("no pod uses the volume; limits of the next pod: {own}"),
            );
        }
        pods.sort_by_key(|pod| (&pod.pod.namespace, &pod.pod.name));
        pods.retain(|pod| !pod.is_none());
        let description = pods.iter().map(|pod| describe(pod)).collect::<Vec<_>>().join("; ");
        match pods.iter().find_map(|pod| pod.trouble.as_ref()) {
            _ if pods.is_empty() => Self::default(),
            Some(trouble) => Self::new("False", trouble.reason, &description),
            None if pods.iter().any(|pod| pod.exception.is_some()) => Self::new("True", "DirectIOOnly", &description),
            None => Self::new("True", "LimitsInForce", &description),
        }
    }

    fn new(status: &'static str, reason: &'static str, message: &str) -> Self {
        Self(Some(Statement { status, reason, message: message.chars().take(LONGEST_MESSAGE).collect() }))
    }

    /// Makes the condition of an object. Its time is that of the condition before, if both have the same status, and
    /// otherwise `now`.
    pub(crate) fn condition(&self, volume: &LogicalVolume, now: Timestamp) -> Option<Condition> {
        let Statement { status, reason, message } = self.0.as_ref()?;
        let unchanged = io_limited_condition(volume).filter(|before| before.status == *status);
        Some(Condition {
            type_: IO_LIMITED.to_owned(),
            status: (*status).to_owned(),
            reason: (*reason).to_owned(),
            message: message.clone(),
            observed_generation: volume.metadata.generation,
            last_transition_time: unchanged.map_or(Time(now), |before| before.last_transition_time.clone()),
        })
    }

    /// Returns whether the condition of an object is equal to the report.
    pub(crate) fn is_reported_by(&self, volume: &LogicalVolume) -> bool {
        let condition = io_limited_condition(volume)
            .map(|condition| (condition.status.as_str(), condition.reason.as_str(), &condition.message));
        condition == self.0.as_ref().map(|reported| (reported.status, reported.reason, &reported.message))
    }
}

/// Describes the limits that are in force for a pod, and those that are not.
fn describe(pod: &Enforcement) -> String {
    let Enforcement { pod: info, in_force, exception, trouble, .. } = pod;
    let mut description = format!("pod {}/{}: ", info.namespace, info.name);
    if let Some(trouble) = trouble {
        description.push_str(&trouble.message);
        description.push_str("; in force: ");
    }
    description.push_str(&if in_force.is_empty() { "nothing".to_owned() } else { in_force.to_string() });
    if let Some(exception) = exception {
        description.push_str(" (");
        description.push_str(exception);
        description.push(')');
    }
    description
}
