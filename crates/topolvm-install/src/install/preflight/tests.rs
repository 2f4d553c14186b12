use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// An API server of this version that serves all, allows all, has no objects, and counts what is not read.
fn server(minor: &str, allows: fn(&Value) -> bool) -> (Client, Arc<Mutex<Vec<String>>>) {
    let changes = Arc::new(Mutex::new(Vec::new()));
    let (minor, seen) = (minor.to_owned(), Arc::clone(&changes));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (minor, seen) = (minor.clone(), Arc::clone(&seen));
        async move { Ok::<_, std::io::Error>(answer(request, &minor, &seen, allows).await) }
    });
    (Client::new(service, "default"), changes)
}

async fn answer(
    request: Request<Body>,
    minor: &str,
    changes: &Mutex<Vec<String>>,
    allows: fn(&Value) -> bool,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let (status, answer) = if path == "/version" {
        let version = json!({
            "major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0"), "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        });
        (200, version)
    } else if path.ends_with("/selfsubjectaccessreviews") {
        let body = body.collect_bytes().await.unwrap_or_default();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        review["status"] = json!({"allowed": allows(&review["spec"]["resourceAttributes"])});
        (201, review)
    } else if path.matches('/').count() == 3 {
        (
            200,
            json!({"groupVersion": "x", "resources": [{
                "name": "x", "singularName": "x", "namespaced": false, "kind": "X", "verbs": [],
            }]}),
        )
    } else {
        if parts.method != Method::GET {
            changes.lock().unwrap().push(format!("{} {path}", parts.method));
        }
        (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "no"}))
    };
    Response::builder().status(status).body(Body::from(answer.to_string().into_bytes())).unwrap()
}

const RENDERED: &str = "\
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: topolvm.io
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: x
  namespace: topolvm-system
";

async fn problems(minor: &str, allows: fn(&Value) -> bool) -> Vec<String> {
    let (client, changes) = server(minor, allows);
    let rendering = Rendering::parse(RENDERED.to_owned()).unwrap();
    let outcome = check(&client, ApiFlavor::TopoLvm, &rendering, None, false).await;
    assert!(changes.lock().unwrap().is_empty(), "a check changes something: {changes:?}");
    match outcome {
        Ok(()) => Vec::new(),
        Err(InstallError::Unfit(problems)) => problems,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_old_api_server_is_refused_and_nothing_is_changed() {
    assert_eq!(
        problems("29", |_| true).await,
        ["the API server has version v1.29.0; upgrade Kubernetes to 1.30 or later"]
    );
    for minor in ["30", "30+", "40"] {
        assert!(problems(minor, |_| true).await.is_empty(), "{minor}");
    }
}

#[tokio::test]
async fn each_right_that_is_missing_is_named() {
    let found = problems("36", |attributes| attributes["resource"] != "issuers" || attributes["verb"] != "patch").await;
    let expected = "you may not patch issuers.cert-manager.io in the namespace topolvm-system; run the command as a \
                    cluster administrator";
    assert_eq!(found, [expected]);
}
