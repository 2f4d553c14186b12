//! Bounds of histogram buckets.

use std::iter;

/// Returns `count` upper bounds of histogram buckets, each twice the one before.
/// `prometheus_client::metrics::histogram::exponential_buckets` with 2 makes the same, and takes `pow`: the C library's
/// mathematics would be half a megabyte of every process.
pub fn doubling_buckets(first: f64, count: usize) -> impl Iterator<Item = f64> {
    iter::successors(Some(first), |bound| Some(bound * 2.0)).take(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_is_twice_as_large_as_the_one_before() {
        assert_eq!(doubling_buckets(0.25, 4).collect::<Vec<_>>(), [0.25, 0.5, 1.0, 2.0]);
    }
}
