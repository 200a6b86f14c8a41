//! Storing many objects at once.
//!
//! ```text
//!   one by one     lock, place, unlock, write, publish     lock, place, unlock, write, publish   ...
//!   store_many     lock, place, place, place, ... unlock     write, publish, write, publish ...
//! ```
//! The objects of a call come from the home lane's holes, under one hold of its lock, one after the
//! other as [`Pool::store`] would place them. Only where that lane has no hole left, or somebody else
//! has it, an object goes the whole way of [`Pool::store`], which looks in the other lanes and grows;
//! then it goes on as before. So where each object comes to lie is the same either way.

use crate::handles::Object;
use crate::{AllocError, Arena, Pool, home_lane};
use octavo_page::Handle;

/// Objects placed under one hold of a lane's lock: a few microseconds.
const STORES_AT_ONCE: usize = 16;

impl<A: Arena> Pool<A> {
    /// Stores copies of many objects, faster than one by one: in their order, until one is refused. Puts
    /// their handles into `handles`; how many are stored, and why no more are.
    ///
    /// # Panics
    /// When there are not as many places in `handles` as objects.
    pub fn store_many(
        &self,
        objects: &[&[u8]],
        handles: &mut [Handle],
    ) -> (usize, Result<(), AllocError>) {
        assert_eq!(objects.len(), handles.len(), "a place for each handle");
        let mut done = 0;
        while done < objects.len() {
            let placed = self.store_some(&objects[done..], &mut handles[done..]);
            done += placed;
            if placed == 0 {
                match self.store(objects[done]) {
                    Ok(handle) => handles[done] = handle,
                    Err(error) => return (done, Err(error)),
                }
                done += 1;
            }
        }
        (done, Ok(()))
    }

    /// Stores the first objects as far as the home lane has holes for them; how many.
    #[allow(unsafe_code)] // The objects lie in raw memory.
    fn store_some(&self, objects: &[&[u8]], handles: &mut [Handle]) -> usize {
        let (mut indices, mut places) = ([0; STORES_AT_ONCE], [0; STORES_AT_ONCE]);
        let (count, grown) = self.place_some(objects, handles, &mut indices, &mut places);
        let placed = indices.into_iter().zip(places).take(count);
        for (bytes, (index, place)) in objects.iter().zip(placed) {
            let object = Object { place, len: bytes.len() };
            // SAFETY: a reserved object stays where it is, and its handle names nothing yet, so
            // nobody else can come by its bytes.
            unsafe { self.ground.bytes_mut(object) }.copy_from_slice(bytes);
            self.handles.publish(index);
        }
        if let Some(home) = grown {
            self.pay(home);
        }
        count
    }

    /// Places in the home lane's holes, for the first objects as far as there are some: their handles,
    /// the indices of these, and where they are; how many, and the lane if new pages were taken there.
    fn place_some(
        &self,
        objects: &[&[u8]],
        handles: &mut [Handle],
        indices: &mut [u32],
        places: &mut [u32],
    ) -> (usize, Option<usize>) {
        let objects = &objects[..objects.len().min(STORES_AT_ONCE)];
        let are_good = objects.iter().take_while(|bytes| self.check_len(bytes.len()).is_ok());
        let lens = are_good.map(|bytes| bytes.len());
        let home = home_lane();
        let Some(mut lane) = self.lanes[home].lock.try_lock() else { return (0, None) };
        let mut held = self.held(home, &mut lane);
        held.prefetch_places(lens.clone());
        let (mut count, mut grew) = (0, false);
        held.place_many(lens, |found| {
            (handles[count], indices[count], places[count]) =
                (found.handle, found.index, found.object.place);
            count += 1;
            grew |= found.grew;
        });
        (count, grew.then_some(home))
    }
}
