//! ControllerModifyVolume and the mutable parameters of CreateVolume.

use std::collections::HashMap;

use tonic::{Code, Status};
use topolvm_proto::csi::ControllerModifyVolumeRequest;

use crate::harness::{Harness, in_ten_seconds, on_nodes, refusal, volume};

const OPTION_CLASS: &str = "topolvm.io/lvcreate-option-class";

fn parameters(list: &[(&str, &str)]) -> HashMap<String, String> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn modify(harness: &Harness, id: &str, mutable: &[(&str, &str)]) -> Result<(), Status> {
    let request = ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: parameters(mutable),
        ..ControllerModifyVolumeRequest::default()
    };
    harness.csi.clone().controller_modify_volume(in_ten_seconds(request)).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_volume_attributes_class_chooses_the_lvcreate_options_of_a_new_volume() {
    let harness = Harness::with_agent().await;
    let mut request = on_nodes(volume("pvc-1"), &["n1"]);
    request.mutable_parameters = parameters(&[(OPTION_CLASS, "raid")]);
    let id = harness.create(request).await.unwrap().volume_id;
    assert_eq!(harness.object("pvc-1")["spec"]["lvcreateOptionClass"], "raid");
    modify(&harness, &id, &[(OPTION_CLASS, "raid")]).await.unwrap();
    modify(&harness, &id, &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_volume_is_made_of_cannot_be_changed_later() {
    let harness = Harness::with_agent().await;
    let id = harness.made("pvc-1").await;
    let (code, message) = refusal(modify(&harness, &id, &[(OPTION_CLASS, "raid")]).await);
    assert_eq!((code, message.contains("decided when the volume is made")), (Code::InvalidArgument, true), "{message}");
    let (code, message) = refusal(modify(&harness, &id, &[("iops", "9")]).await);
    assert_eq!((code, message.contains("\"iops\" is not known")), (Code::InvalidArgument, true), "{message}");
}

#[tokio::test(start_paused = true)]
async fn unknown_volumes_are_not_modified() {
    let harness = Harness::new().await;
    assert_eq!(refusal(modify(&harness, "u-9", &[]).await).0, Code::NotFound);
    assert_eq!(refusal(modify(&harness, "", &[]).await).0, Code::InvalidArgument);
}
