//! Locks and atomics, in one place so that a model checker can stand in for them.
//!
//! Normally a [`Mutex`] is a futex in four bytes: no thread-local storage, no poisoning, no
//! allocation, usable by threads that libc knows nothing of. Built with `--cfg loom` the same names
//! are loom's, and the tests of a crate explore every interleaving.

#[cfg(not(loom))]
pub use rustix_futex_sync::lock_api;
#[cfg(not(loom))]
pub use rustix_futex_sync::{
    Condvar, Mutex, MutexGuard, RawRwLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// Atomic integers: `core`'s, or loom's under `--cfg loom`.
pub mod atomic {
    #[cfg(not(loom))]
    pub use core::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, fence,
    };
    #[cfg(loom)]
    pub use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, fence,
    };
}

#[cfg(loom)]
pub use self::model::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// loom's mutex and condition with the signatures of the futex ones: they give the guard itself.
#[cfg(loom)]
mod model {
    /// The guard of [`Mutex`].
    pub type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

    /// A mutex that loom schedules.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A mutex around `value`.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("loom reports the panic of another thread first")
        }

        /// Takes the lock if nobody holds it.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// The guard of who reads.
    pub type RwLockReadGuard<'a, T> = loom::sync::RwLockReadGuard<'a, T>;
    /// The guard of who writes.
    pub type RwLockWriteGuard<'a, T> = loom::sync::RwLockWriteGuard<'a, T>;

    /// A lock for readers and writers that loom schedules.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Self {
            Self(loom::sync::RwLock::new(value))
        }

        /// Waits to read.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("loom reports the panic of another thread first")
        }

        /// Takes the lock to write if nobody holds it.
        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }

    /// A condition that loom schedules.
    #[derive(Debug, Default)]
    pub struct Condvar(loom::sync::Condvar);

    impl Condvar {
        /// Nobody waits.
        pub fn new() -> Self {
            Self::default()
        }

        /// Leaves the lock, waits to be notified, and takes the lock again.
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).expect("loom reports the panic of another thread first")
        }

        /// Wakes all who wait.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
