//! A controller that has no certificate for its webhooks and may not create one, and then a certificate for a day.

use anyhow::Result;
use serde_json::json;

use super::bed::Bed;

pub(super) const ALERTS: [&str; 2] = [NO_CERTIFICATE, EXPIRING];
const NO_CERTIFICATE: &str = "TopolvmWebhookWithoutCertificate";
const EXPIRING: &str = "TopolvmCertificateExpiring";

const SECRET: [&str; 3] = ["delete", "secret", "topolvm-webhook-certificate"];
/// Name of the Role and of the RoleBinding.
const RIGHT: &str = "topolvm-controller-webhook-certificate";

pub(super) fn lose_certificate(bed: &Bed<'_>) -> Result<()> {
    let hash = "jsonpath={.items[0].metadata.labels.pod-template-hash}";
    let hash = bed.kubectl_there(&["get", "pods", "-l", "app.kubernetes.io/component=controller", "-o", hash])?;
    bed.kubectl_there(&["delete", "rolebinding", RIGHT])?;
    bed.kubectl_there(&SECRET)?;
    let path = "/spec/template/spec/containers/0/args/-";
    let patch = json!([{"op": "add", "path": path, "value": "--webhook-certificate-lifetime=24h"}]).to_string();
    bed.kubectl_there(&["patch", "deployment", "topolvm-controller", "--type=json", "-p", &patch])?;
    bed.wait_for_alerts_of_new_pods(&[NO_CERTIFICATE])?;
    let (role, account) = (format!("--role={RIGHT}"), "--serviceaccount=topolvm-system:topolvm-controller");
    bed.kubectl_there(&["create", "rolebinding", RIGHT, &role, account])?;
    bed.wait_for_alerts_of_new_pods(&[EXPIRING])?;
    bed.restore_product()?;
    // It would create one for a day again
    let others = format!("app.kubernetes.io/component=controller,pod-template-hash!={hash}");
    bed.kubectl_there(&["wait", "--for=delete", "pod", "-l", &others, "--timeout=180s"])?;
    bed.kubectl_there(&SECRET)?;
    bed.wait_for_end(&ALERTS)
}
