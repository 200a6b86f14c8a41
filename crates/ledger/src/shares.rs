//! Who is to have how much of the limit, when there is not enough for all.
//!
//! ```text
//!   share    what a process may use; all together: the limit
//!   floor    what it cannot give: its compressed pages, and what it needs at once
//!   heat     faults in the last moments: what it would gain from more
//!
//!     cold ──── a step, where heat a page differs twofold ────► hot
//! ```
//! Faults a page are what the last page of each is worth to it. Where a page is worth more than
//! elsewhere it goes there; in the end it is worth the same everywhere, or nobody has any to give.
//! This is a function of figures alone, so that tests drive it.

/// What is known of a process, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Used now.
    pub used: u64,
    /// The least that it can do with.
    pub floor: u64,
    /// Faults, averaged over the last looks; in any unit, the same for all.
    pub heat: u64,
}

/// Steps from nothing to everything.
const STEPS: u64 = 64;

/// Changes `shares`, one for each of `looks`, for the next moment. A share of 0 is that of a process
/// that is new: it starts with what it has. All shares together come to `room`, unless the floors
/// alone are more.
pub fn rebalance(room: u64, looks: &[Look], shares: &mut [u64]) {
    for (share, look) in shares.iter_mut().zip(looks) {
        if *share == 0 {
            *share = look.used.max(1);
        }
        *share = (*share).max(look.floor);
    }
    fit(room, looks, shares);
    if let (Some(hot), Some(cold)) = (hottest(looks, shares), coldest(looks, shares))
        && is_hotter(looks, shares, hot, cold)
    {
        let step = (room / STEPS).clamp(1, shares[cold] - looks[cold].floor);
        shares[cold] -= step;
        shares[hot] += step;
    }
}

/// Makes shares come to `room`: the coldest give what is too much, the hottest gets what is left.
fn fit(room: u64, looks: &[Look], shares: &mut [u64]) {
    loop {
        let total: u64 = shares.iter().sum();
        if total < room {
            if let Some(hot) = hottest(looks, shares) {
                shares[hot] += room - total;
            }
            return;
        }
        let Some(cold) = coldest(looks, shares).filter(|_| total > room) else { return };
        shares[cold] -= (total - room).min(shares[cold] - looks[cold].floor);
    }
}

/// Whether a page of `hot` is worth twice one of `cold`.
fn is_hotter(looks: &[Look], shares: &[u64], hot: usize, cold: usize) -> bool {
    let worth = |n: usize, of: usize| u128::from(looks[n].heat) * u128::from(shares[of]);
    hot != cold && worth(hot, cold) > 2 * worth(cold, hot) + u128::from(shares[cold])
}

/// Who gains most from a page more.
fn hottest(looks: &[Look], shares: &[u64]) -> Option<usize> {
    (0..shares.len()).max_by_key(|n| heat_a_page(looks, shares, *n))
}

/// Who loses least by a page less, of those that can give.
fn coldest(looks: &[Look], shares: &[u64]) -> Option<usize> {
    let can_give = |n: &usize| shares[*n] > looks[*n].floor;
    (0..shares.len()).filter(can_give).min_by_key(|n| heat_a_page(looks, shares, *n))
}

/// By this they are compared. Of equals the larger one is the colder.
fn heat_a_page(looks: &[Look], shares: &[u64], n: usize) -> (u128, core::cmp::Reverse<u64>) {
    let heat = u128::from(looks[n].heat) * (1 << 20) / u128::from(shares[n].max(1));
    (heat, core::cmp::Reverse(shares[n]))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: u64 = 100_000;

    /// Processes that want `wanted` pages each and touch them evenly at `speed`: who has less than
    /// it wants faults in proportion to what is missing.
    fn run(wanted: &[u64], speed: &[u64], looks: usize) -> Vec<u64> {
        let mut shares = vec![0; wanted.len()];
        for _ in 0..looks {
            let look = |n: usize| {
                let used = wanted[n].min(shares[n].max(1));
                let missing = wanted[n] - used;
                Look { used, floor: 100, heat: speed[n] * missing / wanted[n].max(1) }
            };
            let looks: Vec<_> = (0..wanted.len()).map(look).collect();
            rebalance(ROOM, &looks, &mut shares);
            assert_eq!(shares.iter().sum::<u64>(), ROOM);
        }
        shares
    }

    #[test]
    fn who_does_nothing_gives_way_to_who_needs_memory() {
        let shares = run(&[90_000, 90_000], &[0, 10_000], 200);
        assert!(shares[1] >= 85_000, "{shares:?}");
    }

    #[test]
    fn equals_share_equally() {
        let shares = run(&[90_000, 90_000, 90_000], &[10_000; 3], 400);
        assert!(shares.iter().all(|share| (25_000..45_000).contains(share)), "{shares:?}");
    }

    #[test]
    fn who_needs_little_keeps_it() {
        let shares = run(&[5_000, 200_000], &[10_000, 10_000], 400);
        assert!(shares[0] >= 4_000, "{shares:?}");
    }

    proptest! {
        #[test]
        fn shares_come_to_what_there_is_and_nobody_falls_below_its_floor(
            looks in proptest::collection::vec((0u64..200_000, 0u64..20_000, 0u64..5_000), 1..8),
            rounds in 1usize..40,
        ) {
            let looks: Vec<_> =
                looks.into_iter().map(|(used, floor, heat)| Look { used, floor, heat }).collect();
            let mut shares = vec![0; looks.len()];
            let floors: u64 = looks.iter().map(|look| look.floor.max(1)).sum();
            for _ in 0..rounds {
                rebalance(ROOM, &looks, &mut shares);
                let total: u64 = shares.iter().sum();
                prop_assert!(total == ROOM || total <= floors, "{total}: {shares:?}");
                prop_assert!(shares.iter().zip(&looks).all(|(share, look)| *share >= look.floor));
            }
        }
    }
}
