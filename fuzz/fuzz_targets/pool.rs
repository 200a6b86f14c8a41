//! Any calls of the pool, frames running out between them, against a plain map from handles to
//! bytes. Some calls are made while an object is read: it stays as it is until the reader is done,
//! even when it is freed.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use octavo_fuzz::common::{Random, TestArena};
use octavo_page::Handle;
use octavo_pool::{AllocError, BadHandle, ChainLength, Config, Pool};
use std::collections::HashMap;

const OBJECTS: usize = 150;
const PAGES: usize = 800;

#[derive(Arbitrary, Debug)]
enum Step {
    Store { len: u16, near_max: bool },
    Refused { len: u16 },
    Free { which: u16 },
    FreeMany { which: Vec<u16> },
    FreeStale { which: u16 },
    Read { which: u16 },
    ReadWhile { which: u16, steps: Vec<Step> },
    Compact { moves: u8 },
    Frames { left: u16 },
}

#[derive(Arbitrary, Debug)]
struct Case {
    chain: u8,
    max: u8,
    steps: Vec<Step>,
}

fuzz_target!(|case: Case| {
    let max_object = [40, 4096, 5000, 16384, 65536][usize::from(case.max) % 5];
    let chain = ChainLength::new(1 + usize::from(case.chain % 12)).expect("1 to 16");
    let config = Config { chain, max_object, max_objects: OBJECTS };
    let arena = TestArena::new(PAGES);
    let pool = Pool::new(arena.clone(), config).expect("room for a zspage");
    let mut run = Run { max_object, model: Model::default(), steps_left: 300, depth: 0 };
    for step in &case.steps {
        run.step(&pool, step);
        run.check(&pool);
    }
    run.model.live.iter().for_each(|(handle, object)| object.check(&pool, *handle));
    let live: Vec<_> = run.model.live.drain().map(|(handle, _)| handle).collect();
    assert_eq!(pool.free_many(&live).objects, live.len());
    run.check(&pool);
    assert_eq!(pool.stats().pages, 0, "pages of nothing");
});

/// The plain twin: what each handle names. The order is that of storing, for a step says "which".
#[derive(Default)]
struct Model {
    live: HashMap<Handle, Object>,
    order: Vec<Handle>,
    stale: Vec<Handle>,
}

impl Model {
    fn which(&self, n: u16) -> Option<Handle> {
        let live = self.order.len();
        (live > 0).then(|| self.order[usize::from(n) % live])
    }

    fn remove(&mut self, handle: Handle) -> Option<Object> {
        self.order.retain(|h| *h != handle);
        self.stale.push(handle);
        self.live.remove(&handle)
    }
}

/// An object: bytes by their seed.
#[derive(Clone, Copy)]
struct Object {
    seed: u64,
    len: usize,
}

impl Object {
    fn bytes(self) -> Vec<u8> {
        let mut random = Random::new(self.seed);
        let words = (0..self.len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
        words.take(self.len).collect()
    }

    fn check(self, pool: &Pool<TestArena>, handle: Handle) {
        let same = pool.read(handle, |found| found == self.bytes());
        assert_eq!(same, Ok(true), "{handle:?}");
    }
}

struct Run {
    max_object: usize,
    model: Model,
    /// Steps that are still done, those inside of others counted.
    steps_left: usize,
    /// Readers under way.
    depth: usize,
}

impl Run {
    fn step(&mut self, pool: &Pool<TestArena>, step: &Step) {
        let Some(left) = self.steps_left.checked_sub(1) else { return };
        self.steps_left = left;
        match step {
            Step::Store { len, near_max } => {
                // The largest ones are laid down otherwise than the rest.
                let (len, max) = (usize::from(*len), self.max_object);
                let len = if *near_max { max - len % max.min(100) } else { 1 + len % max };
                self.store(pool, len);
            }
            Step::Refused { len } => {
                let (len, max) = (self.max_object + 1 + usize::from(*len), self.max_object);
                let said = pool.alloc(len, |_| unreachable!("refused"));
                assert_eq!(said, Err(AllocError::TooLarge { len, max }));
                assert_eq!(pool.store(&[]), Err(AllocError::Zero));
            }
            Step::Free { which } => {
                let Some(handle) = self.model.which(*which) else { return };
                let object = self.model.remove(handle).expect("live");
                assert_eq!(pool.free(handle), Ok(object.len));
            }
            Step::FreeMany { which } => self.free_many(pool, which),
            Step::FreeStale { which } => {
                let n = self.model.stale.len();
                let handle = if n == 0 {
                    Handle::from_bits(u32::from(*which).wrapping_mul(0x9e37_79b9))
                } else {
                    self.model.stale[usize::from(*which) % n]
                };
                if !self.model.live.contains_key(&handle) {
                    assert_eq!(pool.free(handle), Err(BadHandle(handle)));
                    assert_eq!(pool.read(handle, |_| ()), Err(BadHandle(handle)));
                }
            }
            Step::Read { which } => {
                let Some(handle) = self.model.which(*which) else { return };
                self.model.live[&handle].check(pool, handle);
            }
            Step::ReadWhile { which, steps } => {
                let Some(handle) = self.model.which(*which) else { return };
                let bytes = self.model.live[&handle].bytes();
                self.depth += 1;
                pool.read(handle, |found| {
                    for step in steps {
                        self.step(pool, step);
                        assert!(found == bytes, "changed under a reader");
                    }
                })
                .expect("live");
                self.depth -= 1;
            }
            Step::Compact { moves } => {
                let moves = usize::from(*moves);
                assert!(pool.compact(moves).moved <= moves);
            }
            Step::Frames { left } => {
                let left = usize::from(*left) % PAGES;
                pool.arena().set_frames_left(left.min(PAGES - pool.arena().committed()));
            }
        }
    }

    fn store(&mut self, pool: &Pool<TestArena>, len: usize) {
        let object = Object { seed: self.steps_left as u64 + 1, len };
        let (before, refused) = (pool.stats(), pool.arena().refused());
        match pool.store(&object.bytes()) {
            Ok(handle) => {
                assert!(self.model.live.insert(handle, object).is_none(), "{handle:?} twice");
                self.model.order.push(handle);
            }
            Err(error) => {
                let after = pool.stats();
                assert_eq!(before.objects, after.objects);
                assert!(after.pages <= before.pages, "pages of what was refused");
                let why = match error {
                    AllocError::OutOfFrames => pool.arena().refused() > refused,
                    AllocError::Full(_) => true,
                    AllocError::Zero | AllocError::TooLarge { .. } => false,
                };
                assert!(why, "{error}");
            }
        }
    }

    fn free_many(&mut self, pool: &Pool<TestArena>, which: &[u16]) {
        let handles: Vec<_> = which.iter().filter_map(|n| self.model.which(*n)).collect();
        let freed = pool.free_many(&handles);
        let gone: Vec<_> = handles.iter().filter_map(|h| self.model.remove(*h)).collect();
        assert_eq!((freed.objects, freed.refused), (gone.len(), handles.len() - gone.len()));
        assert_eq!(freed.bytes, gone.iter().map(|object| object.len).sum::<usize>());
    }

    fn check(&self, pool: &Pool<TestArena>) {
        assert_eq!(self.depth, 0);
        let stats = pool.stats();
        assert_eq!(stats.objects, self.model.live.len());
        let bytes = self.model.live.values().map(|object| object.len).sum::<usize>();
        assert_eq!(stats.compressed_bytes, bytes);
        assert_eq!(stats.pages, pool.arena().committed());
    }
}
