//! What a trial of compaction promises against what emptying the zspage really wins.

use super::cases::pool;
use super::{TestArena, store_in};
use crate::Pool;
use crate::ground::PAGE_WORDS;
use crate::lane::Held;
use crate::zspages::Kind;
use proptest::prelude::*;
use std::vec::Vec;

/// Pages of each zspage, of all lanes.
fn pages(held: &Held<'_, TestArena>) -> Vec<u32> {
    let zspages = &held.ground.zspages;
    (0..zspages.used()).map(|zspage| zspages.pages(zspage)).collect()
}

/// Tries every zspage of a lane, empties the one that promises most, and compares. How many blocks were moved.
fn compare(held: &mut Held<'_, TestArena>) -> usize {
    held.bury();
    held.let_go();
    let zspages = &held.ground.zspages;
    let ours = (0..zspages.used()).filter(|&zspage| zspages.is(zspage, held.number, Kind::Packed));
    let trials = ours.map(|zspage| {
        let mut tried = 0;
        let gain = held.gain(zspage, 1, &mut tried);
        (gain.by_move, zspage, gain.is_page)
    });
    let Some((gain, victim, is_page)) = trials.max() else { return 0 };
    let (blocks, before) = (zspages.blocks(victim), pages(held));
    let moved = held.empty(victim);
    assert_eq!(moved, blocks as usize, "nobody reads any of them");
    let after = pages(held);
    let grown = after.iter().enumerate().filter(|&(n, &now)| now > *before.get(n).unwrap_or(&0));
    let (grown, sum) = (grown.count() as i64, |pages: &[u32]| i64::from(pages.iter().sum::<u32>()));
    let (won, page) = (sum(&before) - sum(&after), i64::from(PAGE_WORDS));
    // Of a page that is taken for the moved only what they fill counts as cost.
    assert!(
        (won + grown) * page >= i64::from(gain * blocks),
        "{blocks} blocks promised {gain} words each, won {won} pages, {grown} zspages grew"
    );
    assert!(won > 0 || !is_page, "{blocks} blocks promised a page, won {won}");
    moved
}

fn run(chain: usize, unit: usize, objects: &[(usize, usize)], gone: &[usize], rounds: usize) {
    let pool: Pool<TestArena> = pool(4000, chain, unit, 1000);
    let mut live: Vec<_> = objects
        .iter()
        .map(|&(len, lane)| store_in(&pool, lane, &std::vec![len as u8; len]).expect("room"))
        .collect();
    for at in gone {
        if !live.is_empty() {
            pool.free(live.swap_remove(at % live.len())).expect("live");
        }
    }
    for _ in 0..rounds {
        for number in 0..crate::LANES {
            pool.locked_with_others(number, |mut held| compare(&mut held));
        }
        pool.check();
    }
}

/// Sizes as compressed units have them, small ones, and some that take most of a unit; each with one of up to three
/// lanes.
fn objects(unit: usize) -> impl Strategy<Value = Vec<(usize, usize)>> {
    let len = prop_oneof![6 => 1..=unit / 4, 3 => 1..=unit / 2, 1 => 1..=unit];
    let objects = prop::collection::vec((len, 0..6_usize), 1..400);
    (objects, 1..4_usize).prop_map(|(mut objects, lanes)| {
        objects.iter_mut().for_each(|(_, lane)| *lane %= lanes);
        objects
    })
}

proptest! {
    /// Emptying wins what was promised, but for a part of a page in each zspage that takes a page for it.
    #[test]
    fn emptying_wins_what_a_trial_promised(
        chain in 1..=16_usize,
        objects in objects(4096),
        gone in prop::collection::vec(0..400_usize, 0..300),
        rounds in 1..6_usize,
    ) {
        run(chain, 4096, &objects, &gone, rounds);
    }

    /// The same for units of several pages.
    #[test]
    fn of_large_units_too(
        chain in 1..=16_usize,
        objects in objects(16384),
        gone in prop::collection::vec(0..400_usize, 0..300),
        rounds in 1..6_usize,
    ) {
        run(chain, 16384, &objects, &gone, rounds);
    }
}
