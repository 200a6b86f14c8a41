//! Random operations, with frames that run out, against a map from handle to bytes.

use super::cases::pool;
use super::{TestArena, store_in};
use crate::{AllocError, BadHandle, LANES, Pool};
use octavo_page::Handle;
use proptest::prelude::*;
use std::vec::Vec;

#[derive(Clone, Debug)]
enum Op {
    Store(usize),
    StoreIn(usize, usize),
    StoreMany(Vec<usize>),
    Free(usize),
    FreeMany(usize, usize),
    FreeStale(usize),
    Read(usize),
    Compact(usize),
    Tidy(usize),
    Frames(usize),
}

fn op(max: usize) -> impl Strategy<Value = Op> {
    let len = prop_oneof![
        8 => 1..=max / 4,
        4 => 1..=max,
        2 => max - 80..=max,
        1 => 1..=40_usize,
    ];
    prop_oneof![
        6 => len.clone().prop_map(Op::Store),
        6 => (0..LANES, len.clone()).prop_map(|(lane, len)| Op::StoreIn(lane, len)),
        2 => prop::collection::vec(len, 0..40).prop_map(Op::StoreMany),
        7 => any::<usize>().prop_map(Op::Free),
        1 => (any::<usize>(), 0..80_usize).prop_map(|(at, n)| Op::FreeMany(at, n)),
        1 => any::<usize>().prop_map(Op::FreeStale),
        2 => any::<usize>().prop_map(Op::Read),
        1 => (0..40_usize).prop_map(Op::Compact),
        1 => (0..40_usize).prop_map(Op::Tidy),
        1 => prop_oneof![Just(usize::MAX), 0..8_usize].prop_map(Op::Frames),
    ]
}

struct Model {
    pool: Pool<TestArena>,
    live: Vec<(Handle, Vec<u8>)>,
    stale: Vec<Handle>,
    stored: usize,
}

impl Model {
    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Store(len) => self.store(None, len),
            Op::StoreIn(lane, len) => self.store(Some(lane), len),
            Op::StoreMany(ref lens) => self.store_many(lens),
            Op::Free(at) if !self.live.is_empty() => {
                let (handle, bytes) = self.live.swap_remove(at % self.live.len());
                assert_eq!(self.pool.free(handle), Ok(bytes.len()));
                self.stale.push(handle);
            }
            Op::FreeMany(at, n) if !self.live.is_empty() => {
                let from = at % self.live.len();
                let to = (from + n).min(self.live.len());
                let gone: Vec<_> = self.live.drain(from..to).collect();
                let mut handles: Vec<_> = gone.iter().map(|(handle, _)| *handle).collect();
                handles.extend(handles.first().copied());
                let freed = self.pool.free_many(&handles);
                assert_eq!(freed.objects, gone.len());
                assert_eq!(freed.bytes, gone.iter().map(|(_, bytes)| bytes.len()).sum::<usize>());
                assert_eq!(freed.refused, usize::from(!gone.is_empty()));
                self.stale.extend(gone.iter().map(|(handle, _)| handle));
            }
            Op::FreeStale(at) if !self.stale.is_empty() => {
                let handle = self.stale[at % self.stale.len()];
                if self.live.iter().all(|(live, _)| *live != handle) {
                    assert_eq!(self.pool.free(handle), Err(BadHandle(handle)));
                }
            }
            Op::Read(at) if !self.live.is_empty() => {
                let (handle, bytes) = &self.live[at % self.live.len()];
                self.pool.read(*handle, |found| assert_eq!(found, bytes)).expect("live");
            }
            Op::Compact(moves) | Op::Tidy(moves) => {
                let before = self.pool.stats();
                let done = match op {
                    Op::Tidy(_) => self.pool.tidy(moves),
                    _ => self.pool.compact(moves),
                };
                assert!(done.moved <= moves);
                let after = self.pool.stats();
                assert_eq!(before.pages - done.pages_freed, after.pages.min(before.pages));
            }
            Op::Frames(frames) => self.pool.arena().set_frames(frames),
            _ => {}
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.stored += 1;
        (0..len).map(|n| (n * 31 + self.stored * 17) as u8).collect()
    }

    fn store_many(&mut self, lens: &[usize]) {
        let objects: Vec<_> = lens.iter().map(|len| self.bytes(*len)).collect();
        let slices: Vec<&[u8]> = objects.iter().map(Vec::as_slice).collect();
        let mut handles = std::vec![Handle::from_bits(0); lens.len()];
        let (stored, refusal) = self.pool.store_many(&slices, &mut handles);
        assert_eq!(stored == lens.len(), refusal.is_ok());
        assert!(matches!(refusal, Ok(()) | Err(AllocError::OutOfFrames | AllocError::Full(_))));
        self.live.extend(handles.into_iter().zip(objects).take(stored));
    }

    /// In a lane, or as it comes.
    fn store(&mut self, lane: Option<usize>, len: usize) {
        let bytes = self.bytes(len);
        let before = self.pool.stats();
        let stored = match lane {
            Some(lane) => store_in(&self.pool, lane, &bytes),
            None => self.pool.store(&bytes),
        };
        match stored {
            Ok(handle) => self.live.push((handle, bytes)),
            Err(AllocError::OutOfFrames | AllocError::Full(_)) => {
                let after = self.pool.stats();
                assert_eq!(before.objects, after.objects);
                assert!(after.pages <= before.pages, "spare pages may be gone");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&self) {
        self.pool.check();
        let stats = self.pool.stats();
        assert_eq!(stats.objects, self.live.len());
        assert_eq!(stats.compressed_bytes, self.live.iter().map(|(_, b)| b.len()).sum::<usize>());
        assert_eq!(stats.pages, self.pool.arena().committed());
        for (handle, bytes) in &self.live {
            self.pool.read(*handle, |found| assert_eq!(found, bytes)).expect("live");
        }
    }
}

fn run(chain: usize, max: usize, pages: usize, ops: &[Op]) {
    let pool = pool(pages, chain, max, 150);
    let mut model = Model { pool, live: Vec::new(), stale: Vec::new(), stored: 0 };
    for op in ops {
        model.apply(op);
        model.pool.check();
    }
    model.check();
    let all: Vec<_> = model.live.drain(..).map(|(handle, _)| handle).collect();
    assert_eq!(model.pool.free_many(&all).objects, all.len());
    model.check();
    model.pool.tidy(usize::MAX);
    model.check();
    assert_eq!(model.pool.arena().committed(), 0);
}

proptest! {
    #[test]
    fn small_units(chain in 1..=16_usize, ops in prop::collection::vec(op(4096), 0..250)) {
        run(chain, 4096, 200, &ops);
    }

    #[test]
    fn odd_units(chain in 1..=16_usize, ops in prop::collection::vec(op(5000), 0..150)) {
        run(chain, 5000, 400, &ops);
    }

    #[test]
    fn medium_units(chain in 1..=16_usize, ops in prop::collection::vec(op(16384), 0..150)) {
        run(chain, 16384, 400, &ops);
    }

    #[test]
    fn large_units(chain in 1..=16_usize, ops in prop::collection::vec(op(65536), 0..100)) {
        run(chain, 65536, 800, &ops);
    }
}
