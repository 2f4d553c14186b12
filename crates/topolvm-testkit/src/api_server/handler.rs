//! The handler of HTTP requests.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use serde_json::{Value, json};

use super::ApiServer;
use super::fault::Failure;
use super::http_request::{Query, Target, request_verb, wants_metadata_only};
use super::list;
use super::mutating::{self, json_body};
use super::request_log::LoggedRequest;
use super::resource_request::ResourceRequest;
use super::reviews;
use super::state::State;
use super::status_error::StatusError;
use super::watch::{WatchOptions, represent, watch_events};
use super::write;

type HttpResponse = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Answers a request, or fails as a connection does.
pub(super) async fn handle_request(server: ApiServer, http_request: Request<Body>) -> Result<HttpResponse, io::Error> {
    let (parts, body) = http_request.into_parts();
    let body = body.collect_bytes().await.map_err(io::Error::other)?;
    let (path, query) = (parts.uri.path(), Query::parse(parts.uri.query().unwrap_or_default()));
    if !server.shared.lock().is_connected {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let request = Target::parse(path).and_then(|target| {
        let verb = request_verb(&parts.method, &target, &query)?;
        let kind = server.shared.lock().find_kind(&target)?;
        Some(ResourceRequest { verb, kind, target, query, headers: parts.headers })
    });
    log_request(&server, parts.method.as_str(), &parts.uri, request.as_ref());
    if server.shared.lock().rejects_credentials {
        return Ok(respond_error(&StatusError::injected(401)));
    }
    let Some(request) = request else {
        return Ok(match path {
            "/version" => respond_json(StatusCode::OK, &version()),
            _ => respond_error(&StatusError::no_such_path()),
        });
    };
    let failure = server.take_failure(request.verb, &request.kind);
    match failure {
        Some(Failure::Status(code)) => return Ok(respond_error(&StatusError::injected(code))),
        Some(Failure::Unreachable) => return Err(io::ErrorKind::ConnectionReset.into()),
        Some(Failure::Hang) => return std::future::pending().await,
        Some(Failure::LostAnswer) => {
            drop(serve(&server, &request, &body));
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        // Its action has run already
        Some(Failure::After(_)) | None => {}
    }
    Ok(serve(&server, &request, &body).unwrap_or_else(|error| respond_error(&error)))
}

fn log_request(server: &ApiServer, method: &str, uri: &http::Uri, request: Option<&ResourceRequest>) {
    let mut path = uri.path().to_owned();
    let parameters: Vec<String> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if !parameters.is_empty() {
        path = format!("{path}?{}", parameters.join("&"));
    }
    let verb = request.map_or(if method == "GET" { "get" } else { "other" }, |request| request.verb);
    let kind = request.map(|request| request.kind.clone());
    server.shared.lock().requests.push(LoggedRequest { verb, kind, path });
    server.shared.notify_waiters();
}

/// Serves a request under the rules of the API server.
fn serve(server: &ApiServer, request: &ResourceRequest, body: &[u8]) -> Result<HttpResponse, StatusError> {
    let mut state = server.shared.lock();
    let state = &mut *state;
    let metadata_only = wants_metadata_only(&request.headers);
    let respond_object = |object: &Value| respond_json(StatusCode::OK, &represent(object, metadata_only));
    let response = match (request.verb, request.target.name.as_deref()) {
        ("watch", _) => watch(server, state, request)?,
        ("list", _) => respond_json(StatusCode::OK, &list::list(state, request)?),
        ("deletecollection", _) => respond_json(StatusCode::OK, &mutating::delete_collection(state, request, body)?),
        ("create", None) if let Some(review) = reviews::review(state, &request.kind, json_body(body)?) => {
            respond_json(StatusCode::CREATED, &review)
        }
        ("create", _) => {
            let namespace = request.target.namespace.clone().unwrap_or_default();
            let writer = request.writer(false)?;
            let created = write::create(&mut state.store, &request.kind, &namespace, json_body(body)?, &writer, None)?;
            respond_json(StatusCode::CREATED, &represent(&created, metadata_only))
        }
        ("get", Some(name)) => {
            request.part()?;
            let found = state.store.get(&request.kind, &request.key(name));
            respond_object(&found.ok_or_else(|| StatusError::not_found(&request.kind, name))?.object)
        }
        ("update", Some(name)) => respond_object(&*mutating::replace(state, request, name, json_body(body)?)?),
        ("patch", Some(name)) => {
            let (status, object) = mutating::patch(state, request, name, body)?;
            respond_json(status, &represent(&object, metadata_only))
        }
        ("delete", Some(name)) => {
            let options = mutating::delete_options(body)?;
            respond_json(StatusCode::OK, &write::delete(&mut state.store, &request.kind, &request.key(name), &options)?)
        }
        _ => return Err(StatusError::method_not_allowed()),
    };
    server.shared.notify_waiters();
    Ok(response)
}

fn watch(server: &ApiServer, state: &State, request: &ResourceRequest) -> Result<HttpResponse, StatusError> {
    let query = &request.query;
    let initial_events = query.is_set("sendInitialEvents");
    if initial_events && query.get("resourceVersionMatch") != "NotOlderThan" {
        let why =
            "sendInitialEvents: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(StatusError::invalid(&request.kind, "", why));
    }
    let after = match query.get("resourceVersion") {
        "" | "0" => None,
        _ if initial_events => None,
        version => {
            let parsed = version.parse::<u64>();
            Some(parsed.map_err(|_| StatusError::bad_request(format!("Invalid value: {version:?}: resourceVersion")))?)
        }
    };
    let options = WatchOptions {
        kind: request.kind.clone(),
        selector: request.selector()?,
        metadata_only: wants_metadata_only(&request.headers),
        bookmarks: query.is_set("allowWatchBookmarks"),
        initial_events,
        after,
        timeout: query.get("timeoutSeconds").parse().ok().map(Duration::from_secs),
    };
    let events = watch_events(Arc::clone(&server.shared), state, options);
    let frames = futures::StreamExt::map(events, |line| line.map(http_body::Frame::data));
    Ok(respond(StatusCode::OK, StreamBody::new(frames).boxed_unsync()))
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "fake", "gitTreeState": "clean",
        "buildDate": "2025-01-01T00:00:00Z", "goVersion": "go1.24", "compiler": "gc", "platform": "linux/amd64",
    })
}

fn respond_error(error: &StatusError) -> HttpResponse {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond_json(code, &error.to_json())
}

fn respond_json(code: StatusCode, body: &Value) -> HttpResponse {
    let never = |never: Infallible| match never {};
    respond(code, Full::new(Bytes::from(body.to_string())).map_err(never).boxed_unsync())
}

fn respond(code: StatusCode, body: UnsyncBoxBody<Bytes, io::Error>) -> HttpResponse {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
