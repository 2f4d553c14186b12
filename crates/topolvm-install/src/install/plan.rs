//! The plan of an installation: what it changes, found out by dry runs on the API server.

use kube::Client;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde::Serialize;
use serde_json::Value;

use super::InstallError;
use super::difference::{Difference, differences};
use super::object::{MANAGED_BY, MANAGER, ObjectId, apply_error, is_ours};
use super::record::Record;
use super::rendering::Rendering;

/// Change to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Action {
    Create,
    Change,
    Keep,
    Remove,
}

impl Action {
    pub(crate) const fn keyword(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Change => "change",
            Self::Keep => "keep",
            Self::Remove => "remove",
        }
    }
}

/// A step of the plan: an object and its change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    pub(crate) action: Action,
    #[serde(flatten)]
    pub(crate) id: ObjectId,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) differences: Vec<Difference>,
    /// Object to apply.
    #[serde(skip)]
    pub(crate) object: Option<DynamicObject>,
}

/// Returns the steps in their order: all objects of the rendering, and then recorded objects that are no part of it.
pub(crate) async fn plan(
    client: &Client,
    rendering: &Rendering,
    record: Option<&Record>,
) -> Result<Vec<Step>, InstallError> {
    let mut steps = Vec::new();
    for object in &rendering.objects {
        steps.push(step(client, labelled(object.clone())).await?);
    }
    let wanted = rendering.ids();
    let recorded = record.iter().flat_map(|record| &record.objects);
    // Volumes go with their definition, and all that runs with the namespace: only a removal does that
    let can_go = |id: &&ObjectId| !matches!(id.kind.as_str(), "CustomResourceDefinition" | "Namespace");
    let mut gone: Vec<_> = recorded.filter(|id| !wanted.contains(id)).filter(can_go).collect();
    gone.sort_by_key(|id| std::cmp::Reverse(id.rank()));
    steps.extend(removals(client, gone).await?);
    Ok(steps)
}

/// Returns the steps that remove those of these objects that exist. What has another owner now is his.
pub(crate) async fn removals(client: &Client, ids: Vec<&ObjectId>) -> Result<Vec<Step>, InstallError> {
    let mut steps = Vec::new();
    for id in ids {
        if id.get(client).await?.is_some_and(|found| is_ours(&found)) {
            steps.push(Step { action: Action::Remove, id: id.clone(), differences: Vec::new(), object: None });
        }
    }
    Ok(steps)
}

async fn step(client: &Client, object: DynamicObject) -> Result<Step, InstallError> {
    let id = ObjectId::of(&object);
    let live = id.get(client).await?;
    // The volume parameters of a StorageClass cannot be changed, and an existing class works
    let is_class_of_driver = |live: &DynamicObject| live.data.get("provisioner") == object.data.get("provisioner");
    if id.kind == "StorageClass" && live.as_ref().is_some_and(is_class_of_driver) {
        return Ok(Step { action: Action::Keep, id, differences: Vec::new(), object: None });
    }
    let params = PatchParams::apply(MANAGER).force().dry_run();
    let tried = id.api(client).patch(&id.name, &params, &Patch::Apply(&object)).await;
    let (action, differences) = match (live, tried) {
        (None, Ok(_)) => (Action::Create, Vec::new()),
        // Its namespace, or a role to which it binds, is to be made before it
        (None, Err(kube::Error::Api(status))) if status.is_not_found() => (Action::Create, Vec::new()),
        (_, Err(error)) => return Err(apply_error(&id, error)),
        (Some(live), Ok(tried)) => {
            let differences = differences(&json(&live)?, &json(&tried)?);
            (if differences.is_empty() { Action::Keep } else { Action::Change }, differences)
        }
    };
    Ok(Step { action, id, differences, object: Some(object) })
}

fn json(object: &DynamicObject) -> Result<Value, InstallError> {
    serde_json::to_value(object).map_err(InstallError::Object)
}

/// Returns the object with the label of this program.
fn labelled(mut object: DynamicObject) -> DynamicObject {
    let labels = object.metadata.labels.get_or_insert_default();
    drop(labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned()));
    object
}

/// Returns the number of steps with this action.
pub(crate) fn count(steps: &[Step], action: Action) -> usize {
    steps.iter().filter(|step| step.action == action).count()
}

/// Returns true if the plan changes nothing.
pub(crate) fn is_done(steps: &[Step]) -> bool {
    count(steps, Action::Keep) == steps.len()
}

/// Formats the plan as lines for people, with the differences of each object if wanted.
pub(crate) fn lines(steps: &[Step], with_differences: bool) -> String {
    let mut lines = Vec::new();
    for step in steps {
        lines.push(format!("{:<7} {}", step.action.keyword(), step.id));
        let shown = with_differences.then_some(&step.differences);
        lines.extend(shown.into_iter().flatten().map(|difference| format!("          {difference}")));
    }
    let number = |action| count(steps, action);
    lines.push(if is_done(steps) {
        "nothing to change".to_owned()
    } else {
        format!(
            "{} to create, {} to change, {} to keep, {} to remove",
            number(Action::Create),
            number(Action::Change),
            number(Action::Keep),
            number(Action::Remove),
        )
    });
    lines.join("\n") + "\n"
}
