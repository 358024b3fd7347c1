//! Search for the highest rate without loss.

use bywash_tester::search::{Answer, highest};

/// Width of the interval at which the search ends, relative to the result.
const RESOLUTION: f64 = 0.01;
/// Relative reduction of a found rate that is not confirmed. It doubles with each further one, as a confirmation may
/// take a minute.
const BACK_OFF: f64 = 0.02;

/// Purpose of a trial of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// Step of the bisection.
    Step,
    /// Second trial of the result, which can be longer.
    Confirm,
}

/// Returns the highest rate at which `lossless` is true, in the unit of `most`, the closed-loop rate, at which the
/// source waits. Uses bisection (RFC 2544, section 26.1) and lowers the result until it is confirmed.
pub fn zero_loss<E>(most: f64, mut lossless: impl FnMut(f64, Trial) -> Result<bool, E>) -> Result<f64, E> {
    // In percent, because the bisection ends at half a unit.
    let rate = |percent: f64| most * percent / 100.0;
    let answer = |passed, percent| if passed { Answer::Good(percent) } else { Answer::Bad };
    let mut found = highest(105.0, RESOLUTION, |percent| Ok(answer(lossless(rate(percent), Trial::Step)?, percent)))?;
    let mut back_off = BACK_OFF;
    while found > 100.0 * RESOLUTION {
        if lossless(rate(found), Trial::Confirm)? {
            return Ok(rate(found));
        }
        found *= 1.0 - back_off;
        back_off = (2.0 * back_off).min(0.5);
    }
    Ok(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result for a machine that passes steps up to `limit` and confirmations up to `held`, with the number
    /// of confirmations.
    fn search(most: f64, limit: f64, held: f64) -> (f64, usize) {
        let mut confirmations = 0;
        let found = zero_loss::<()>(most, |rate, trial| {
            confirmations += usize::from(trial == Trial::Confirm);
            Ok(rate <= if trial == Trial::Step { limit } else { held })
        });
        (found.unwrap(), confirmations)
    }

    #[test]
    fn finds_the_limit_within_the_resolution() {
        for most in [0.02, 5.0, 400.0] {
            for part in [0.02, 0.3, 0.77, 0.999, 1.04] {
                let limit = most * part;
                let (found, confirmations) = search(most, limit, limit);
                // At the low end the bisection ends at half a percent of the highest rate.
                let least = (limit * (1.0 - RESOLUTION)).min(limit - most * 0.005);
                assert!(found <= limit && found >= least - 1e-9, "{part} of {most}: {found}");
                assert_eq!(confirmations, 1);
            }
        }
        // More than the closed loop carries is not searched for.
        assert_eq!(search(10.0, 100.0, 100.0), (10.5, 1));
    }

    #[test]
    fn lowers_a_rate_that_is_not_confirmed() {
        let (found, confirmations) = search(10.0, 8.0, 7.0);
        assert!((6.0..=7.0).contains(&found) && confirmations == 4, "{found} {confirmations}");
        let (found, confirmations) = search(10.0, 8.0, 0.0);
        assert!(found == 0.0 && confirmations < 12, "{found} {confirmations}");
        assert_eq!(search(10.0, 0.0, 0.0), (0.0, 0));
    }

    #[test]
    fn passes_an_error_on() {
        assert_eq!(zero_loss(10.0, |_, trial| if trial == Trial::Step { Ok(true) } else { Err("full") }), Err("full"));
    }
}
