//! The limit of connections, their eviction and their timeouts.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{Request as AxumRequest, State};
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// A server whose path `/hang` is answered when the test says so.
struct Server {
    address: SocketAddr,
    metrics: ConnectionMetrics,
    handlers: Arc<Handlers>,
    shutdown: CancellationToken,
    task: JoinSet<()>,
}

#[derive(Debug)]
struct Handlers {
    entered: AtomicUsize,
    answers: Semaphore,
}

impl Server {
    async fn start(connections: usize) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let limit = Limit::of(connections);
        let metrics = limit.metrics.clone();
        let handlers = Arc::new(Handlers { entered: AtomicUsize::new(0), answers: Semaphore::new(0) });
        let hang = |State(handlers): State<Arc<Handlers>>| async move {
            handlers.entered.fetch_add(1, Ordering::Relaxed);
            handlers.answers.acquire().await.unwrap().forget();
            "late"
        };
        let read = |request: AxumRequest| async move {
            read_body(request.into_body(), 1 << 20).await.map(|body| body.len().to_string()).unwrap_or_default()
        };
        let router = Router::new().route("/", get(|| async { "ok" })).route("/hang", get(hang));
        let router = router.route("/read", post(read)).with_state(Arc::clone(&handlers));
        let shutdown = CancellationToken::new();
        let mut task = JoinSet::new();
        let plain = |stream| std::future::ready(Ok(stream));
        task.spawn(serve(socket.into(), limit, router, plain, shutdown.clone()));
        Self { address, metrics, handlers, shutdown, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            tokio::task::yield_now().await;
        }
    }

    fn open(&self) -> usize {
        usize::try_from(self.metrics.open.get()).unwrap()
    }
}

/// The whole answer on a connection that stays open.
async fn answer(connection: &mut TcpStream) -> String {
    let mut answer = String::new();
    while !answer.contains("\r\n\r\n") || answer.ends_with("\r\n\r\n") {
        let mut buffer = [0; 1024];
        let read = connection.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "closed after {answer:?}");
        answer.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    answer
}

async fn ask(connection: &mut TcpStream) -> String {
    connection.write_all(GET).await.unwrap();
    answer(connection).await
}

/// Waits until the server has closed a connection.
async fn closed(connection: &mut TcpStream) {
    // A reset is an end as well
    drop(connection.read_to_end(&mut Vec::new()).await);
}

#[tokio::test]
async fn those_that_send_nothing_give_way_to_the_next_one_in_order() {
    const MOST: usize = 4;
    let server = Server::start(MOST).await;
    let mut idle = Vec::new();
    for count in 1..=10 {
        idle.push(server.connect().await);
        let evicted = u64::try_from(count).unwrap().saturating_sub(4);
        server.until(|server| server.metrics.evicted.get() == evicted && server.open() == count.min(MOST)).await;
    }
    let left = idle.split_off(10 - MOST);
    for mut connection in idle {
        closed(&mut connection).await;
    }
    for mut connection in left {
        assert!(ask(&mut connection).await.ends_with("ok"));
    }
    assert_eq!(server.metrics.evicted.get(), 6);
}

#[tokio::test]
async fn connection_with_a_request_is_kept_longer_than_an_unused_one() {
    let server = Server::start(2).await;
    let mut first = server.connect().await;
    assert!(ask(&mut first).await.ends_with("ok"));
    let mut second = server.connect().await;
    server.until(|server| server.open() == 2).await;
    assert!(ask(&mut first).await.ends_with("ok"));
    let mut third = server.connect().await;
    assert!(ask(&mut third).await.ends_with("ok"));
    closed(&mut second).await;
    assert!(ask(&mut first).await.ends_with("ok"));
}

#[tokio::test]
async fn busy_connections_are_not_evicted_and_the_next_one_waits() {
    let server = Server::start(2).await;
    let mut busy = [server.connect().await, server.connect().await];
    for connection in &mut busy {
        connection.write_all(b"GET /hang HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    }
    server.until(|server| server.handlers.entered.load(Ordering::Relaxed) == 2).await;
    let mut next = server.connect().await;
    next.write_all(GET).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((server.open(), server.metrics.evicted.get()), (2, 0));
    server.handlers.answers.add_permits(2);
    for connection in &mut busy {
        assert!(answer(connection).await.ends_with("late"));
    }
    assert!(answer(&mut next).await.ends_with("ok"));
    assert_eq!((server.open(), server.metrics.evicted.get()), (2, 1));
}

#[tokio::test]
async fn a_body_that_does_not_arrive_keeps_no_place() {
    let server = Server::start(1).await;
    let mut slow = server.connect().await;
    slow.write_all(b"POST /read HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n12").await.unwrap();
    let mut next = server.connect().await;
    assert!(ask(&mut next).await.ends_with("ok"));
    closed(&mut slow).await;
    next.write_all(b"POST /read HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n123").await.unwrap();
    assert!(answer(&mut next).await.ends_with('3'));
}

/// The clock is that of the test: it goes on when everybody waits.
#[tokio::test(start_paused = true)]
async fn connection_timeouts_apply_to_the_first_and_next_requests() {
    let server = Server::start(4).await;
    let began = Instant::now();
    let mut silent = server.connect().await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    for connection in [&mut silent, &mut slow] {
        closed(connection).await;
    }
    assert!((FIRST_REQUEST..FIRST_REQUEST + Duration::from_secs(1)).contains(&began.elapsed()), "{began:?}");

    let mut asked = server.connect().await;
    assert!(ask(&mut asked).await.ends_with("ok"));
    let began = Instant::now();
    asked.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    closed(&mut asked).await;
    assert!((IDLE..IDLE + Duration::from_secs(1)).contains(&began.elapsed()), "{began:?}");
    server.until(|server| server.open() == 0).await;
    assert_eq!(server.metrics.evicted.get(), 0);
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let server = Server::start(1).await;
    let mut connection = server.connect().await;
    let mut head = GET[..GET.len() - 2].to_vec();
    head.extend(format!("x: {}\r\n", "y".repeat(2 * BUFFER)).into_bytes());
    // The server may have hung up before all is sent
    drop(connection.write_all(&head).await);
    let mut answer = Vec::new();
    drop(connection.read_to_end(&mut answer).await);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test(start_paused = true)]
async fn the_shutdown_waits_for_answers_but_not_forever() {
    let mut server = Server::start(4).await;
    let mut idle = server.connect().await;
    let mut busy = server.connect().await;
    busy.write_all(b"GET /hang HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    server.until(|server| server.handlers.entered.load(Ordering::Relaxed) == 1).await;
    let mut hangs = server.connect().await;
    hangs.write_all(b"GET /hang HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    server.until(|server| server.handlers.entered.load(Ordering::Relaxed) == 2).await;
    let began = Instant::now();
    server.shutdown.cancel();
    closed(&mut idle).await;
    server.handlers.answers.add_permits(1);
    assert!(answer(&mut busy).await.ends_with("late"));
    server.task.join_next().await.unwrap().unwrap();
    assert!((GRACE..GRACE + Duration::from_secs(1)).contains(&began.elapsed()), "{began:?}");
    closed(&mut hangs).await;
}
