//! Tests of the configuration file.

use std::collections::BTreeMap;

use topolvm_api::NodeStrategy;

use super::*;

fn parse(text: &str) -> Result<(Config, Vec<String>), String> {
    Config::parse(Path::new("o.yaml"), text).map_err(|error| error.to_string())
}

#[test]
fn an_empty_file_means_defaults() {
    assert_eq!(parse("# nothing\n").unwrap(), (Config::default(), vec![]));
    assert_eq!(parse("").unwrap().0.listen.to_string(), ":8000");
}

#[test]
fn a_file_of_the_field_is_read() {
    let (config, warnings) =
        parse("listen: \"localhost:9251\"\ndefault-divisor: 10\ndivisors:\n  ssd: 5\n  hdd: 2.5\n").unwrap();
    assert_eq!(config.listen.to_string(), "localhost:9251");
    let divisors = BTreeMap::from([("hdd".to_owned(), 2.5), ("ssd".to_owned(), 5.0)]);
    assert_eq!(config.scoring, Scoring { default_divisor: 10.0, divisors, ..Scoring::default() });
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn nodes_are_preferred_as_the_strategy_says() {
    let strategy = |text: &str| parse(text).unwrap().0.scoring.strategy;
    assert_eq!(strategy(""), NodeStrategy::Spread);
    assert_eq!(strategy("strategy: spread\n"), NodeStrategy::Spread);
    assert_eq!(strategy("strategy: binpack\n"), NodeStrategy::Binpack);
    assert_eq!(strategy("strategy: spradout\n"), NodeStrategy::Spread);
}

#[test]
fn config_keys_ignore_case_and_the_default_class_has_an_alias() {
    let (config, _) = parse("Listen: :1\ndivisors: {\"\": 3}\n").unwrap();
    assert_eq!(config.listen.to_string(), ":1");
    assert_eq!(config.scoring.divisors, BTreeMap::from([("00default".to_owned(), 3.0)]));
}

#[test]
fn keys_without_effect_are_warned_of() {
    let (config, warnings) = parse("profiling-bind-address: \":6060\"\nspare: 1\n").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(
        warnings,
        [
            "profiling-bind-address has no effect: profiling over HTTP is not supported",
            "unknown key spare has no effect",
        ]
    );
    assert_eq!(parse("profiling-bind-address: \"\"\n").unwrap().1, [""; 0]);
}

#[test]
fn every_wrong_value_is_reported() {
    let text = "listen: 8000\ndefault-divisor: 0\ndivisors: {ssd: -1, hdd: x}\nminimum-score: 11\n\
         max-request-mib: 0\nnode-cache: 1\nreservations: 0\nstrategy: best\n";
    assert_eq!(
        parse(text).unwrap_err(),
        "o.yaml: default-divisor must be a number greater than 0, not 0; \
         divisors of hdd must be a number greater than 0, not \"x\" \
         and of ssd must be a number greater than 0, not -1; \
         listen must be an address such as :8000 or localhost:9251, not 8000; \
         max-request-mib must be a whole number of MiB from 1 to 65536, not 0; \
         minimum-score must be a whole number from 0 to 10, not 11; \
         node-cache must be true or false, not 1; \
         reservations must be true or false, not 0; \
         strategy must be spread or binpack, not \"best\""
    );
}

#[test]
fn a_file_that_is_no_mapping_is_refused() {
    assert!(parse("- a\n").unwrap_err().starts_with("o.yaml is not a YAML mapping"));
    assert!(parse("a: [\n").unwrap_err().starts_with("o.yaml is not a YAML mapping"));
}

#[test]
fn files_for_tls_come_together() {
    let tls = |text: &str| parse(text).map(|(config, _)| config.tls);
    let mut files = TlsFiles { certificate: "/a/tls.crt".into(), key: "/a/tls.key".into(), client_authorities: None };
    assert_eq!(tls("tls-cert-file: /a/tls.crt\ntls-key-file: /a/tls.key\n"), Ok(Some(files.clone())));
    files.client_authorities = Some("/a/ca.crt".into());
    let all = "tls-cert-file: /a/tls.crt\ntls-key-file: /a/tls.key\ntls-client-ca-file: /a/ca.crt\n";
    assert_eq!(tls(all), Ok(Some(files)));
    assert_eq!(tls("tls-cert-file: \"\"\ntls-key-file:\n"), Ok(None));
    for some in ["tls-cert-file: /a/tls.crt\n", "tls-key-file: /a/tls.key\n", "tls-client-ca-file: /a/ca.crt\n"] {
        let expected = "o.yaml: tls-cert-file and tls-key-file must both be set, or no TLS file at all";
        assert_eq!(tls(some), Err(expected.to_owned()));
    }
    let number = tls("tls-key-file: 1\n").unwrap_err();
    assert_eq!(number, "o.yaml: tls-key-file must be the path of a file, not 1");
}
