//! Credentials of a client: the answers to all its requests show whether the API server accepts them.
//!
//! "401 Unauthorized" is no matter of roles: the API server cannot identify the client. A token that is bound to a Node
//! or a pod that was deleted is never valid again. kube re-reads a token file once a minute; if that does not help, the
//! container ends, so that the kubelet restarts it with a new token.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::StatusCode;
use kube::{Client, Config};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use topolvm_runtime::CancellationToken;

/// Directory into which the kubelet writes the token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Time between two requests while the credentials are rejected.
const RETRY: Duration = Duration::from_secs(10);
/// Time in which kube has re-read a token file twice.
const GRACE: Duration = Duration::from_mins(2);

/// Origin of the credentials of a client, which decides what makes them valid again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// The token file that the kubelet writes for a container. One that starts again gets a token of the present pod.
    Container(PathBuf),
    /// A token file that another program writes. kube re-reads it.
    TokenFile(PathBuf),
    /// A kubeconfig with the credentials themselves, which is read once.
    Kubeconfig,
}

impl CredentialSource {
    /// Returns the source of the credentials in a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        match config.auth_info.token_file.as_ref().map(PathBuf::from) {
            Some(path) if path.starts_with(Path::new(SERVICE_ACCOUNT)) => Self::Container(path),
            Some(path) => Self::TokenFile(path),
            None => Self::Kubeconfig,
        }
    }

    /// Returns what makes the credentials valid again.
    fn remedy(&self) -> String {
        match self {
            Self::Container(path) => format!(
                "{} is re-read, and this container exits if that does not help, so that the kubelet starts it with a \
                 new token",
                path.display()
            ),
            Self::TokenFile(path) => format!("write a new token to {}, which is read every minute", path.display()),
            Self::Kubeconfig => "write new credentials to the kubeconfig and restart this program".to_owned(),
        }
    }
}

/// The API server does not accept the credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the Kubernetes API server has rejected the credentials for {} s (401 Unauthorized): the token has expired, or the \
     Node, pod or service account that it is bound to was deleted; {remedy}",
    .rejected_for.as_secs()
)]
pub struct CredentialsRejected {
    rejected_for: Duration,
    remedy: String,
}

/// Knows whether the API server accepts the credentials of a client. Clones share what they know.
#[derive(Clone)]
pub struct Credentials {
    client: Client,
    source: CredentialSource,
    /// Time of the first rejection since the last answer to known credentials.
    rejected: watch::Sender<Option<Instant>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Returns a client that sends its requests through `client`, and the state of its credentials according to the
    /// answers.
    pub fn observe(client: Client, source: CredentialSource) -> (Client, Self) {
        let rejected = watch::Sender::default();
        let (namespace, observer) = (client.default_namespace().to_owned(), rejected.clone());
        let service = tower::service_fn(move |request| {
            let (client, observer) = (client.clone(), observer.clone());
            async move {
                let response = client.send(request).await?;
                observe_status(&observer, response.status());
                Ok::<_, kube::Error>(response)
            }
        });
        let client = Client::new(service, namespace);
        (client.clone(), Self { client, source, rejected })
    }

    /// Returns an error while the API server rejects the credentials.
    pub fn check(&self) -> Result<(), CredentialsRejected> {
        match *self.rejected.borrow() {
            None => Ok(()),
            Some(since) => Err(CredentialsRejected { rejected_for: since.elapsed(), remedy: self.source.remedy() }),
        }
    }

    /// Asks the API server again and again while it rejects the credentials, until `shutdown` is cancelled. An error
    /// if a container has to start again to get others.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        shutdown.run_until_cancelled(self.recover()).await.unwrap_or(Ok(()))
    }

    async fn recover(self) -> anyhow::Result<()> {
        let mut rejections = self.rejected.subscribe();
        let mut reported = None::<Instant>;
        while rejections.wait_for(Option::is_some).await.is_ok() {
            while let Err(rejected) = self.check() {
                if matches!(self.source, CredentialSource::Container(_)) && rejected.rejected_for >= GRACE {
                    return Err(rejected.into());
                }
                if reported.is_none_or(|reported| reported.elapsed() >= GRACE) {
                    tracing::error!("{rejected}");
                    reported = Some(Instant::now());
                }
                sleep(RETRY).await;
                // Its status is observed. Nothing may be asked for otherwise
                drop(timeout(RETRY, self.client.apiserver_version()).await);
            }
            tracing::info!("the Kubernetes API server accepts the credentials again");
            reported = None;
        }
        Ok(())
    }
}

/// Records an answer. Errors of the server itself, or of a proxy in front of it, prove nothing about credentials.
fn observe_status(rejected: &watch::Sender<Option<Instant>>, status: StatusCode) {
    let is_rejection = status == StatusCode::UNAUTHORIZED;
    rejected.send_if_modified(|since| {
        let is_change = since.is_some() != is_rejection && !status.is_server_error();
        if is_change {
            *since = is_rejection.then(Instant::now);
        }
        is_change
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::config::AuthInfo;
    use topolvm_testkit::ApiServer;

    use super::*;

    const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

    fn container() -> CredentialSource {
        CredentialSource::Container(FILE.into())
    }

    async fn ask(client: &Client) -> Option<u16> {
        match client.apiserver_version().await {
            Err(kube::Error::Api(status)) => Some(status.code),
            Ok(_) | Err(_) => None,
        }
    }

    #[test]
    fn credential_source_is_where_the_configuration_has_the_token() {
        let with_file = |path: Option<&str>| {
            let mut config = Config::new("https://localhost".parse().unwrap());
            config.auth_info = AuthInfo { token_file: path.map(str::to_owned), ..AuthInfo::default() };
            CredentialSource::of(&config)
        };
        assert_eq!(with_file(Some(FILE)), container());
        assert_eq!(with_file(Some("/etc/token")), CredentialSource::TokenFile("/etc/token".into()));
        assert_eq!(with_file(None), CredentialSource::Kubeconfig);
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_credentials_are_reported_until_they_are_accepted() {
        let server = ApiServer::new();
        let (client, credentials) = Credentials::observe(server.client(), CredentialSource::Kubeconfig);
        assert_eq!((ask(&client).await, credentials.check()), (None, Ok(())));
        server.reject_credentials(true);
        assert_eq!(ask(&client).await, Some(401));
        tokio::time::advance(Duration::from_secs(7)).await;
        let error = credentials.check().unwrap_err().to_string();
        assert!(error.contains("for 7 s (401") && error.contains("kubeconfig"), "{error}");
        // A missing answer proves nothing
        server.disconnect();
        assert_eq!(ask(&client).await, None);
        credentials.check().unwrap_err();
        server.reconnect();
        server.reject_credentials(false);
        assert_eq!((ask(&client).await, credentials.check()), (None, Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_credentials_end_a_container_after_two_minutes() {
        let server = ApiServer::new();
        let (client, credentials) = Credentials::observe(server.client(), container());
        let running = credentials.clone().run(CancellationToken::new());
        server.reject_credentials(true);
        ask(&client).await;
        let begin = Instant::now();
        let error = running.await.unwrap_err().to_string();
        assert!(error.contains("Node, pod or service account") && error.contains(FILE), "{error}");
        assert!((120..140).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_credentials_that_are_replaced_end_nothing() {
        for (source, seconds) in [(container(), 110), (CredentialSource::Kubeconfig, 3600)] {
            let server = ApiServer::new();
            let (client, credentials) = Credentials::observe(server.client(), source);
            let shutdown = CancellationToken::new();
            let replacing = async {
                server.reject_credentials(true);
                ask(&client).await;
                sleep(Duration::from_secs(seconds)).await;
                credentials.check().unwrap_err();
                server.reject_credentials(false);
                sleep(Duration::from_secs(30)).await;
                assert_eq!(credentials.check(), Ok(()));
                shutdown.cancel();
            };
            let (ended, ()) = tokio::join!(credentials.clone().run(shutdown.clone()), replacing);
            ended.unwrap();
        }
    }
}
