//! A controller that has no certificate for its webhooks and may not create one, and then a certificate for a day.

use anyhow::Result;
use serde_json::json;

use super::setup::Setup;

pub(super) const ALERTS: [&str; 2] = [NO_CERTIFICATE, EXPIRING];
const NO_CERTIFICATE: &str = "TopolvmWebhookWithoutCertificate";
const EXPIRING: &str = "TopolvmCertificateExpiring";

const SECRET: [&str; 3] = ["delete", "secret", "topolvm-webhook-certificate"];
/// Name of the Role and of the RoleBinding.
const RIGHT: &str = "topolvm-controller-webhook-certificate";

pub(super) fn lose_certificate(setup: &Setup<'_>) -> Result<()> {
    let hash = "jsonpath={.items[0].metadata.labels.pod-template-hash}";
    let hash = setup.kubectl_there(&["get", "pods", "-l", "app.kubernetes.io/component=controller", "-o", hash])?;
    setup.kubectl_there(&["delete", "rolebinding", RIGHT])?;
    setup.kubectl_there(&SECRET)?;
    let path = "/spec/template/spec/containers/0/args/-";
    let patch = json!([{"op": "add", "path": path, "value": "--webhook-certificate-lifetime=24h"}]).to_string();
    setup.kubectl_there(&["patch", "deployment", "topolvm-controller", "--type=json", "-p", &patch])?;
    setup.wait_for_alerts_of_new_pods(&[NO_CERTIFICATE])?;
    let (role, account) = (format!("--role={RIGHT}"), "--serviceaccount=topolvm-system:topolvm-controller");
    setup.kubectl_there(&["create", "rolebinding", RIGHT, &role, account])?;
    setup.wait_for_alerts_of_new_pods(&[EXPIRING])?;
    setup.restore_product()?;
    // It would create one for a day again
    let others = format!("app.kubernetes.io/component=controller,pod-template-hash!={hash}");
    setup.kubectl_there(&["wait", "--for=delete", "pod", "-l", &others, "--timeout=180s"])?;
    setup.kubectl_there(&SECRET)?;
    setup.wait_for_end(&ALERTS)
}
