//! Changes, as they are sent to browsers.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures::StreamExt as _;
use tokio::time::{Instant, timeout};
use topolvm_testkit::fixtures::logical_volume;

use super::harness::Harness;

async fn follow(harness: &Harness) -> BodyDataStream {
    let answer = harness.send("/api/events").await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    Body::into_data_stream(answer.into_body())
}

async fn next(events: &mut BodyDataStream) -> Option<String> {
    let event = timeout(Duration::from_mins(1), events.next()).await.expect("an event");
    event.map(|event| String::from_utf8(event.unwrap().into()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn changes_are_sent_at_once_and_those_soon_after_together() {
    let mut harness = Harness::new(Vec::new(), Vec::new());
    let mut events = follow(&harness).await;
    assert!(next(&mut events).await.unwrap().contains("event: change\ndata: first"));
    let began = Instant::now();
    for number in 0..100 {
        harness.apply(logical_volume(&format!("pvc-{number}")).build());
    }
    assert_eq!(next(&mut events).await.unwrap(), "event: change\ndata: again\n\n");
    assert!(began.elapsed() < Duration::from_millis(10));
    // The checks, which are a change too, come within the pause
    harness.checked.send_replace(None);
    assert_eq!(next(&mut events).await.unwrap(), "event: change\ndata: again\n\n");
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(next(&mut events).await.unwrap(), ": nothing has changed\n\n");
}

#[tokio::test(start_paused = true)]
async fn event_stream_ends_before_the_idle_timeout_and_at_shutdown() {
    let harness = Harness::new(Vec::new(), Vec::new());
    let mut events = follow(&harness).await;
    let began = Instant::now();
    while next(&mut events).await.is_some() {}
    assert!(began.elapsed() <= topolvm_runtime::http_server::IDLE, "{:?}", began.elapsed());

    let mut events = follow(&harness).await;
    next(&mut events).await.unwrap();
    harness.shutdown.cancel();
    assert_eq!(next(&mut events).await, None);
}
