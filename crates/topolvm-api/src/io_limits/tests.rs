use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;

fn annotations(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn parse(list: &[(&str, &str)]) -> Result<IoLimits, IoLimitError> {
    let map = annotations(list);
    IoLimits::parse(FLAVOR, |key| map.get(key).map(String::as_str))
}

fn limits(list: &[(IoLimit, u64)]) -> IoLimits {
    list.iter().fold(IoLimits::default(), |limits, &(limit, rate)| limits.with(limit, Some(rate)))
}

#[test]
fn io_limit_parameters_parse_byte_quantities_and_operations() {
    let found = parse(&[
        ("topolvm.io/read-bytes-per-second", "10Mi"),
        ("topolvm.io/write-bytes-per-second", "5M"),
        ("topolvm.io/read-operations-per-second", "500"),
        ("topolvm.io/write-operations-per-second", ""),
        ("topolvm.io/device-class", "ssd"),
    ])
    .unwrap();
    let expected = [(IoLimit::ReadBytes, 10 << 20), (IoLimit::WriteBytes, 5_000_000), (IoLimit::ReadOperations, 500)];
    assert_eq!(found, limits(&expected));
    assert_eq!(found.to_string(), "bytes read 10Mi/s, bytes written 5000000/s, reads 500/s");
    assert!(parse(&[]).unwrap().is_empty());
}

#[rstest]
#[case("read-bytes-per-second", "0", "would block all I/O")]
#[case("read-bytes-per-second", "-1", "not a number of bytes")]
#[case("write-bytes-per-second", "ten", "not a number of bytes")]
#[case("write-bytes-per-second", "10m", "not a whole number of bytes")]
#[case("write-bytes-per-second", "18446744073709551616", "too large")]
#[case("write-bytes-per-second", "8Ei", "too large")]
#[case("read-operations-per-second", "0", "would block all I/O")]
#[case("read-operations-per-second", "-5", "not a whole number")]
#[case("read-operations-per-second", "+5", "not a whole number")]
#[case("write-operations-per-second", "1.5", "not a whole number")]
#[case("write-operations-per-second", "1k", "not a whole number")]
#[case("write-operations-per-second", "4294967295", "too large")]
#[case("write-operations-per-second", "18446744073709551616", "too large")]
fn nonsense_is_an_error_that_names_the_key_and_the_value(
    #[case] name: &str,
    #[case] value: &str,
    #[case] problem: &str,
) {
    let key = format!("topolvm.io/{name}");
    let message = parse(&[(&key, value)]).unwrap_err().to_string();
    assert!(message.contains(&key) && message.contains(value) && message.contains(problem), "{message}");
}

#[test]
fn the_lower_limit_counts_where_both_name_one() {
    let class = limits(&[(IoLimit::ReadBytes, 100), (IoLimit::WriteOperations, 7)]);
    let pod = limits(&[(IoLimit::ReadBytes, 200), (IoLimit::WriteBytes, 50)]);
    let expected = limits(&[(IoLimit::ReadBytes, 100), (IoLimit::WriteBytes, 50), (IoLimit::WriteOperations, 7)]);
    assert_eq!((class.lower(&pod), pod.lower(&class)), (expected.clone(), expected));
}

#[test]
fn io_limit_annotations_remove_limits_that_are_unset() {
    let written: Vec<_> =
        limits(&[(IoLimit::WriteBytes, 3 << 20), (IoLimit::ReadOperations, 1024)]).annotations(FLAVOR).collect();
    let expected = [
        ("topolvm.io/read-bytes-per-second", None),
        ("topolvm.io/write-bytes-per-second", Some("3Mi".to_owned())),
        ("topolvm.io/read-operations-per-second", Some("1024".to_owned())),
        ("topolvm.io/write-operations-per-second", None),
    ];
    assert_eq!(written, expected);
}

#[rstest]
#[case(&[("topolvm.io/read-bytes-per-second", "1Ki")], &[(IoLimit::ReadBytes, 1024)])]
#[case(
    &[
        ("carina.storage.io/blkio.throttle.read_bps_device", "1"),
        ("carina.storage.io/blkio.throttle.write_bps_device", "2"),
        ("kubernetes.customized/blkio.throttle.read_iops_device", "3"),
        ("kubernetes.customized/blkio.throttle.write_iops_device", "4"),
    ],
    &[
        (IoLimit::ReadBytes, 1),
        (IoLimit::WriteBytes, 2),
        (IoLimit::ReadOperations, 3),
        (IoLimit::WriteOperations, 4),
    ]
)]
#[case(
    &[
        ("topolvm.io/write-bytes-per-second", "1Ki"),
        ("carina.storage.io/blkio.throttle.write_bps_device", "1024"),
        ("kubernetes.customized/blkio.throttle.write_bps_device", "1024"),
    ],
    &[(IoLimit::WriteBytes, 1024)]
)]
#[case(&[("topolvm.cybozu.com/read-bytes-per-second", "1"), ("example.com/a", "b")], &[])]
fn a_pod_may_use_our_keys_and_those_of_carina(#[case] list: &[(&str, &str)], #[case] expected: &[(IoLimit, u64)]) {
    assert_eq!(IoLimits::parse_pod(FLAVOR, &annotations(list)), Ok(limits(expected)));
}

#[rstest]
#[case(
    &[
        ("topolvm.io/write-bytes-per-second", "1Ki"),
        ("kubernetes.customized/blkio.throttle.write_bps_device", "1000"),
    ],
    "topolvm.io/write-bytes-per-second and kubernetes.customized/blkio.throttle.write_bps_device set the same limit"
)]
#[case(&[("carina.storage.io/blkio.throttle.read_bps_device", "1Mi")], "not a whole number")]
#[case(&[("carina.storage.io/blkio.throttle.read_iops_device", "0")], "would block all I/O")]
#[case(
    &[("topolvm.io/read-bytes-per-second", "1Mi"), ("topolvm.io/read-operations-per-second", "-1")],
    "not a whole number"
)]
fn one_wrong_annotation_of_a_pod_makes_all_an_error(#[case] list: &[(&str, &str)], #[case] problem: &str) {
    let message = IoLimits::parse_pod(FLAVOR, &annotations(list)).unwrap_err().to_string();
    assert!(message.contains(problem), "{message}");
}

#[test]
fn only_the_keys_of_limits_are_annotations_of_limits() {
    for (name, expected) in [
        ("topolvm.io/read-bytes-per-second", true),
        ("carina.storage.io/blkio.throttle.read_iops_device", true),
        ("kubernetes.customized/blkio.throttle.write_iops_device", true),
        ("topolvm.cybozu.com/read-bytes-per-second", false),
        ("topolvm.io/last-resizefs-requested-at", false),
    ] {
        assert_eq!(IoLimits::is_pod_annotation(FLAVOR, name), expected, "{name}");
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(
        rates in proptest::array::uniform4(proptest::option::of(1_u64..u64::from(u32::MAX))),
    ) {
        let limits = IoLimit::ALL.into_iter().zip(rates).fold(IoLimits::default(), |limits, (limit, rate)| {
            limits.with(limit, rate)
        });
        let map: BTreeMap<String, String> = limits
            .annotations(FLAVOR)
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect();
        prop_assert_eq!(IoLimits::parse(FLAVOR, |key| map.get(key).map(String::as_str)), Ok(limits));
    }
}
