//! Metrics over TLS with authorization by a real API server.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::topolvm::manifests;

use crate::Body;
use crate::fixture::Fixture;

pub(crate) const ALL: &[(&str, Body)] =
    &[("secure_metrics_require_a_token_with_the_right_to_get_them", check_authorization)];

pub(crate) const ADDRESS: &str = "127.0.0.1:18080";

fn check_authorization(fixture: &Fixture) -> Result<()> {
    let rbac = manifests().join("components/secure-metrics/rbac.yaml");
    fixture.kubectl(&["apply", "--filename", rbac.to_str().context("the path of the manifests is not UTF-8")?])?;
    let account = |name: &str| -> Result<String> {
        fixture.kubectl(&["create", "serviceaccount", name])?;
        Ok(fixture.kubectl(&["create", "token", name, "--duration=1h"])?.trim().to_owned())
    };
    let (stranger, scraper) = (account("stranger")?, account("scraper")?);
    fixture.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "scraper"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "topolvm-system:metrics-reader",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "scraper", "namespace": "default"}],
    }))?;
    let address = format!("--metrics-bind-address={ADDRESS}");
    fixture.with_controller(&["--secure-metrics-server", &address], || {
        // The server and the roles take a moment
        fixture.cluster.ready("apiserver", || {
            let (status, page) = request_metrics(fixture, "https", Some(&scraper))?;
            ensure!(status == 200, "a client with the right gets {status}: {page}");
            ensure!(page.contains("leader_election_master_status"), "these are no metrics: {page}");
            Ok(())
        })?;
        for (who, token, expected) in [
            ("a client without a token", None, 401),
            ("an unknown token", Some("made.up.token"), 401),
            ("a token without the right", Some(stranger.as_str()), 403),
        ] {
            let (status, said) = request_metrics(fixture, "https", token)?;
            ensure!(status == expected, "{who} gets {status} and not {expected}: {said}");
        }
        let (status, said) = request_metrics(fixture, "http", Some(&scraper))?;
        ensure!(status != 200, "metrics are served in plain text: {said}");
        Ok(())
    })
}

/// Requests the metrics page. Returns the HTTP status, 0 without a response, and the body.
pub(crate) fn request_metrics(fixture: &Fixture, scheme: &str, token: Option<&str>) -> Result<(u16, String)> {
    let mut command = fixture.cluster.command("curl");
    command.args(["--silent", "--insecure", "--max-time", "10", "--write-out", "\\n%{http_code}"]);
    if let Some(token) = token {
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    let output = command.arg(format!("{scheme}://{ADDRESS}/metrics")).output().context("run curl")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (said, status) = text.rsplit_once('\n').context("curl says nothing")?;
    Ok((status.parse().context("no HTTP status")?, said.to_owned()))
}
