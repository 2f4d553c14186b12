//! The host's `lvm.conf`, and an environment that redirects LVM, change neither the reads nor the changes of lvmd.

use std::fs;
use std::path::Path;

use testbed::suite;
use tonic::Code;

use crate::daemon::{Lvmd, SOCKET, code, signed};
use crate::fixture::{EXTENT, MIB, wait};
use crate::snapshot::snapshot;
use crate::thin::{CLASSES, pools, request};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_behaves_the_same_with_any_lvm_conf", does_the_same),
    ("lvmd_names_what_lvm_conf_forbids", names_what_is_forbidden),
];

const VARIANTS: &[&str] = &[
    "report { binary_values_as_numeric=1 }",
    "report { compact_output=1 }",
    "report { compact_output_cols=\"lv_tags,data_percent\" }",
    "report { quoted=0 }",
    "report { columns_as_rows=1 }",
    "report { aligned=0 headings=2 prefixes=1 }",
    "report { buffered=0 }",
    "report { separator=\"|\" }",
    "report { list_item_separator=\";\" }",
    "report { time_format=\"%s\" mark_hidden_devices=0 two_word_unknown_device=1 }",
    "report { lvs_sort_keys=\"-lv_size\" vgs_cols=\"vg_free\" }",
    "report { output_format=\"json\" }",
    "log { report_command_log=1 }",
    "log { command_names=1 }",
    "log { prefix=\"XX\" indent=0 }",
    "log { silent=1 }",
    "log { verbose=3 }",
    "log { level=7 file=\"/run/lvm.log\" activation=1 }",
    "global { units=\"k\" suffix=1 si_unit_consistency=0 }",
    "global { wait_for_locks=0 }",
    "activation { mode=\"complete\" auto_set_activation_skip=1 auto_activation_volume_list=[] }",
    "activation { thin_pool_autoextend_threshold=70 thin_pool_autoextend_percent=20 }",
    "allocation { wipe_signatures_when_zeroing_new_lvs=0 thin_pool_zero=0 maximise_cling=0 }",
    "backup { backup=0 archive=0 }",
    "config { profile_dir=\"/nonexistent\" }",
];

/// The file lvmlocal.conf, which every LVM of the guest reads last, and its original content.
struct LvmConf(String);

impl LvmConf {
    const FILE: &str = "/etc/lvm/lvmlocal.conf";

    fn new() -> Self {
        Self(fs::read_to_string(Self::FILE).unwrap_or_default())
    }

    fn write(&self, more: &str) {
        fs::write(Self::FILE, format!("{}\n{more}\n", self.0)).unwrap();
    }
}

impl Drop for LvmConf {
    fn drop(&mut self) {
        self.write("");
    }
}

fn does_the_same() {
    let _groups = pools();
    let conf = LvmConf::new();
    let all = VARIANTS.iter().filter(|variant| !variant.contains("json")).copied().collect::<Vec<_>>().join("\n");
    let each = VARIANTS.iter().copied().filter(|variant| suite::is_soak() || variant.contains("json"));
    for variant in each.chain([all.as_str()]) {
        conf.write(variant);
        let environment = ["env", "LVM_COMMAND_PROFILE=none", "LC_ALL=de_DE.UTF-8", "TZ=Asia/Tokyo"];
        let lvmd = Lvmd::start_by(&environment, SOCKET, CLASSES, |_| {});
        wait(async {
            let client = lvmd.connect().await;
            let thick = client.free_in("thick").await.unwrap();
            assert_eq!((client.free().await, thick > 512 * MIB), (640 * MIB, true), "{variant}");
            for class in ["thick", "thin"] {
                let mut wanted = request(class, "a", 8 * MIB);
                wanted.tags = vec!["one".to_owned(), "two".to_owned()];
                let made = client.create_with(wanted).await.unwrap_or_else(|status| panic!("{variant}: {status}"));
                assert!(["one", "two"].iter().all(|tag| made.tags.iter().any(|had| had == tag)), "{variant}: {made:?}");
                assert!(made.dev_major > 0 && Path::new(&made.path).exists(), "{variant}: {made:?}");
                let grown = client.resize_in(class, "a", 8 * MIB + EXTENT).await.unwrap();
                assert_eq!(grown, signed(8 * MIB + EXTENT), "{variant}");
                assert_eq!(client.list_of(class).await.unwrap().len(), 1, "{variant}");
                if class == "thin" {
                    client.snapshot(snapshot("s", "a", "ro", 0)).await.unwrap();
                    client.remove("thin", "s").await.unwrap();
                }
                client.remove(class, "a").await.unwrap();
                assert_eq!(code(client.remove(class, "a").await), Code::NotFound, "{variant}");
                let much = client.create_with(request(class, "a", 4096 * MIB)).await;
                assert_eq!(code(much), Code::ResourceExhausted, "{variant}");
            }
            assert_eq!((client.free().await, client.free_in("thick").await.unwrap()), (640 * MIB, thick), "{variant}");
        });
    }
}

fn names_what_is_forbidden() {
    let _groups = pools();
    let conf = LvmConf::new();
    for (setting, message) in [
        ("global { test=1 }", "global/test"),
        ("global { metadata_read_only=1 }", "global/metadata_read_only"),
        ("activation { volume_list=[\"other\"] }", "does not list myvg1 in activation/volume_list"),
        ("activation { read_only_volume_list=[\"myvg1\"] }", "lists myvg1 in activation/read_only_volume_list"),
    ] {
        conf.write(setting);
        let mut lvmd = Lvmd::start(CLASSES);
        lvmd.until_logged(message);
    }
}
