//! Pseudo-random numbers from a seed.

/// Generator `SplitMix64`: good enough to choose from, and a few lines.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts a sequence that the seed determines.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `least` up to, but without, `end`; `least` if the range is empty.
    pub fn between(&mut self, least: u64, end: u64) -> u64 {
        least + self.next() % end.saturating_sub(least).max(1)
    }

    /// Returns true in so many of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.between(0, 100) < percent
    }

    /// Returns a random index below a length; `None` for length 0.
    pub fn index(&mut self, of: usize) -> Option<usize> {
        let end = u64::try_from(of).ok().filter(|end| *end > 0)?;
        usize::try_from(self.between(0, end)).ok()
    }

    /// Returns a random element.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.index(all.len())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_others() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..20).map(|_| random.between(5, 9)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        assert!(numbers(3).iter().all(|number| (5..9).contains(number)));
        assert_eq!(Random::new(1).index(0), None);
    }
}
