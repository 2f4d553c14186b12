//! AdmissionReview: parses the request of the API server and builds the response.

use std::borrow::Cow;

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::object_name;
use super::objects::{Claim, Pod};

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
    #[error("the API server has not told about the claims and StorageClasses of the object in time")]
    Late,
}

/// A body is no AdmissionReview for this webhook.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    #[error("the body is no AdmissionReview")]
    Json(#[source] serde_json::Error),
    #[error("the object cannot be read")]
    Object(#[source] serde_json::Error),
    #[error("the body is no AdmissionReview of admission.k8s.io/v1")]
    Kind,
    #[error("the AdmissionReview has no request")]
    NoRequest,
    #[error("the AdmissionReview has no object")]
    NoObject,
    #[error("the {0} of the AdmissionReview can be none")]
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

/// The request of an AdmissionReview, with the fields of the new object that the webhook reads.
#[derive(Debug)]
pub(crate) struct AdmissionRequest {
    version: ReviewVersion,
    uid: String,
    /// The namespace of the object; empty when neither request nor object names one.
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None` when the request is not the creation of the resource.
    pub(crate) object: Option<Object>,
}

/// The API version of a review; the fields are the same.
#[derive(Clone, Copy, Debug, Serialize)]
enum ReviewVersion {
    #[serde(rename = "admission.k8s.io/v1")]
    V1,
    #[serde(rename = "admission.k8s.io/v1beta1")]
    V1Beta1,
}

#[derive(Deserialize)]
struct Review<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, rename = "apiVersion")]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    resource: GroupVersionResource<'a>,
    #[serde(borrow)]
    sub_resource: Option<Cow<'a, str>>,
    #[serde(borrow)]
    operation: Cow<'a, str>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct GroupVersionResource<'a> {
    #[serde(borrow)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(borrow)]
    resource: Cow<'a, str>,
}

impl AdmissionRequest {
    /// Parses the body of a webhook call about a resource. What it keeps is small, however long the body is.
    pub(crate) fn parse(body: &[u8], resource: Resource) -> Result<Self, ReviewError> {
        let review: Review<'_> = serde_json::from_slice(body).map_err(ReviewError::Json)?;
        let version = match (&*review.kind, &*review.api_version) {
            ("AdmissionReview", "admission.k8s.io/v1") => ReviewVersion::V1,
            ("AdmissionReview", "admission.k8s.io/v1beta1") => ReviewVersion::V1Beta1,
            _ => return Err(ReviewError::Kind),
        };
        let request = review.request.ok_or(ReviewError::NoRequest)?;
        let about = &request.resource;
        let is_ours = (&*about.group, &*about.version, &*about.resource) == ("", "v1", resource.plural())
            && request.sub_resource.as_deref().unwrap_or_default().is_empty()
            && request.operation == "CREATE";
        let object = match (is_ours, request.object) {
            (false, _) => None,
            (true, None) => return Err(ReviewError::NoObject),
            (true, Some(object)) => Some(match resource {
                Resource::Pods => Object::Pod(parse_object(object)?),
                Resource::Claims => Object::Claim(parse_object(object)?),
            }),
        };
        let own_namespace = match &object {
            Some(Object::Pod(pod)) => pod.metadata.namespace.as_deref(),
            Some(Object::Claim(claim)) => claim.metadata.namespace.as_deref(),
            None => None,
        };
        // The namespace becomes part of a request's path
        let namespace = request.namespace.as_deref().or(own_namespace).unwrap_or_default();
        let name = request.name.unwrap_or_default();
        if !namespace.is_empty() && !object_name::is_valid(namespace) {
            return Err(ReviewError::Malformed("namespace"));
        }
        // Names of resources that are not ours may have other characters
        if name.len() > object_name::MAX_LENGTH {
            return Err(ReviewError::Malformed("name"));
        }
        if request.uid.len() > object_name::MAX_LENGTH {
            return Err(ReviewError::Malformed("uid"));
        }
        let (uid, namespace, name) = (request.uid.into_owned(), namespace.to_owned(), name.into_owned());
        Ok(Self { version, uid, namespace, name, object })
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
        serde_json::to_vec(&ReviewResponse { api_version: self.version, kind: "AdmissionReview", response })
    }
}

fn parse_object<'a, T: Deserialize<'a>>(object: &'a RawValue) -> Result<T, ReviewError> {
    serde_json::from_str(object.get()).map_err(ReviewError::Object)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse<'a> {
    api_version: ReviewVersion,
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
