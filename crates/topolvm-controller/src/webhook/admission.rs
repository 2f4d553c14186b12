//! AdmissionReview: the question that the API server asks, and its answer.

use json_patch::Patch;
use k8s_openapi::ByteString;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation, PatchType};
use serde_json::{Value, json};

/// What becomes of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Unchanged,
    Patched(Patch),
    /// Why it cannot be taken.
    Denied(&'static str),
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MutateError {
    #[error("the object cannot be read")]
    Malformed(#[source] serde_json::Error),
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    #[error("cannot read the claims and StorageClasses of the object")]
    Kube(#[from] kube::Error),
    #[error("the API server has not told about the claims and StorageClasses of the object in time")]
    Late,
}

/// Why a body is no question to us.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    #[error("the body is no AdmissionReview")]
    Json(#[from] serde_json::Error),
    #[error("{0} {1} is not answered here, AdmissionReview of admission.k8s.io/v1 is")]
    Kind(String, String),
    #[error("the AdmissionReview has no request")]
    NoRequest,
    #[error("the AdmissionReview has no object")]
    NoObject,
}

/// A question: which request it is, and the new object if there is something to say about it.
pub(crate) struct Question {
    pub(crate) request: AdmissionRequest<DynamicObject>,
    /// `None` when the request is about something else than the creation of `plural`.
    pub(crate) object: Option<DynamicObject>,
}

impl Question {
    /// Reads the body of a webhook call about a core resource of this plural name.
    pub(crate) fn read(body: &[u8], plural: &str) -> Result<Self, ReviewError> {
        let review: AdmissionReview<DynamicObject> = serde_json::from_slice(body)?;
        let types = &review.types;
        // v1beta1 has the same fields
        if types.kind != "AdmissionReview" || !types.api_version.starts_with("admission.k8s.io/v1") {
            return Err(ReviewError::Kind(types.api_version.clone(), types.kind.clone()));
        }
        let mut request: AdmissionRequest<DynamicObject> = review.try_into().map_err(|_| ReviewError::NoRequest)?;
        let resource = &request.resource;
        let is_ours = (resource.group.as_str(), resource.version.as_str(), resource.resource.as_str())
            == ("", "v1", plural)
            && request.sub_resource.as_deref().unwrap_or_default().is_empty()
            && request.operation == Operation::Create;
        let object = request.object.take();
        match (is_ours, object) {
            (true, None) => Err(ReviewError::NoObject),
            (true, object) => Ok(Self { request, object }),
            (false, _) => Ok(Self { request, object: None }),
        }
    }

    /// The namespace that the object will be in; empty when nobody says.
    pub(crate) fn namespace(&self) -> &str {
        let own = self.object.as_ref().and_then(|object| object.metadata.namespace.as_deref());
        self.request.namespace.as_deref().or(own).unwrap_or_default()
    }

    /// The answer, or why there is none, as JSON.
    pub(crate) fn answer(&self, verdict: Result<&Verdict, &str>) -> serde_json::Result<Vec<u8>> {
        let response = AdmissionResponse::from(&self.request);
        let (response, patch) = match verdict {
            Ok(Verdict::Unchanged) => (response, None),
            Ok(Verdict::Patched(patch)) => (response, Some(patch)),
            Ok(Verdict::Denied(why)) => (denied(response, 403, why), None),
            Err(error) => (denied(response, 500, error), None),
        };
        let mut review = serde_json::to_value(response.into_review())?;
        if let (Some(patch), Some(response)) = (patch, review.get_mut("response").and_then(Value::as_object_mut)) {
            // kube would write the bytes as a list of numbers, which is four times as long
            response.insert("patch".to_owned(), json!(ByteString(serde_json::to_vec(patch)?)));
            response.insert("patchType".to_owned(), json!(PatchType::JsonPatch));
        }
        serde_json::to_vec(&review)
    }
}

/// An answer that the API server shows to who asked.
fn denied(response: AdmissionResponse, code: u16, why: &str) -> AdmissionResponse {
    let mut response = response.deny(why);
    response.result.code = code;
    response
}
