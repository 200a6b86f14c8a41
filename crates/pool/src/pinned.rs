//! Objects that are held where they are, for as long as somebody reads them.
//!
//! What [`Pool::read`] does for the time of one call, a [`Pinned`] does until it is dropped: for who reads
//! several objects at once, such as a batch of decompressions by a device.

use crate::handles::Object;
use crate::{Arena, BadHandle, Pin, Pool};
use core::ops::Deref;
use core::{array, fmt};
use octavo_page::Handle;

/// Objects that `read_many` holds: the one that is read and those behind it, which are being fetched.
const READ_AHEAD: usize = 8;

/// An object, held where it lies: its bytes. It may be freed meanwhile; its space is not used again
/// before this is dropped.
pub struct Pinned<'a, A: Arena> {
    pin: Pin<'a, A>,
    object: Object,
}

impl<A: Arena> Pool<A> {
    /// Holds an object where it is. Waits for nobody, and keeps nobody waiting but the reuse of this
    /// object's space. A thread holds a few at a time: an object can have 119 pins.
    ///
    /// # Errors
    /// The handle names no object.
    pub fn pin(&self, handle: Handle) -> Result<Pinned<'_, A>, BadHandle> {
        let (index, object) = self.handles.pin(handle)?;
        Ok(Pinned { pin: Pin { pool: self, index }, object })
    }

    /// Holds each object that there still is, and begins to fetch its first bytes: faster than one by
    /// one, as a handle's word and its object are two trips to memory.
    ///
    /// # Panics
    /// When there are not as many places in `pins` as handles.
    pub fn pin_many<'a>(&'a self, handles: &[Handle], pins: &mut [Option<Pinned<'a, A>>]) {
        assert_eq!(handles.len(), pins.len(), "a place for each handle");
        handles.iter().for_each(|&handle| self.handles.prefetch(handle));
        for (&handle, pin) in handles.iter().zip(pins) {
            *pin = self.pin(handle).ok();
            if let Some(pin) = pin {
                // The processor finds out by itself that it should go on.
                self.ground.prefetch(pin.object.place);
            }
        }
    }

    /// Reads many objects, faster than one by one: calls `f` with each handle's number and bytes, or
    /// the error that [`read`](Self::read) would give. A handle's word and its object are two trips to
    /// memory; both are begun some objects ahead, the second with the pin, which has to look where the object is
    /// anyway. So an object that is freed after `f` was called for one before it may still be read, and a call holds
    /// eight pins at a time, of which an object can have 119.
    pub fn read_many(
        &self,
        handles: &[Handle],
        mut f: impl FnMut(usize, Result<&[u8], BadHandle>),
    ) {
        let fetch_word = |n: usize| {
            if let Some(&handle) = handles.get(n) {
                self.handles.prefetch(handle);
            }
        };
        let begin = |n: usize| {
            let pinned = self.pin(*handles.get(n)?);
            if let Ok(pinned) = &pinned {
                self.ground.prefetch_bytes(pinned.object);
            }
            Some(pinned)
        };
        (0..2 * READ_AHEAD).for_each(fetch_word);
        let mut ahead: [_; READ_AHEAD] = array::from_fn(begin);
        for n in 0..handles.len() {
            fetch_word(n + 2 * READ_AHEAD);
            let next = &mut ahead[n % READ_AHEAD];
            match next.take().expect("begun before") {
                Ok(pinned) => f(n, Ok(&pinned)),
                Err(error) => f(n, Err(error)),
            }
            *next = begin(n + READ_AHEAD);
        }
    }
}

impl<A: Arena> Deref for Pinned<'_, A> {
    type Target = [u8];

    #[allow(unsafe_code)] // The object lies in raw memory.
    fn deref(&self) -> &[u8] {
        // SAFETY: the pin holds the object where it is as long as `self` lives, and so the slice.
        unsafe { self.pin.pool.ground.bytes(self.object) }
    }
}

impl<A: Arena> fmt::Debug for Pinned<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("bytes", &self.object.len).finish_non_exhaustive()
    }
}
