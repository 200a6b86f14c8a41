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

use crate::ask::Ask;

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

/// What one who is asked gives at each look, of everything.
const GIVEN: u64 = 16;

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

/// Changes `shares` while it is the turn of the process `holder`, as [`Ask`]s tell: those that are asked for
/// memory give it, a step a look, as long as the holder `wants` more; nobody else grows by more than a little.
pub fn by_turns(
    room: u64,
    looks: &[Look],
    asks: &[Ask],
    (holder, wants): (usize, bool),
    shares: &mut [u64],
) {
    for ((share, look), ask) in shares.iter_mut().zip(looks).zip(asks) {
        *share = match ask {
            Ask::Nothing => look.used + room / STEPS,
            _ if wants => (*share).min(look.used).saturating_sub(room / GIVEN),
            _ => look.used,
        };
        *share = (*share).max(1);
    }
    shares[holder] = 0;
    let others: u64 = shares.iter().sum();
    shares[holder] = room.saturating_sub(others).max(looks[holder].floor);
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

    #[test]
    fn who_has_its_turn_gets_what_others_can_give_as_long_as_it_wants_more() {
        let look = |used| Look { used, floor: 10_000, heat: 0 };
        let looks = [look(40_000), look(40_000), look(15_000), look(5_000)];
        let asks = [Ask::Nothing, Ask::Wait, Ask::Give, Ask::Nothing];
        let mut shares = [40_000, 40_000, 15_000, 5_000];
        by_turns(ROOM, &looks, &asks, (0, true), &mut shares);
        assert_eq!(shares, [ROOM - 33_750 - 8_750 - 6_562, 33_750, 8_750, 6_562]);
        for _ in 0..9 {
            by_turns(ROOM, &looks, &asks, (0, true), &mut shares);
        }
        assert_eq!(shares[1..3], [1, 1], "down to what is none of the program's");
        by_turns(ROOM, &looks, &asks, (0, false), &mut shares);
        assert_eq!(shares[1..3], [40_000, 15_000]);
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
