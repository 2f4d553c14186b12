//! The Identity service and readiness.

use topolvm_api::ApiFlavor;
use topolvm_proto::csi::plugin_capability::{Type, service, volume_expansion};
use topolvm_proto::csi::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest};
use topolvm_testkit::ApiServer;

use crate::harness::Harness;

async fn is_ready(harness: &Harness) -> bool {
    harness.identity.clone().probe(ProbeRequest {}).await.unwrap().into_inner().ready.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_name_is_that_of_the_driver_in_the_api_group() {
    for (flavor, name) in [(ApiFlavor::TopoLvm, "topolvm.io"), (ApiFlavor::Legacy, "topolvm.cybozu.com")] {
        let harness = Harness::on(&ApiServer::new(), flavor);
        let info = harness.identity.clone().get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info.name, name);
        assert!(!info.vendor_version.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_have_a_place_and_grow_online_and_offline() {
    let harness = Harness::new().await;
    let answer = harness.identity.clone().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    assert_eq!(*answer.get_ref(), topolvm_proto::plugin::capabilities());
    let (mut services, mut expansions) = (vec![], vec![]);
    for capability in answer.into_inner().capabilities {
        match capability.r#type.unwrap() {
            Type::Service(service) => services.push(service.r#type()),
            Type::VolumeExpansion(expansion) => expansions.push(expansion.r#type()),
        }
    }
    let expected = [
        service::Type::ControllerService,
        service::Type::VolumeAccessibilityConstraints,
        service::Type::SnapshotAccessibilityConstraints,
        service::Type::GroupControllerService,
    ];
    assert_eq!(services, expected);
    assert_eq!(expansions, [volume_expansion::Type::Online, volume_expansion::Type::Offline]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_at_the_start_is_waited_for() {
    let api = ApiServer::new();
    api.disconnect();
    let harness = Harness::on(&api, ApiFlavor::TopoLvm);
    assert!(!is_ready(&harness).await);
    assert!(harness.driver.ready().unwrap_err().contains("API server"));
    api.reconnect();
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    assert!(is_ready(&harness).await);
    assert_eq!(harness.driver.ready(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_goes_away_makes_the_controller_unready() {
    let harness = Harness::new().await;
    assert!(is_ready(&harness).await);
    harness.api.disconnect();
    assert!(!is_ready(&harness).await);
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_is_missing_is_waited_for() {
    let api = ApiServer::new();
    api.withdraw("logicalvolumes.topolvm.io");
    let harness = Harness::on(&api, ApiFlavor::TopoLvm);
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    assert!(harness.driver.ready().unwrap_err().contains("LogicalVolumes"));
    assert!(!is_ready(&harness).await);
}

/// A missing permission concerns one object, rejected credentials concern all.
#[tokio::test(start_paused = true)]
async fn controller_whose_credentials_are_rejected_is_not_ready() {
    let harness = Harness::new().await;
    harness.api.fail_next("get", "csidrivers", 1, 403);
    assert!(is_ready(&harness).await);
    harness.api.reject_credentials(true);
    assert!(!is_ready(&harness).await);
    harness.api.reject_credentials(false);
    assert!(is_ready(&harness).await);
}
