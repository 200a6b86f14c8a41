//! What comes next: readers that are followed through stored pages.
//!
//! Who goes on where the last fault of his ended, in steps that stay the same, is brought ahead of what he asks for:
//! twice as many pages each time, a whole unit of the largest size at most. A matrix that is read by columns goes on
//! in steps of a row; a page at a time, forwards, is what nearly all others do.
//!
//! ```text
//!   fault    p ............. p+s ........... p+2s ......................... p+4s
//!            followed from   a step of s,    as it was said: he has         four, and so on
//!            here on         if it is one    this page and that at p+3s
//! ```
//! Pages on his way may be there already, and he passes them without a fault: as far as he was served ahead the
//! last time he is expected further on too.

use octavo_page::{PAGE_SIZE, Unit};

/// Readers that are followed at once. A fault elsewhere takes the place of the one that was first noted, so there are
/// to be more than threads that read in order: of eight, with room for four, each was taken for one that jumps.
const READERS: usize = 32;

/// Pages that one is served ahead, at most.
const MOST: usize = Unit::MAX.pages();

/// Pages ahead from which on he counts as one that goes on in order.
const ORDERLY: usize = 4;

/// Pages in order from which on he does so for long, 4 MiB.
const LONG: usize = 1024;

/// Bytes of a step, at most.
const FARTHEST: isize = 64 * PAGE_SIZE as isize;

/// Pages brought between two looks at what they were brought for.
const PERIOD: usize = 4096;

/// How somebody reads, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Here and there.
    Jumps,
    /// On in order, for now: as a collector goes through a block of a heap. He is soon back.
    Short,
    /// On in order, for 4 MiB already: what he has read goes before he is back, and room for it is worth nothing to him.
    Long,
}

/// What to bring for a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// Pages, that of the fault included.
    pub pages: usize,
    /// Bytes from one to the next.
    pub step: isize,
}

impl Ahead {
    /// Whether they lie side by side.
    #[must_use]
    pub const fn is_run(&self) -> bool {
        self.step == PAGE_SIZE as isize
    }

    /// Whether they do not, for one who goes on in steps of several pages: what lies between them is not wanted.
    #[must_use]
    pub const fn is_stepped(&self) -> bool {
        self.step.unsigned_abs() > PAGE_SIZE && self.pages >= ORDERLY
    }

    /// Whether they lie side by side for one who goes on in order.
    #[must_use]
    pub const fn is_orderly(&self) -> bool {
        self.is_run() && self.pages >= ORDERLY
    }

    /// Addresses of those behind the one at `page`.
    pub fn behind(self, page: usize) -> impl Iterator<Item = usize> {
        (1..self.pages as isize).map(move |n| page.wrapping_add_signed(n * self.step))
    }
}

/// The readers.
#[derive(Debug)]
pub struct Stream {
    readers: [Reader; READERS],
    next: usize,
    current: usize,
    /// Pages brought in this period, and those of them that were for who reads in order for long.
    brought: usize,
    for_long: usize,
    /// Whether nearly all were in the period before.
    were_long: bool,
}

/// One that is followed.
#[derive(Clone, Copy, Debug)]
struct Reader {
    /// Where he was last.
    last: usize,
    /// Where he is expected.
    next: usize,
    step: isize,
    /// Pages that he was served the last time; 0 when there is nobody.
    served: usize,
    /// Pages that were brought for him in order.
    len: usize,
}

impl Reader {
    const NOBODY: Self = Self { last: 0, next: 0, step: PAGE_SIZE as isize, served: 0, len: 0 };

    /// Pages to serve the next time: twice as many.
    fn further(&self) -> usize {
        (self.served * 2).clamp(1, MOST)
    }

    /// Whether he goes on with a fault at `page`.
    const fn goes_on(&self, page: usize) -> bool {
        let beyond = page.wrapping_sub(self.next) as isize;
        // To divide takes long, and most are far away.
        beyond.unsigned_abs() < self.step.unsigned_abs() * self.served
            && (beyond == 0 || (beyond > 0) == (self.step > 0))
            && beyond % self.step == 0
    }

    /// The step that he takes if he is the one who faults at `page`: of who was seen once only nothing is known.
    fn step_to(&self, page: usize) -> Option<isize> {
        let step = page.wrapping_sub(self.last) as isize;
        (self.served == 1 && step != 0 && step.abs() <= FARTHEST).then_some(step)
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            readers: [Reader::NOBODY; READERS],
            next: 0,
            current: 0,
            brought: 0,
            for_long: 0,
            were_long: false,
        }
    }
}

impl Stream {
    /// What to bring for a fault at `page`: twice as much as the last time for one who goes on, else that page.
    pub fn follow(&mut self, page: usize) -> Ahead {
        if let Some(found) = self.readers.iter().position(|reader| reader.goes_on(page)) {
            self.current = found;
        } else if let Some((found, step)) = self.step_to(page) {
            self.current = found;
            self.readers[found] = Reader { step, ..Reader::NOBODY };
        } else {
            self.current = self.next;
            self.next = (self.next + 1) % self.readers.len();
            self.readers[self.current] = Reader::NOBODY;
        }
        let reader = &self.readers[self.current];
        Ahead { pages: reader.further(), step: reader.step }
    }

    /// Who may have been on his way to `page`, and by which step.
    fn step_to(&self, page: usize) -> Option<(usize, isize)> {
        let mut readers = self.readers.iter().enumerate();
        readers.find_map(|(n, reader)| Some((n, reader.step_to(page)?)))
    }

    /// Notes that `pages` are brought for that fault, the last one of them at `last`.
    pub fn note(&mut self, last: usize, pages: usize) {
        let reader = &mut self.readers[self.current];
        let next = last.wrapping_add_signed(reader.step);
        *reader =
            Reader { last, next, served: reader.further(), len: reader.len + pages, ..*reader };
        self.brought += pages;
        if self.order() == Order::Long {
            // Once that is known, what was brought for him before was so too.
            let len = self.readers[self.current].len;
            self.for_long += if len - pages < LONG { len } else { pages };
        }
    }

    /// How the one reads who was served last.
    #[must_use]
    pub const fn order(&self) -> Order {
        match self.readers[self.current] {
            Reader { len: LONG.., .. } => Order::Long,
            Reader { served: 2.., .. } => Order::Short,
            _ => Order::Jumps,
        }
    }

    /// At the end of each period, whether nearly all of it was for who reads in order for long, or of the one before: who
    /// has just begun to read on may be known too late for one.
    pub fn is_all_long(&mut self) -> Option<bool> {
        if self.brought < PERIOD {
            return None;
        }
        let is_long = self.for_long * 8 >= self.brought * 7;
        (self.brought, self.for_long) = (0, 0);
        Some(core::mem::replace(&mut self.were_long, is_long) || is_long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages brought for a fault at `at`, which is then where the next one will be.
    fn read_on(stream: &mut Stream, at: &mut usize, step: isize) -> usize {
        let ahead = stream.follow(*at);
        let last = ahead.behind(*at).last().unwrap_or(*at);
        stream.note(last, ahead.pages);
        *at = last.wrapping_add_signed(step);
        ahead.pages
    }

    const PAGE: isize = PAGE_SIZE as isize;

    #[test]
    fn who_goes_on_in_order_for_four_mebibytes_reads_for_long() {
        let mut stream = Stream::default();
        let (mut at, mut pages) = (0x1000_0000, 0);
        while pages < LONG {
            assert_ne!(stream.order(), Order::Long);
            pages += read_on(&mut stream, &mut at, PAGE);
        }
        assert_eq!(stream.order(), Order::Long);
        read_on(&mut stream, &mut 0x8000_0000, PAGE);
        assert_eq!(stream.order(), Order::Jumps, "another one");
        read_on(&mut stream, &mut at, PAGE);
        assert_eq!(stream.order(), Order::Long, "the first one again");
    }

    #[test]
    fn readers_in_order_are_served_further_and_further_ahead() {
        let mut stream = Stream::default();
        let (mut one, mut two) = (0x1000_0000, 0x2000_0000);
        let mut served = [0; 8];
        for pages in &mut served {
            *pages = read_on(&mut stream, &mut one, PAGE);
            read_on(&mut stream, &mut two, PAGE);
        }
        assert_eq!(served, [1, 2, 4, 8, 16, 16, 16, 16]);
        assert_eq!(stream.follow(0x3000_0000), Ahead { pages: 1, step: PAGE });
    }

    #[test]
    fn steps_are_found_at_the_third_fault_forwards_and_backwards() {
        for step in [2 * PAGE, 64 * PAGE, -PAGE, -5 * PAGE] {
            let mut stream = Stream::default();
            let mut at = 0x1000_0000;
            let served = [0; 6].map(|_| read_on(&mut stream, &mut at, step));
            assert_eq!(served, [1, 1, 2, 4, 8, 16], "{step}");
            assert_eq!(stream.follow(at).step, step);
        }
        let mut stream = Stream::default();
        let mut at = 0x1000_0000;
        let served = [0; 6].map(|_| read_on(&mut stream, &mut at, 65 * PAGE));
        assert_eq!(served, [1; 6], "too far for a step");
    }

    #[test]
    fn pages_that_are_there_already_do_not_end_the_order() {
        let mut stream = Stream::default();
        let mut at = 0x1000_0000;
        for _ in 0..5 {
            read_on(&mut stream, &mut at, PAGE);
        }
        at += 15 * PAGE_SIZE;
        assert_eq!(read_on(&mut stream, &mut at, PAGE), 16, "as far as he was served");
        at += 16 * PAGE_SIZE;
        assert_eq!(read_on(&mut stream, &mut at, PAGE), 1, "no further");
    }

    #[test]
    fn as_many_readers_are_followed_as_there_is_room_for() {
        let mut stream = Stream::default();
        let mut readers: Vec<usize> = (1..=READERS).map(|reader| reader << 32).collect();
        for pages in [1, 2, 4, 8] {
            for at in &mut readers {
                assert_eq!(read_on(&mut stream, at, PAGE), pages);
            }
        }
        // One more takes the place of the first.
        assert_eq!(read_on(&mut stream, &mut ((READERS + 1) << 32), PAGE), 1);
        assert_eq!(read_on(&mut stream, &mut readers[1], PAGE), 16);
        assert_eq!(read_on(&mut stream, &mut readers[0], PAGE), 1);
    }

    #[test]
    fn a_period_is_all_long_when_seven_eighths_of_it_or_of_the_one_before_are() {
        for (jumps, all_long) in [(10, [true, true]), (2000, [true, false])] {
            let mut stream = Stream::default();
            let mut at = 0x1000_0000;
            let mut period = |jumps: usize| {
                for n in 0..jumps {
                    assert_eq!(read_on(&mut stream, &mut ((n + 1) << 32), PAGE), 1);
                }
                loop {
                    read_on(&mut stream, &mut at, PAGE);
                    if let Some(found) = stream.is_all_long() {
                        return found;
                    }
                }
            };
            assert!(period(0));
            assert_eq!([period(jumps), period(jumps)], all_long, "{jumps}");
        }
    }

    #[test]
    fn what_was_brought_before_it_was_known_that_he_reads_on_for_long_counts() {
        let (mut stream, mut at) = (Stream::default(), 0x1000_0000);
        while stream.order() != Order::Long {
            read_on(&mut stream, &mut at, PAGE);
        }
        assert_eq!(stream.for_long, stream.brought);
    }

    #[test]
    fn who_goes_on_page_by_page_has_no_steps_whichever_way() {
        for (step, is_stepped) in
            [(PAGE, false), (-PAGE, false), (2 * PAGE, true), (-4 * PAGE, true)]
        {
            let (mut stream, mut at) = (Stream::default(), 0x1000_0000);
            (0..4).for_each(|_| {
                read_on(&mut stream, &mut at, step);
            });
            assert_eq!(stream.follow(at).is_stepped(), is_stepped, "{step}");
        }
    }
}
