//! What a process counts, where others can read it.

use core::time::Duration;
use octavo_page::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds one; gives the number before.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// The number so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes the number out, and leaves 0.
    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }

    /// Makes it `n`.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

/// Times in buckets: eight to each doubling, from 1 ns to over a minute; each is known to 12%.
#[derive(Debug)]
#[repr(transparent)]
pub struct Times([Counter; Self::BUCKETS]);

impl Times {
    const BUCKETS: usize = if cfg!(loom) { 1 } else { 8 * 38 };

    /// Notes one time.
    pub fn note(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(8);
        let doubling = ns.ilog2();
        let eighth = (ns >> (doubling - 3)) & 7;
        let bucket = ((doubling - 3) * 8) as usize + eighth as usize;
        self.0[bucket.min(Self::BUCKETS - 1)].add(1);
    }

    /// The time that `share` (0 to 1) of all times stay below; zero when there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let total: u64 = self.0.iter().map(Counter::get).sum();
        let mut left = (total as f64 * share) as u64;
        for (bucket, count) in self.0.iter().enumerate() {
            let count = count.get();
            if left < count {
                let (doubling, eighth) = (bucket as u32 / 8, bucket as u64 % 8);
                return Duration::from_nanos((8 + eighth) << doubling);
            }
            left -= count;
        }
        Duration::ZERO
    }
}

impl Default for Times {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Counter::default()))
    }
}

/// What a process counts.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// Faults answered.
    pub faults: Counter,
    /// Faults on pages that were never there or were discarded.
    pub fresh_faults: Counter,
    /// Pages stored by compressing them.
    pub evictions: Counter,
    /// Pages evicted at no cost, because the stored copy was still good.
    pub clean_evictions: Counter,
    /// Pages that were taken, did not compress and went back.
    pub put_back: Counter,
    /// Pages brought back because a neighbour was asked for.
    pub neighbours: Counter,
    /// Faults that had to make room first.
    pub waited: Counter,
    /// Pages stored anew, more densely.
    pub condensed: Counter,
    /// Events read.
    pub events: Counter,
    /// Mappings registered but never evicted from, because the list of regions was full.
    pub unlisted: Counter,
    /// Pages lost to damage.
    pub lost: Counter,
    /// CPU time of the pager, in microseconds.
    pub cpu_us: Counter,
    /// Units compressed and decompressed on the CPU, as asked.
    pub cpu_requests: Counter,
    /// The same by devices.
    pub device_requests: Counter,
    /// The same on the CPU, in place of a device.
    pub instead_requests: Counter,
    /// Generations of tables learnt.
    pub generations: Counter,
    /// Bytes of objects written to backing files.
    pub written_back: Counter,
    /// Objects read from them.
    pub file_reads: Counter,
    /// From reading a fault to its answer, of one fault in eight.
    pub fault_time: Times,
}

impl Counters {
    fn each(&self) -> impl Iterator<Item = &Counter> {
        let counters = [
            &self.faults,
            &self.fresh_faults,
            &self.evictions,
            &self.clean_evictions,
            &self.put_back,
            &self.neighbours,
            &self.waited,
            &self.condensed,
            &self.events,
            &self.unlisted,
            &self.lost,
            &self.cpu_us,
            &self.cpu_requests,
            &self.device_requests,
            &self.instead_requests,
            &self.generations,
            &self.written_back,
            &self.file_reads,
        ];
        counters.into_iter().chain(&self.fault_time.0)
    }

    /// Adds all of `other`, which is left at 0.
    pub fn take_over(&self, other: &Self) {
        self.each().zip(other.each()).for_each(|(to, from)| to.add(from.take()));
    }

    /// Adds all of `other`.
    pub fn add_all(&self, other: &Self) {
        self.each().zip(other.each()).for_each(|(to, from)| to.add(from.get()));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_known_to_an_eighth() {
        let times = Times::default();
        assert_eq!(times.quantile(0.5), Duration::ZERO);
        for us in 1..=1000 {
            times.note(Duration::from_micros(us));
        }
        for (share, us) in [(0.5, 500.0), (0.99, 990.0)] {
            let found = times.quantile(share).as_nanos() as f64 / 1e3;
            assert!((found / us - 1.0).abs() < 0.13, "{share}: {found} us");
        }
        times.note(Duration::from_secs(100_000));
        assert!(times.quantile(1.0 - 1e-9) > Duration::from_secs(60));
    }

    #[test]
    fn no_counter_is_left_out() {
        let counters = Counters::default();
        assert_eq!(counters.each().count() * size_of::<Counter>(), size_of::<Counters>());
    }

    #[test]
    fn counters_move_to_the_total_once() {
        let (total, member) = (Counters::default(), Counters::default());
        member.faults.add(7);
        member.cpu_us.add(3);
        member.fault_time.note(Duration::from_micros(10));
        total.take_over(&member);
        total.take_over(&member);
        assert_eq!((total.faults.get(), total.cpu_us.get(), member.faults.get()), (7, 3, 0));
        assert!(total.fault_time.quantile(0.5) > Duration::from_micros(8));
    }
}
