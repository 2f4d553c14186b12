//! The deadline of a call, from gRPC's `grpc-timeout` header.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Request, Status};

/// The timeout of callers that name none: a bit less than the minute that sidecars are commonly given.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(55);

/// Waiting ends at most this long before the caller's timeout, so that an answer that names what was waited for still
/// arrives.
const MARGIN: Duration = Duration::from_millis(500);

/// The deadline of a CSI call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// Waiting for others ends here.
    pub(crate) wait: Instant,
    /// Time by which the API server must have answered; a later answer counts as its failure.
    end: Instant,
}

impl Deadline {
    /// Reads the deadline of a call that has just come in.
    pub(crate) fn from_request<T>(request: &Request<T>) -> Self {
        let header = request.metadata().get("grpc-timeout");
        let timeout = header.and_then(|value| value.to_str().ok()).and_then(parse_timeout).unwrap_or(DEFAULT_TIMEOUT);
        let margin = (timeout / 10).min(MARGIN);
        let now = Instant::now();
        Self { wait: now + timeout.saturating_sub(margin), end: now + timeout.saturating_sub(margin / 5) }
    }

    /// Runs an operation until the deadline. When the API server is so slow that the caller gives up before,
    /// `DEADLINE_EXCEEDED`; what was begun is found by the next call.
    pub(crate) async fn run<T, E: Into<Status>>(
        self,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Status> {
        match tokio::time::timeout_at(self.end, operation).await {
            Ok(result) => result.map_err(Into::into),
            Err(_elapsed) => Err(Status::deadline_exceeded(
                "the Kubernetes API server did not answer in time; check that it can be reached",
            )),
        }
    }
}

/// Parses gRPC's timeout: at most eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10S", Some(Duration::from_secs(10)))]
    #[case("2M", Some(Duration::from_mins(2)))]
    #[case("1H", Some(Duration::from_hours(1)))]
    #[case("9999876u", Some(Duration::from_micros(9_999_876)))]
    #[case("15m", Some(Duration::from_millis(15)))]
    #[case("0n", Some(Duration::ZERO))]
    #[case("123456789S", None)]
    #[case("10", None)]
    #[case("S", None)]
    #[case("", None)]
    #[case("1é", None)]
    fn timeouts_are_read_as_grpc_writes_them(#[case] text: &str, #[case] timeout: Option<Duration>) {
        assert_eq!(parse_timeout(text), timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_before_the_caller_gives_up() {
        let mut request = Request::new(());
        request.set_timeout(Duration::from_secs(10));
        let deadline = Deadline::from_request(&request);
        assert_eq!(deadline.wait - Instant::now(), Duration::from_millis(9500));
        assert!(deadline.wait < deadline.end && deadline.end - Instant::now() < Duration::from_secs(10));

        let default = Deadline::from_request(&Request::new(()));
        assert_eq!(default.wait - Instant::now(), Duration::from_millis(54_500));

        request.set_timeout(Duration::ZERO);
        assert_eq!(Deadline::from_request(&request).wait, Instant::now());
    }
}
