//! How ciphertext gets to the pages that a device reads: through the caches, or past them.
//!
//! ```text
//!   cached     sector, plain ──AES──► page              lines that others have are brought here to be written
//!   streamed   sector, plain ──AES──► sector ──► page   stored past the caches: nothing is brought
//! ```
//! A page that comes round again was last read by whoever wrote it to the disk: a controller, or a thread of a
//! hypervisor, which then has its lines in the caches of its own processor. Where that is near, the cached way
//! takes as long as the other, and the device reads what it wrote faster, by a tenth. Where it is far, on another
//! die as we take it, to write the lines takes five times as long. Where it is changes every few seconds, and
//! nobody tells. So both ways are timed, the one that is not in use now and then.
//!
//! Measured on 25 November 2026, two CPUs of an AMD EPYC (Zen 4) under a hypervisor, microseconds to fill 256 KiB
//! and then to write them:
//!
//! |             | near: fill | write | far: fill | write |
//! |-------------|-----------:|------:|----------:|------:|
//! | cached      |         17 |   145 |        74 |   163 |
//! | streamed    |         14 |   160 |        14 |   160 |
//! | not changed |            |   145 |           |   145 |

/// How a sector gets to its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    Cached,
    Streamed,
}

/// Times of each way that are kept; the least of them counts, as who is interrupted takes longer.
const KEPT: usize = 4;

/// Of so many chunks one goes the other way, to see what that takes now.
const PROBE: u32 = 16;

/// What each way took lately.
pub(crate) struct Routes {
    /// Nanoseconds a sector.
    cached: [u64; KEPT],
    streamed: [u64; KEPT],
    chunks: u32,
}

impl Routes {
    pub(crate) const fn new() -> Self {
        Self { cached: [0; KEPT], streamed: [0; KEPT], chunks: 0 }
    }

    /// The way of the next chunk: cached, unless that takes half as long again.
    pub(crate) fn choose(&mut self) -> Route {
        let least = |times: &[u64; KEPT]| times.iter().copied().min().unwrap_or(0);
        let (cached, streamed) = (least(&self.cached), least(&self.streamed));
        let is_far = 2 * cached > 3 * streamed;
        self.chunks = self.chunks.wrapping_add(1);
        if is_far == self.chunks.is_multiple_of(PROBE) { Route::Cached } else { Route::Streamed }
    }

    /// What a chunk took, in nanoseconds a sector.
    pub(crate) fn note(&mut self, route: Route, ns: u64) {
        let times = match route {
            Route::Cached => &mut self.cached,
            Route::Streamed => &mut self.streamed,
        };
        times.rotate_right(1);
        times[0] = ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many chunks on a machine where each way takes so long; how many were streamed.
    fn run(routes: &mut Routes, chunks: u32, cached: u64, streamed: u64) -> u32 {
        let mut count = 0;
        for _ in 0..chunks {
            let route = routes.choose();
            routes.note(route, if route == Route::Cached { cached } else { streamed });
            count += u32::from(route == Route::Streamed);
        }
        count
    }

    #[test]
    fn the_cached_way_is_taken_until_it_is_dear_and_again_when_it_is_not() {
        let mut routes = Routes::new();
        run(&mut routes, 16 * PROBE, 400, 500);
        assert_eq!(run(&mut routes, 16 * PROBE, 400, 500), 16, "to see what it takes");
        assert!(run(&mut routes, 16 * PROBE, 1500, 500) > 15 * PROBE - 8);
        assert_eq!(run(&mut routes, 16 * PROBE, 1500, 500), 16 * (PROBE - 1));
        assert!(run(&mut routes, 16 * PROBE, 400, 500) < 16 + PROBE);
    }

    #[test]
    fn who_is_interrupted_changes_nothing() {
        let mut routes = Routes::new();
        run(&mut routes, 16 * PROBE, 400, 500);
        for _ in 0..100 {
            routes.note(Route::Cached, 90_000);
            assert!(run(&mut routes, PROBE, 400, 500) <= 1);
        }
    }
}
