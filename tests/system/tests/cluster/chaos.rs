//! A short run of what `make soak` does for long: volumes are made, grown, copied and deleted while programs are killed and the API
//! server goes away.

use std::time::Duration;

use anyhow::Result;
use system_tests::chaos::{Chaos, Settings};

use crate::Body;
use crate::fixture::Fixture;

pub(crate) fn trials() -> Vec<(String, Body)> {
    vec![("nothing_is_lost_or_leaked_when_programs_die_and_the_api_server_goes_away".to_owned(), short_run)]
}

fn short_run(fixture: &Fixture) -> Result<()> {
    let settings = Settings { seed: 3, sequences: 8, workers: 8, patience: Duration::from_secs(90) };
    let chaos = Chaos { cluster: &fixture.cluster, nodes: std::slice::from_ref(&fixture.node), spec: &fixture.spec };
    chaos.run(settings).map(|report| eprintln!("{report}"))
}
