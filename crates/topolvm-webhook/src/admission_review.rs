//! AdmissionReview: parses the request of the API server and builds the response.

use json_patch::Patch;
use k8s_openapi::ByteString;
use kube::core::GroupVersionResource;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::object_name;
use crate::objects::{Claim, Pod};

/// The API versions of AdmissionReview, whose fields are the same.
const API_VERSIONS: [&str; 2] = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"];

/// The decision about an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    Unchanged,
    Patched(Patch),
    /// The object is refused, for this reason.
    Denied(&'static str),
}

/// The webhook cannot decide about an object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MutateError {
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    #[error("cannot read the claims and StorageClasses of the object")]
    Kube(#[from] kube::Error),
    #[error("the API server did not return the claims and StorageClasses of the object in time")]
    Late,
}

/// A body is no AdmissionReview for this webhook.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    #[error("the body is not an AdmissionReview")]
    Json(#[source] serde_json::Error),
    #[error("cannot parse the object")]
    Object(#[source] serde_json::Error),
    #[error("the body is not an AdmissionReview of admission.k8s.io/v1")]
    Kind,
    #[error("the AdmissionReview has no request")]
    NoRequest,
    #[error("the AdmissionReview has no object")]
    NoObject,
    #[error("the {0} of the AdmissionReview is invalid")]
    Malformed(&'static str),
}

/// The resource that a webhook is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Pods,
    Claims,
}

impl Resource {
    /// Returns its plural name, as in URLs.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Claims => "persistentvolumeclaims",
        }
    }
}

/// The object of a request.
#[derive(Debug)]
pub(crate) enum Object {
    Pod(Pod),
    Claim(Claim),
}

impl Object {
    fn namespace(&self) -> Option<&String> {
        match self {
            Self::Pod(pod) => pod.metadata.namespace.as_ref(),
            Self::Claim(claim) => claim.metadata.namespace.as_ref(),
        }
    }
}

/// The request of an AdmissionReview, with the fields of the new object that the webhook reads.
#[derive(Debug)]
pub(crate) struct AdmissionRequest {
    api_version: String,
    uid: String,
    /// The namespace of the object; empty when neither request nor object names one.
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// True if the object is not kept, so that nothing may happen because of it.
    pub(crate) is_dry_run: bool,
    /// `None` when the request is not the creation of the resource.
    pub(crate) object: Option<Object>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: String,
    api_version: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: String,
    resource: GroupVersionResource,
    sub_resource: Option<String>,
    operation: String,
    name: Option<String>,
    namespace: Option<String>,
    dry_run: Option<bool>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
}

impl AdmissionRequest {
    /// Parses the body of a webhook call about a resource. What it keeps is small, however long the body is.
    pub(crate) fn parse(body: &[u8], resource: Resource) -> Result<Self, ReviewError> {
        let Review { kind, api_version, request } = serde_json::from_slice(body).map_err(ReviewError::Json)?;
        if kind != "AdmissionReview" || !API_VERSIONS.contains(&api_version.as_str()) {
            return Err(ReviewError::Kind);
        }
        let request = request.ok_or(ReviewError::NoRequest)?;
        let object = if request.is_creation_of(resource) { Some(request.parse_object(resource)?) } else { None };
        let Request { uid, name, namespace, dry_run, .. } = request;
        // The namespace becomes part of a request's path
        let namespace = namespace.or_else(|| object.as_ref()?.namespace().cloned()).unwrap_or_default();
        if !namespace.is_empty() && !object_name::is_valid(&namespace) {
            return Err(ReviewError::Malformed("namespace"));
        }
        // Names of resources that are not ours may have other characters
        let name = name.unwrap_or_default();
        for (text, what) in [(&name, "name"), (&uid, "uid")] {
            if text.len() > object_name::MAX_LENGTH {
                return Err(ReviewError::Malformed(what));
            }
        }
        Ok(Self { api_version, uid, namespace, name, is_dry_run: dry_run.unwrap_or(false), object })
    }

    /// Builds the response as JSON; an error is the reason why there is no decision. `warning` is shown to the user.
    pub(crate) fn respond(
        &self,
        decision: Result<&Decision, &str>,
        warning: Option<&str>,
    ) -> serde_json::Result<Vec<u8>> {
        let allowed = Response {
            uid: &self.uid,
            allowed: true,
            status: None,
            patch: None,
            patch_type: None,
            warnings: warning.into_iter().collect(),
        };
        let denied =
            |code, message| Response { allowed: false, status: Some(Status { code, message }), ..allowed.clone() };
        let response = match decision {
            Ok(Decision::Unchanged) => allowed,
            Ok(Decision::Patched(patch)) => {
                let patch = Some(ByteString(serde_json::to_vec(patch)?));
                Response { patch, patch_type: Some("JSONPatch"), ..allowed }
            }
            Ok(Decision::Denied(why)) => denied(403, why),
            Err(error) => denied(500, error),
        };
        serde_json::to_vec(&ReviewResponse { api_version: &self.api_version, kind: "AdmissionReview", response })
    }
}

impl Request<'_> {
    fn is_creation_of(&self, resource: Resource) -> bool {
        let about = &self.resource;
        (about.group.as_str(), about.version.as_str(), about.resource.as_str()) == ("", "v1", resource.plural())
            && self.sub_resource.as_ref().is_none_or(String::is_empty)
            && self.operation == "CREATE"
    }

    fn parse_object(&self, resource: Resource) -> Result<Object, ReviewError> {
        let object = self.object.ok_or(ReviewError::NoObject)?.get();
        let parsed = match resource {
            Resource::Pods => serde_json::from_str(object).map(Object::Pod),
            Resource::Claims => serde_json::from_str(object).map(Object::Claim),
        };
        parsed.map_err(ReviewError::Object)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse<'a> {
    api_version: &'a str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'a str>,
}

/// The code and message that the API server shows to the user.
#[derive(Clone, Serialize)]
struct Status<'a> {
    code: u16,
    message: &'a str,
}
