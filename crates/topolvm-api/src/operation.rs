//! State of an operation that an object requests: its phase, conditions, progress and time to live.
//!
//! Nothing in here knows what is done. A final phase never changes.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{self, LONGEST_MESSAGE};
use crate::{format_bytes, parse_bytes};

/// Type of the condition of an operation that cannot go on at the moment.
const BLOCKED: &str = "Blocked";
/// Type of the condition of an operation that has succeeded, as of a Job.
const COMPLETE: &str = "Complete";
/// Type of the condition of an operation that has failed, as of a Job.
const FAILED: &str = "Failed";

/// Phase of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Not accepted yet.
    #[default]
    Pending,
    /// Accepted, and not at its end.
    Running,
    /// Done.
    Succeeded,
    /// Refused, or impossible. It is not retried.
    Failed,
    /// Ended by a deletion of the object.
    Canceled,
}

impl Phase {
    /// Returns true if the operation has ended.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled)
    }

    /// Returns the name of the phase.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
        }
    }
}

/// Progress of an operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Number of bytes that the operation handles.
    #[serde(default = "zero")]
    #[schemars(schema_with = "schema::quantity")]
    pub total_bytes: Quantity,
    /// Number of bytes that it has handled.
    #[serde(default = "zero")]
    #[schemars(schema_with = "schema::quantity")]
    pub completed_bytes: Quantity,
    /// Ratio of the two, rounded down, such as 42%.
    #[serde(default)]
    pub percent: String,
}

/// State of an operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationStatus {
    /// Phase of the operation. Succeeded, Failed and Canceled are final.
    #[serde(default)]
    pub phase: Phase,
    /// Conditions: Blocked while the operation cannot go on, and at its end Complete or Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Progress of an operation that moves data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Description of the state for people, with the fix if there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time at which the work began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,
    /// Time at which the operation ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub completion_time: Option<Time>,
}

impl OperationStatus {
    /// Records why the operation does not go on, in the phase that it has.
    pub fn wait(&mut self, message: &str) {
        if !self.phase.is_final() {
            self.set_message(message);
        }
    }

    /// Records that the operation has been accepted and goes on.
    pub fn run(&mut self, message: &str, now: Timestamp) {
        if self.begin(Phase::Running, message, now) && self.find_condition(BLOCKED).is_some() {
            self.set_condition(BLOCKED, false, "Unblocked", "", now);
        }
    }

    /// Records that the operation has been accepted and cannot go on for this reason.
    pub fn block(&mut self, reason: &str, message: &str, now: Timestamp) {
        if self.begin(Phase::Running, message, now) {
            self.set_condition(BLOCKED, true, reason, message, now);
        }
    }

    /// Records how many bytes are left.
    pub fn advance(&mut self, remaining: u64) {
        if self.phase.is_final() {
            return;
        }
        let known = self.progress.as_ref().and_then(|progress| parse_bytes(&progress.total_bytes).ok());
        let total = known.unwrap_or_default().max(remaining);
        let completed = total - remaining;
        let percent = (u128::from(completed) * 100).checked_div(u128::from(total)).unwrap_or(100);
        self.progress = Some(Progress {
            total_bytes: format_bytes(total),
            completed_bytes: format_bytes(completed),
            percent: format!("{percent}%"),
        });
    }

    /// Records that the operation has done what was requested.
    pub fn succeed(&mut self, message: &str, now: Timestamp) {
        if self.end(Phase::Succeeded, message, now) {
            self.progress.as_mut().into_iter().for_each(Progress::complete);
            self.set_condition(COMPLETE, true, "Succeeded", message, now);
        }
    }

    /// Records that the operation has failed for this reason.
    pub fn fail(&mut self, reason: &str, message: &str, now: Timestamp) {
        if self.end(Phase::Failed, message, now) {
            self.set_condition(FAILED, true, reason, message, now);
        }
    }

    /// Records that the operation was ended before it was done.
    pub fn cancel(&mut self, message: &str, now: Timestamp) {
        if self.end(Phase::Canceled, message, now) {
            self.set_condition(COMPLETE, false, "Canceled", message, now);
        }
    }

    /// Returns why the operation cannot continue at the moment, if the condition reports it.
    pub fn blocked(&self) -> Option<&str> {
        let condition = self.find_condition(BLOCKED).filter(|condition| condition.status == "True");
        condition.map(|condition| condition.message.as_str())
    }

    /// Returns the time from which the object may be deleted; `None` if the operation has not ended.
    pub fn expires_at(&self, ttl_seconds: i32) -> Option<Timestamp> {
        let end = self.completion_time.as_ref().filter(|_| self.phase.is_final())?;
        Some(end.0.saturating_add(SignedDuration::from_secs(ttl_seconds.into())).unwrap_or(Timestamp::MAX))
    }

    fn begin(&mut self, phase: Phase, message: &str, now: Timestamp) -> bool {
        if self.phase.is_final() {
            return false;
        }
        self.phase = phase;
        self.start_time.get_or_insert(Time(now));
        self.set_message(message);
        true
    }

    fn end(&mut self, phase: Phase, message: &str, now: Timestamp) -> bool {
        let ends = self.begin(phase, message, now);
        if ends {
            self.completion_time = Some(Time(now));
            if self.blocked().is_some() {
                self.set_condition(BLOCKED, false, phase.as_str(), "", now);
            }
        }
        ends
    }

    fn set_message(&mut self, message: &str) {
        self.message = message.chars().take(LONGEST_MESSAGE).collect();
    }

    fn find_condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    fn set_condition(&mut self, type_: &str, is_true: bool, reason: &str, message: &str, now: Timestamp) {
        let status = if is_true { "True" } else { "False" };
        let before = self.find_condition(type_).filter(|before| before.status == status);
        let condition = Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.chars().take(LONGEST_MESSAGE).collect(),
            observed_generation: None,
            last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
        };
        match self.conditions.iter_mut().find(|condition| condition.type_ == type_) {
            Some(known) => *known = condition,
            None => self.conditions.push(condition),
        }
    }
}

impl Progress {
    fn complete(&mut self) {
        self.completed_bytes.clone_from(&self.total_bytes);
        "100%".clone_into(&mut self.percent);
    }
}

fn zero() -> Quantity {
    Quantity("0".to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const THEN: Timestamp = Timestamp::constant(1_767_225_600, 0);
    const NOW: Timestamp = Timestamp::constant(1_767_229_200, 0);

    #[test]
    fn operation_has_conditions_as_a_job_has() {
        let mut status = OperationStatus::default();
        status.wait("lvmd is away");
        assert_eq!(json!(status), json!({"phase": "Pending", "message": "lvmd is away"}));
        status.block("EvacuationBlocked", "1 GiB too little", THEN);
        status.advance(1 << 30);
        assert_eq!(status.blocked(), Some("1 GiB too little"));
        status.run("768Mi left to move", NOW);
        status.advance(768 << 20);
        let unblocked = json!({
            "type": "Blocked", "status": "False", "reason": "Unblocked", "message": "",
            "lastTransitionTime": "2026-01-01T01:00:00Z",
        });
        let expected = json!({
            "phase": "Running", "message": "768Mi left to move", "startTime": "2026-01-01T00:00:00Z",
            "progress": {"totalBytes": "1Gi", "completedBytes": "256Mi", "percent": "25%"},
            "conditions": [unblocked],
        });
        assert_eq!(json!(status), expected);
        status.succeed("empty", NOW);
        let complete = json!({
            "type": "Complete", "status": "True", "reason": "Succeeded", "message": "empty",
            "lastTransitionTime": "2026-01-01T01:00:00Z",
        });
        let expected = json!({
            "phase": "Succeeded", "message": "empty", "startTime": "2026-01-01T00:00:00Z",
            "completionTime": "2026-01-01T01:00:00Z", "conditions": [unblocked, complete],
            "progress": {"totalBytes": "1Gi", "completedBytes": "1Gi", "percent": "100%"},
        });
        assert_eq!(json!(status), expected);
    }

    #[test]
    fn final_phase_never_changes() {
        let mut status = OperationStatus::default();
        status.block("EvacuationBlocked", "full", THEN);
        status.fail("Refused", "no", THEN);
        assert_eq!(status.blocked(), None);
        let failed = status.clone();
        status.succeed("yes", NOW);
        status.run("again", NOW);
        status.wait("again");
        status.cancel("stop", NOW);
        status.advance(1);
        assert_eq!(status, failed);
    }

    #[test]
    fn transition_time_is_that_of_the_first_observation() {
        let mut status = OperationStatus::default();
        status.block("EvacuationBlocked", "2 GiB too little", THEN);
        status.block("EvacuationBlocked", "1 GiB too little", NOW);
        assert_eq!(status.conditions[0].last_transition_time, Time(THEN));
        assert_eq!(status.conditions[0].message, "1 GiB too little");
    }

    #[rstest]
    #[case::default(604_800, Some(Timestamp::constant(1_767_830_400, 0)))]
    #[case::at_once(0, Some(THEN))]
    fn expiry_counts_from_the_end(#[case] ttl: i32, #[case] expected: Option<Timestamp>) {
        let mut status = OperationStatus::default();
        status.run("moving", THEN);
        assert_eq!(status.expires_at(ttl), None);
        status.cancel("stopped", THEN);
        assert_eq!(status.expires_at(ttl), expected);
        assert_eq!(status.phase.as_str(), "Canceled");
    }

    #[test]
    fn progress_grows_its_total_with_what_is_left() {
        let mut status = OperationStatus::default();
        status.advance(0);
        assert_eq!(status.progress.as_ref().unwrap().percent, "100%");
        for (remaining, percent) in [(1 << 30, "0%"), (1 << 29, "50%"), (1 << 31, "0%")] {
            status.advance(remaining);
            assert_eq!(status.progress.as_ref().unwrap().percent, percent);
        }
    }
}
