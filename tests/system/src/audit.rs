//! Requests of the product's pods to the API server, read from its audit log, and the RBAC rules that allow them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context as _, Result};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;

/// Audit policy that logs the metadata of every request of the product's service accounts. A watch is logged when it
/// begins, too: it may not end.
pub const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ['system:serviceaccounts:topolvm-system']
";

/// The sidecars of the controller, which work with its account.
const SIDECARS: [&str; 3] = ["csi-provisioner", "csi-resizer", "csi-snapshotter"];

/// A request of a program to the API server. Equal requests count once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Name of the sidecar by its user agent, else of the service account.
    pub program: String,
    /// Verb: `get`, `list`, `create`, ...
    pub verb: String,
    /// API group; empty is the core's.
    pub group: String,
    /// Resource, with its subresource: `pods`, `pods/status`.
    pub resource: String,
    /// Name of the object, where the request has one.
    pub name: String,
    /// True if the API server refused the request because no role allows it.
    pub is_forbidden: bool,
}

/// One verb for one resource in a role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Name of the Role or ClusterRole.
    pub role: String,
    /// As of [`Request::verb`].
    pub verb: String,
    /// As of [`Request::group`].
    pub group: String,
    /// As of [`Request::resource`].
    pub resource: String,
    /// Names of the objects that the rule is limited to; an empty list means all.
    pub names: Vec<String>,
}

/// Parses an audit log into its distinct requests. Requests for no resource, such as `/version`, need no role and are
/// left out.
pub fn requests(log: &str) -> Result<BTreeSet<Request>> {
    let read = |line: &str| -> Result<Option<Request>> {
        let event: Event = serde_json::from_str(line).with_context(|| format!("no audit event: {line}"))?;
        Ok(event.request())
    };
    log.lines().filter_map(|line| read(line).transpose()).collect()
}

/// Expands the rules of a role into one right for each verb and resource.
pub fn rights(role: &str, rules: &[PolicyRule]) -> Vec<Right> {
    let mut rights = Vec::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                rights.extend(rule.verbs.iter().map(|verb| Right {
                    role: role.to_owned(),
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    names: rule.resource_names.clone().unwrap_or_default(),
                }));
            }
        }
    }
    rights
}

impl Right {
    /// Returns true if this right allowed the request: the request's program has the role, and it was not refused.
    pub fn allows(&self, request: &Request) -> bool {
        self.programs().iter().any(|program| self.allows_to(program, request))
    }

    /// Returns true if this right allowed the request of this program: it was not refused.
    pub fn allows_to(&self, program: &str, request: &Request) -> bool {
        program == request.program
            && !request.is_forbidden
            && (&self.verb, &self.group, &self.resource) == (&request.verb, &request.group, &request.resource)
            && (self.names.is_empty() || self.names.contains(&request.name))
    }

    /// Returns the programs whose service account has the role.
    fn programs(&self) -> &[&str] {
        let name = self.role.rsplit(':').next().unwrap_or_default();
        match SIDECARS.iter().position(|sidecar| *sidecar == name) {
            Some(index) => SIDECARS.get(index..=index).unwrap_or_default(),
            None if name == "topolvm-sidecars" => &SIDECARS,
            None if name == "node" || name.starts_with("node-") => &["topolvm-node"],
            None if name == "scheduler" => &["topolvm-scheduler"],
            None => &["topolvm-controller"],
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, verb, group, resource, names: _ } = self;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "{role}: {verb} {resource}{dot}{group}")
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<ObjectRef>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    api_group: String,
    #[serde(default)]
    name: String,
}

impl Event {
    fn request(self) -> Option<Request> {
        let ObjectRef { resource, subresource, api_group, name } = self.object_ref?;
        // client-go sends the name of the program, a slash and its version
        let agent = self.user_agent.split('/').next().unwrap_or_default();
        let account = self.user.username.rsplit(':').next().unwrap_or_default();
        let program = if SIDECARS.contains(&agent) { agent } else { account };
        let decision = self.annotations.get("authorization.k8s.io/decision");
        Some(Request {
            program: program.to_owned(),
            verb: self.verb,
            group: api_group,
            resource: if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") },
            name,
            is_forbidden: decision.is_some_and(|decision| decision == "forbid"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns an audit log with three requests for resources and one for `/version`.
    fn log() -> String {
        let event = |verb: &str, account: &str, agent: &str, object: Value, decision: &str| {
            json!({
                "kind": "Event", "verb": verb, "userAgent": agent, "objectRef": object,
                "user": {"username": format!("system:serviceaccount:topolvm-system:{account}")},
                "annotations": {"authorization.k8s.io/decision": decision},
            })
        };
        let status =
            json!({"resource": "logicalvolumes", "name": "a", "apiGroup": "topolvm.io", "subresource": "status"});
        let lease = json!({"resource": "leases", "name": "b", "apiGroup": "coordination.k8s.io"});
        let resizer = "csi-resizer/v2.2.0 (linux/amd64) kubernetes/1234567";
        let version = json!({
            "kind": "Event", "verb": "get", "requestURI": "/version",
            "user": {"username": "system:serviceaccount:topolvm-system:topolvm-node"},
        });
        let events = [
            event("patch", "topolvm-node", "", status, "allow"),
            event("get", "topolvm-controller", resizer, lease, "allow"),
            event("delete", "topolvm-controller", "", json!({"resource": "pods", "name": "c"}), "forbid"),
            version,
        ];
        events.map(|event| event.to_string()).join("\n")
    }

    fn rule(group: &str, resource: &str, names: &[&str], verbs: &[&str]) -> PolicyRule {
        let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        PolicyRule {
            api_groups: Some(owned(&[group])),
            resources: Some(owned(&[resource])),
            resource_names: (!names.is_empty()).then(|| owned(names)),
            verbs: owned(verbs),
            ..PolicyRule::default()
        }
    }

    #[test]
    fn a_right_is_used_by_a_request_of_its_program_alone() {
        let requests = requests(&log()).unwrap();
        assert_eq!(requests.len(), 3);
        let used = |role: &str, rule: PolicyRule| -> Vec<bool> {
            let is_used = |right: &Right| requests.iter().any(|request| right.allows(request));
            rights(role, &[rule]).iter().map(is_used).collect()
        };
        let status = || rule("topolvm.io", "logicalvolumes/status", &[], &["patch", "update"]);
        assert_eq!(used("topolvm-system:node", status()), [true, false]);
        assert_eq!(used("topolvm-system:controller", status()), [false, false]);
        assert_eq!(used("topolvm-system:node", rule("topolvm.io", "logicalvolumes", &[], &["patch"])), [false]);
        let leases = |name: &str| rule("coordination.k8s.io", "leases", &[name], &["get"]);
        assert_eq!(used("topolvm-sidecars", leases("b")), [true]);
        assert_eq!(used("topolvm-sidecars", leases("other")), [false]);
        assert_eq!(used("topolvm-leader-election", leases("b")), [false]);
        // It was refused
        assert_eq!(used("topolvm-system:controller", rule("", "pods", &[], &["delete"])), [false]);
        let forbidden: Vec<_> = requests.iter().filter(|request| request.is_forbidden).collect();
        assert_eq!(forbidden.len(), 1);
        assert_eq!(forbidden[0].resource, "pods");
    }

    #[test]
    fn a_line_that_is_no_event_is_an_error() {
        assert!(requests("{\"verb\":1}").is_err());
    }
}
