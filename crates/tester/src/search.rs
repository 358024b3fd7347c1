//! Search for the highest passing value.

/// Result of a trial at one value.
pub enum Answer {
    /// Passed at this value, which is lower than requested if the generator could not reach that.
    Good(f64),
    /// Failed.
    Bad,
}

/// Finds the highest passing value up to `most` by bisection, until passing and failing values differ by at most
/// `resolution` of the value (or half a frame). The highest is tried first (RFC 2544, section 26.1 and 26.4).
pub fn highest<E>(most: f64, resolution: f64, mut good: impl FnMut(f64) -> Result<Answer, E>) -> Result<f64, E> {
    let (mut low, mut high, mut at, mut found) = (0.0, most, most, 0.0);
    loop {
        match good(at)? {
            // A slower generator does not take back what has passed.
            Answer::Good(reached) if reached < at * (1.0 - resolution) => return Ok(reached.max(found)),
            Answer::Good(reached) => (low, found) = (at, reached.min(at)),
            Answer::Bad => high = at,
        }
        if high - low <= (high * resolution).max(0.5) {
            return Ok(found);
        }
        at = (low + high) / 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(limit: f64, most: f64) -> f64 {
        highest::<()>(most, 0.005, |at| Ok(if at <= limit { Answer::Good(at) } else { Answer::Bad })).unwrap()
    }

    #[test]
    fn near_the_limit_and_not_above() {
        for limit in [1e3, 123_456.0, 999_999.0] {
            let found = search(limit, 1e6);
            assert!(found <= limit && found > limit * 0.994, "{limit}: {found}");
        }
        assert_eq!(search(2e6, 1e6), 1e6);
        assert_eq!(search(0.0, 100.0), 0.0);
    }

    #[test]
    fn a_generator_that_reaches_no_more_ends_it() {
        let found = highest::<()>(1e6, 0.005, |at| Ok(Answer::Good(at.min(3e5))));
        assert_eq!(found, Ok(3e5));
    }

    #[test]
    fn a_generator_that_becomes_slower_leaves_what_passed() {
        let mut answers = [Answer::Bad, Answer::Good(500.0), Answer::Good(300.0)].into_iter();
        assert_eq!(highest::<()>(1000.0, 0.005, |_| answers.next().ok_or(())), Ok(500.0));
    }
}
