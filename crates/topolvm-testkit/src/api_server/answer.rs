//! From an HTTP request to its answer.

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
use super::asked::Asked;
use super::changing::{self, json_body};
use super::fault::Failure;
use super::reading;
use super::refusal::Refusal;
use super::request::{Query, Target, verb, wants_metadata_only};
use super::reviews;
use super::state::{Logged, State};
use super::watching::{WatchOptions, events, shown};
use super::write;

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Answers one request, or fails as a connection does.
pub(super) async fn answer(server: ApiServer, request: Request<Body>) -> Result<Answer, io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await.map_err(io::Error::other)?;
    let (path, query) = (parts.uri.path(), Query::parse(parts.uri.query().unwrap_or_default()));
    if !server.shared.lock().is_connected {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let asked = Target::parse(path).and_then(|target| {
        let verb = verb(&parts.method, &target, &query)?;
        let kind = server.shared.lock().kind_at(&target)?;
        Some(Asked { verb, kind, target, query, headers: parts.headers })
    });
    log(&server, parts.method.as_str(), &parts.uri, asked.as_ref());
    let Some(asked) = asked else {
        return Ok(match path {
            "/version" => reply(StatusCode::OK, &version()),
            _ => refuse(&Refusal::no_such_path()),
        });
    };
    let failure = server.take_failure(asked.verb, &asked.kind);
    match failure {
        Some(Failure::Status(code)) => return Ok(refuse(&Refusal::injected(code))),
        Some(Failure::Unreachable) => return Err(io::ErrorKind::ConnectionReset.into()),
        Some(Failure::Hang) => return std::future::pending().await,
        Some(Failure::LostAnswer) => {
            drop(serve(&server, &asked, &body));
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        // Has happened already
        Some(Failure::After(_)) | None => {}
    }
    Ok(serve(&server, &asked, &body).unwrap_or_else(|refusal| refuse(&refusal)))
}

fn log(server: &ApiServer, method: &str, uri: &http::Uri, asked: Option<&Asked>) {
    let mut path = uri.path().to_owned();
    let parameters: Vec<String> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if !parameters.is_empty() {
        path = format!("{path}?{}", parameters.join("&"));
    }
    let verb = asked.map_or(if method == "GET" { "get" } else { "other" }, |asked| asked.verb);
    let kind = asked.map(|asked| asked.kind.clone());
    server.shared.lock().requests.push(Logged { verb, kind, path });
    server.shared.wake_all();
}

fn serve(server: &ApiServer, asked: &Asked, body: &[u8]) -> Result<Answer, Refusal> {
    let mut state = server.shared.lock();
    let state = &mut *state;
    let metadata_only = wants_metadata_only(&asked.headers);
    let one = |object: &Value| reply(StatusCode::OK, &shown(object, metadata_only));
    let answer = match (asked.verb, asked.target.name.as_deref()) {
        ("watch", _) => watch(server, state, asked)?,
        ("list", _) => reply(StatusCode::OK, &reading::list(state, asked)?),
        ("deletecollection", _) => reply(StatusCode::OK, &changing::delete_collection(state, asked, body)?),
        ("create", None) if let Some(review) = reviews::answer(state, &asked.kind, json_body(body)?) => {
            reply(StatusCode::CREATED, &review)
        }
        ("create", _) => {
            let namespace = asked.target.namespace.clone().unwrap_or_default();
            let writer = asked.writer(false)?;
            let created = write::create(&mut state.store, &asked.kind, &namespace, json_body(body)?, &writer, None)?;
            reply(StatusCode::CREATED, &shown(&created, metadata_only))
        }
        ("get", Some(name)) => {
            asked.part()?;
            let found = state.store.get(&asked.kind, &asked.key(name));
            one(&found.ok_or_else(|| Refusal::not_found(&asked.kind, name))?.object)
        }
        ("update", Some(name)) => one(&*changing::replace(state, asked, name, json_body(body)?)?),
        ("patch", Some(name)) => {
            let (status, object) = changing::patch(state, asked, name, body)?;
            reply(status, &shown(&object, metadata_only))
        }
        ("delete", Some(name)) => {
            let options = changing::delete_options(body)?;
            reply(StatusCode::OK, &write::delete(&mut state.store, &asked.kind, &asked.key(name), &options)?)
        }
        _ => return Err(Refusal::method_not_allowed()),
    };
    server.shared.wake_all();
    Ok(answer)
}

fn watch(server: &ApiServer, state: &State, asked: &Asked) -> Result<Answer, Refusal> {
    let query = &asked.query;
    let initial_events = query.is_set("sendInitialEvents");
    if initial_events && query.get("resourceVersionMatch") != "NotOlderThan" {
        let why =
            "sendInitialEvents: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(Refusal::invalid(&asked.kind, "", why));
    }
    let after = match query.get("resourceVersion") {
        "" | "0" => None,
        _ if initial_events => None,
        version => {
            let parsed = version.parse::<u64>();
            Some(parsed.map_err(|_| Refusal::bad_request(format!("Invalid value: {version:?}: resourceVersion")))?)
        }
    };
    let options = WatchOptions {
        kind: asked.kind.clone(),
        selector: asked.selector()?,
        metadata_only: wants_metadata_only(&asked.headers),
        bookmarks: query.is_set("allowWatchBookmarks"),
        initial_events,
        after,
        timeout: query.get("timeoutSeconds").parse().ok().map(Duration::from_secs),
    };
    let events = events(Arc::clone(&server.shared), state, options);
    let frames = futures::StreamExt::map(events, |line| line.map(http_body::Frame::data));
    Ok(respond(StatusCode::OK, StreamBody::new(frames).boxed_unsync()))
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "fake", "gitTreeState": "clean",
        "buildDate": "2025-01-01T00:00:00Z", "goVersion": "go1.24", "compiler": "gc", "platform": "linux/amd64",
    })
}

fn refuse(refusal: &Refusal) -> Answer {
    let code = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply(code, &refusal.to_json())
}

fn reply(code: StatusCode, body: &Value) -> Answer {
    let never = |never: Infallible| match never {};
    respond(code, Full::new(Bytes::from(body.to_string())).map_err(never).boxed_unsync())
}

fn respond(code: StatusCode, body: UnsyncBoxBody<Bytes, io::Error>) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
