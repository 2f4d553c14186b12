//! The sizes of a burst, generated from its seed: free space of the nodes and the claims of the pods.

use crate::random::Random;

const GIB: u64 = 1 << 30;

/// The sizes of a burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// Free bytes of each node.
    pub(super) free: [u64; 3],
    /// Bytes of each claim of each pod.
    pub(super) pods: Vec<Vec<u64>>,
}

impl Workload {
    /// Generates this number of pods with one claim or up to `claims`, of 1 to 4 GiB each. The nodes together have from
    /// 90 to 110 % of the requests of all pods, and none has more than twice as much as another.
    pub(super) fn new(seed: u64, pods: usize, claims: usize) -> Self {
        let mut random = Random::new(seed);
        let most = u64::try_from(claims).unwrap_or(1);
        let mut pod = || {
            let claims = if random.percent(70) { 1 } else { random.between(1, most + 1) };
            (0..claims).map(|_| random.between(1, 5) * GIB).collect::<Vec<_>>()
        };
        let pods: Vec<_> = (0..pods).map(|_| pod()).collect();
        let wanted: u64 = pods.iter().flatten().sum();
        let total = wanted / 100 * random.between(90, 111);
        let shares = [(); 3].map(|()| random.between(100, 200));
        // In whole GiB, so that claims can fill a node
        let free = shares.map(|share| total / shares.iter().sum::<u64>() * share / GIB * GIB);
        Self { free, pods }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_sizes_again() {
        assert_eq!(Workload::new(3, 60, 2), Workload::new(3, 60, 2));
        assert_ne!(Workload::new(3, 60, 2), Workload::new(4, 60, 2));
    }

    #[test]
    fn the_nodes_have_about_what_the_pods_want() {
        for seed in 0..100 {
            let Workload { free, pods } = Workload::new(seed, 60, 2);
            let (wanted, total): (u64, u64) = (pods.iter().flatten().sum(), free.iter().sum());
            assert!(total >= wanted / 100 * 85 && total <= wanted / 100 * 110, "seed {seed}: {total} of {wanted}");
            assert!(pods.iter().all(|claims| (1..=2).contains(&claims.len())), "seed {seed}: {pods:?}");
        }
        assert!(Workload::new(1, 60, 1).pods.iter().all(|claims| claims.len() == 1));
    }
}
