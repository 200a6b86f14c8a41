//! The mutex: everyone's, or in a model one whose `try_lock` never waits; and what waiting for it
//! took.
//!
//! loom 0.7 blocks a thread that is about to *try* a mutex when another thread takes it, and then
//! finds a deadlock where there is none (`rt::Mutex::post_acquire` blocks every thread whose next
//! operation is on that mutex). Isolating a cluster is exactly such a try under another lock.

#[cfg(not(all(test, loom)))]
pub(crate) use octavo_page::sync::{Mutex, MutexGuard};

#[cfg(all(test, loom))]
pub(crate) use model::{Mutex, MutexGuard};

// Figures order nothing, so a model need not explore them.
use core::sync::atomic::{AtomicU64, Ordering};

/// How often and how long threads waited for the locks of an allocator.
pub(crate) struct Waits {
    clock: fn() -> u64,
    count: AtomicU64,
    ns: AtomicU64,
}

impl Waits {
    pub(crate) fn new(clock: fn() -> u64) -> Self {
        Self { clock, count: AtomicU64::new(0), ns: AtomicU64::new(0) }
    }

    /// Takes a lock. The clock is read only where another thread holds it.
    pub(crate) fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.try_lock().unwrap_or_else(|| self.wait(mutex))
    }

    #[cold]
    fn wait<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        let begin = (self.clock)();
        let guard = mutex.lock();
        self.ns.fetch_add((self.clock)().saturating_sub(begin), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        guard
    }

    /// Waits since the start, and the nanoseconds of all of them together.
    pub(crate) fn so_far(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.ns.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, loom))]
mod model {
    use core::ops::{Deref, DerefMut};
    use loom::sync::Condvar;

    /// A mutex made of a flag under loom's mutex, which is held for a moment only.
    pub(crate) struct Mutex<T> {
        held: loom::sync::Mutex<bool>,
        released: Condvar,
        /// Locked only by who set the flag.
        value: std::sync::Mutex<T>,
    }

    pub(crate) struct MutexGuard<'a, T> {
        mutex: &'a Mutex<T>,
        value: Option<std::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            let held = loom::sync::Mutex::new(false);
            Self { held, released: Condvar::new(), value: std::sync::Mutex::new(value) }
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            let mut held = self.held.lock().expect("no thread of a model panics alone");
            while *held {
                held = self.released.wait(held).expect("no thread of a model panics alone");
            }
            *held = true;
            self.guard()
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let mut held = self.held.lock().expect("no thread of a model panics alone");
            if *held {
                return None;
            }
            *held = true;
            Some(self.guard())
        }

        fn guard(&self) -> MutexGuard<'_, T> {
            let value = self.value.try_lock().expect("the flag says that nobody has it");
            MutexGuard { mutex: self, value: Some(value) }
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.value = None;
            *self.mutex.held.lock().expect("no thread of a model panics alone") = false;
            self.mutex.released.notify_one();
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().expect("a guard has its value until it is dropped")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().expect("a guard has its value until it is dropped")
        }
    }
}
