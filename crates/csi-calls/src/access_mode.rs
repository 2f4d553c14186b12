//! CSI's access modes for those of claims and PersistentVolumes. Pure.

use topolvm_proto::csi::volume_capability::access_mode::Mode;

use crate::Capabilities;

/// Returns CSI's mode for one mode of a volume; `None` for an unknown one. A driver without
/// `single_node_multi_writer` has one mode for one node.
#[must_use]
pub fn access_mode(mode: &str, announced: Capabilities) -> Option<Mode> {
    match (mode, announced.single_node_multi_writer) {
        ("ReadWriteOnce", true) => Some(Mode::SingleNodeMultiWriter),
        ("ReadWriteOncePod", true) => Some(Mode::SingleNodeSingleWriter),
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Some(Mode::SingleNodeWriter),
        ("ReadWriteMany", _) => Some(Mode::MultiNodeMultiWriter),
        ("ReadOnlyMany", _) => Some(Mode::MultiNodeReaderOnly),
        _ => None,
    }
}

/// Returns the one mode of CSI that stands for all modes of a volume; `None` if there is none.
pub fn common_access_mode(modes: &[String], announced: Capabilities) -> Option<Mode> {
    let has = |mode: &str| modes.iter().any(|known| known == mode);
    let is_for_one_pod = has("ReadWriteOncePod");
    let mode = match (has("ReadWriteMany"), has("ReadOnlyMany"), has("ReadWriteOnce")) {
        (false, false, false) if is_for_one_pod => "ReadWriteOncePod",
        _ if is_for_one_pod => return None,
        (true, _, _) => "ReadWriteMany",
        (false, true, false) => "ReadOnlyMany",
        (false, false, true) => "ReadWriteOnce",
        (false, true, true) | (false, false, false) => return None,
    };
    access_mode(mode, announced)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn announced(single_node_multi_writer: bool) -> Capabilities {
        Capabilities { single_node_multi_writer, ..Capabilities::default() }
    }

    #[rstest]
    #[case("ReadWriteOnce", Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeMultiWriter))]
    #[case("ReadWriteOncePod", Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeSingleWriter))]
    #[case("ReadWriteMany", Some(Mode::MultiNodeMultiWriter), Some(Mode::MultiNodeMultiWriter))]
    #[case("ReadOnlyMany", Some(Mode::MultiNodeReaderOnly), Some(Mode::MultiNodeReaderOnly))]
    #[case("Other", None, None)]
    fn access_mode_of_one_node_depends_on_the_driver(
        #[case] mode: &str,
        #[case] without: Option<Mode>,
        #[case] with: Option<Mode>,
    ) {
        assert_eq!((access_mode(mode, announced(false)), access_mode(mode, announced(true))), (without, with));
    }

    #[rstest]
    #[case(&["ReadWriteOnce"], Some(Mode::SingleNodeMultiWriter))]
    #[case(&["ReadWriteOncePod"], Some(Mode::SingleNodeSingleWriter))]
    #[case(&["ReadWriteOnce", "ReadWriteMany"], Some(Mode::MultiNodeMultiWriter))]
    #[case(&["ReadOnlyMany"], Some(Mode::MultiNodeReaderOnly))]
    #[case(&["ReadWriteOncePod", "ReadWriteOnce"], None)]
    #[case(&["ReadOnlyMany", "ReadWriteOnce"], None)]
    #[case(&["Other"], None)]
    #[case(&[], None)]
    fn common_access_mode_exists_for_some_modes(#[case] modes: &[&str], #[case] expected: Option<Mode>) {
        let modes: Vec<String> = modes.iter().map(|&mode| mode.to_owned()).collect();
        assert_eq!(common_access_mode(&modes, announced(true)), expected);
    }
}
