//! A value that nobody else is to see: locked in memory, left out of core dumps, zeroed at its end;
//! and random bytes to make keys of.
#![allow(unsafe_code)] // A value in a mapping of its own, overwritten byte by byte.

use crate::Result;
use crate::memory::Reserve;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, compiler_fence};
use octavo_page::PAGE_SIZE;
use syscalls::{Errno, Sysno, syscall};

/// Bytes of the stack that making a value may have used, at most, and that are overwritten.
const STACK: usize = 16 << 10;

/// A value in a mapping of its own. It never reaches a disk by swapping, nor a core dump, and not a
/// child, but for one that it is left to ([`Secret::leave_to_children`]); there it is not locked.
pub struct Secret<T> {
    memory: Reserve,
    value: NonNull<T>,
}

// SAFETY: a secret owns its value, as a box does.
unsafe impl<T: Send> Send for Secret<T> {}
// SAFETY: a shared secret gives only shared references to its value.
unsafe impl<T: Sync> Sync for Secret<T> {}

impl<T> Secret<T> {
    /// The value that `make` makes. What it leaves on the stack, up to 16 KiB, is overwritten.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is limited or full; `ENOMEM` or `EPERM` when the memory must
    /// not be locked (`RLIMIT_MEMLOCK`).
    pub fn new(make: impl FnOnce() -> T) -> Result<Self> {
        const { assert!(align_of::<T>() <= PAGE_SIZE) };
        let memory = Reserve::new(size_of::<T>().max(1), c"octavo-secret")?;
        if let Err(why) = memory.lock() {
            // SAFETY: nobody knows of it yet.
            unsafe { memory.unmap() };
            return Err(why);
        }
        let value = NonNull::new(ptr::with_exposed_provenance_mut(memory.start()));
        let value = value.expect("nothing is mapped at 0");
        fill(value, make);
        overwrite_stack();
        Ok(Self { memory, value })
    }

    /// Has children inherit it, as of [`Reserve::leave_to_children`].
    pub fn leave_to_children(&self) {
        self.memory.leave_to_children();
    }

    /// Locks it, in a child that has inherited it.
    ///
    /// # Errors
    /// As of [`Reserve::lock`].
    pub fn lock(&self) -> Result<()> {
        self.memory.lock()
    }
}

/// By itself, so that all of its stack lies where [`overwrite_stack`] will have its own.
#[inline(never)]
fn fill<T>(value: NonNull<T>, make: impl FnOnce() -> T) {
    // SAFETY: a fresh mapping, large and aligned enough.
    unsafe { value.write(make()) };
}

#[inline(never)]
fn overwrite_stack() {
    let mut stack = [0u8; STACK];
    zero(&mut stack);
    core::hint::black_box(&mut stack);
}

/// Zeroes `bytes`, also when nobody reads them any more.
fn zero(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: a byte that we hold exclusively.
        unsafe { ptr::write_volatile(byte, 0) };
    }
    compiler_fence(Ordering::SeqCst);
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written at construction, and mapped for as long as `self` lives.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Secret<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is held exclusively.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: the value is not used any more, and neither is its memory after that.
        unsafe {
            self.value.drop_in_place();
            let bytes = core::slice::from_raw_parts_mut(self.value.cast().as_ptr(), size_of::<T>());
            zero(bytes);
            self.memory.unmap();
        }
    }
}

/// Fills `bytes` with random ones, from the kernel's generator.
///
/// # Errors
/// As of `getrandom(2)`, other than `EINTR`.
pub fn random(mut bytes: &mut [u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the kernel writes at most `bytes.len()` bytes into a buffer we hold exclusively.
        match unsafe { syscall!(Sysno::getrandom, bytes.as_mut_ptr(), bytes.len(), 0usize) } {
            Ok(n) => bytes = bytes.get_mut(n..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}
