//! Rates at which something reads or writes under a limit.

use anyhow::{Result, bail, ensure};

/// Measurements until one is not too low.
const ATTEMPTS: u32 = 3;

/// Checks that a rate is within 10 % of its limit. On a busy machine the rate may be lower for a while, and never
/// higher. Returns the rate.
pub fn check_rate(limit: u64, mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    for _ in 0..ATTEMPTS {
        let rate = measure()?;
        let share = rate / number(limit)?;
        ensure!(share <= 1.1, "{rate:.1} per second are more than {limit}");
        if share >= 0.9 {
            return Ok(rate);
        }
    }
    bail!("{limit} per second are not reached in {ATTEMPTS} measurements")
}

/// Returns a count as a number to divide by. Fails from 2^32.
pub fn number(count: u64) -> Result<f64> {
    Ok(u32::try_from(count)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_may_be_too_low_twice_and_never_too_high() {
        let check = |rates: &[f64]| {
            let mut rates = rates.iter();
            check_rate(100, || Ok(*rates.next().unwrap()))
        };
        assert!(check(&[91.0]).is_ok());
        assert!(check(&[50.0, 80.0, 109.0]).is_ok());
        assert!(check(&[50.0, 80.0, 89.0]).is_err());
        assert!(check(&[50.0, 111.0]).is_err());
    }
}
