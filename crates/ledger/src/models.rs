//! Every order in which a process can go while another comes.

use super::*;
use loom::sync::Arc;
use loom::thread;

impl Ledger {
    fn empty() -> Self {
        let member = |_| Member {
            owner: AtomicU64::new(0),
            used: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            share: AtomicU64::new(0),
            unshared: AtomicU64::new(0),
            common: AtomicU64::new(0),
            known: AtomicU64::new(0),
            began: AtomicU64::new(0),
            ends: AtomicU32::new(0),
            leaves: AtomicU32::new(0),
            depends: AtomicU32::new(0),
            asked: Asked::default(),
            name: [AtomicU64::new(0), AtomicU64::new(0)],
            counters: Counters::default(),
            stored: Stored::default(),
        };
        Self {
            limit: AtomicU64::new(100),
            peak: AtomicU64::new(0),
            exceeded: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            said: AtomicU32::new(0),
            forbidden: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            told: AtomicU32::new(0),
            leaving: Counter::default(),
            left: Counter::default(),
            bequeathed: AtomicU64::new(0),
            unmanaged: AtomicU64::new(0),
            claimed: AtomicU32::new(0),
            lacks: AtomicU32::new(0),
            gone: Counters::default(),
            members: core::array::from_fn(member),
        }
    }
}

fn newcomer(program: i32) -> Newcomer {
    let owner = Owner { program, pager: program + 1 };
    Newcomer { owner, name: [1; 16], began: Duration::from_secs(1) }
}

/// The place of one that is gone is cleared before the next can have it: nothing of the next is
/// cleared, and nothing of the one is left.
#[test]
fn a_place_is_clean_for_the_next_and_stays_its_own() {
    loom::model(|| {
        let ledger = Arc::new(Ledger::empty());
        let gone = ledger.join(&newcomer(1)).expect("the place");
        gone.say(50, 5);
        gone.counters.faults.add(3);
        let theirs = Arc::clone(&ledger);
        let next = thread::spawn(move || {
            let Some(member) = theirs.join(&newcomer(3)) else {
                return 0;
            };
            assert_eq!((member.used(), member.share(), member.ends()), (0, None, false));
            member.say(7, 0);
            member.counters.faults.add(1);
            1
        });
        gone.end();
        ledger.clear(gone);
        let joined: u64 = next.join().expect("the next");
        let used: u64 = ledger.members().map(Member::used).sum();
        let total = Counters::default();
        ledger.count(&total);
        assert_eq!((used, total.faults.get()), (7 * joined, 3 + joined));
    });
}

/// Of two that want the last place one gets it.
#[test]
fn a_place_has_one_owner() {
    loom::model(|| {
        let ledger = Arc::new(Ledger::empty());
        let theirs = Arc::clone(&ledger);
        let other = thread::spawn(move || theirs.join(&newcomer(1)).is_some());
        let one = ledger.join(&newcomer(3)).is_some();
        assert!(one != other.join().expect("the other"));
    });
}
