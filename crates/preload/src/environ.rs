//! Our two variables: taken out of the program's environment, kept, and given to what it starts.
//!
//! ```text
//! LD_PRELOAD=/o.so:/theirs.so  OCTAVO_RUN=v=1;...      as octavo, or an exec stand-in, wrote it
//!      │ constructor
//!      ▼
//! LD_PRELOAD=/theirs.so                                what the program finds, in `environ`, in main's
//!      │ exec                                          array, in /proc/self/environ
//!      ▼
//! LD_PRELOAD=/o.so:/theirs.so  OCTAVO_RUN=v=1;...      what a child gets, whatever its caller gave
//! ```
//!
//! What is kept lies in a read-only mapping of its own: forked children have it too, and neither the
//! program nor the pager touches it. Building an environment takes no lock and no heap, so that a
//! signal handler may, and a child of vfork, which shares the memory of its parent.
//!
//! `LD_PRELOAD` that was set to nothing is told from one that was not set by the colon behind ours.
#![allow(unsafe_code)] // C strings and arrays of other people's programs

use crate::image;
use core::ffi::{CStr, c_char};
use core::ptr;
use octavo_codec::deflate::TableFile;
use octavo_page::config::{RunConfig, VARIABLE};
use octavo_page::sync::atomic::{AtomicPtr, Ordering};
use octavo_sys::Result;
use octavo_sys::file::{self, Access, CURRENT, Text};
use octavo_sys::memory::{self, Scratch};

/// An environment as C has it: strings, then a null. A null itself is an empty one.
pub type Environment = *const *const c_char;

const PRELOAD: &[u8] = b"LD_PRELOAD";

/// Bytes of the longest word: what is short, and tables, of which a byte takes three.
const WORD: usize = 1024 + 3 * TableFile::MAX_BYTES;

unsafe extern "C" {
    /// libc's.
    static mut environ: *mut *mut c_char;
}

/// What children get.
#[derive(Clone, Copy)]
pub struct Ours {
    /// `LD_PRELOAD=` and our object.
    preload: &'static CStr,
    /// `OCTAVO_RUN=` and the word.
    word: &'static CStr,
}

static KEPT: [AtomicPtr<c_char>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

impl Ours {
    /// What was kept; nothing where `octavo run` has no part, and before our constructor ran.
    pub fn get() -> Option<Self> {
        let word = KEPT[1].load(Ordering::Acquire);
        let preload = KEPT[0].load(Ordering::Relaxed);
        // SAFETY: once the second is there, both are strings in a mapping that stays.
        (!word.is_null()).then(|| unsafe {
            Self { preload: CStr::from_ptr(preload), word: CStr::from_ptr(word) }
        })
    }

    /// Keeps both.
    fn keep(object: &[u8], word: &[u8]) -> Result<Self> {
        let parts = [PRELOAD, b"=", object, b"\0", VARIABLE.as_bytes(), b"=", word, b"\0"];
        let kept = memory::keep(&parts, c"octavo environment")?;
        let second = PRELOAD.len() + 1 + object.len() + 1;
        KEPT[0].store(kept.as_ptr().cast_mut().cast(), Ordering::Relaxed);
        KEPT[1].store(kept[second..].as_ptr().cast_mut().cast(), Ordering::Release);
        Ok(Self::get().expect("was just stored"))
    }

    /// Our object.
    pub fn object(&self) -> &'static [u8] {
        &self.preload.to_bytes()[PRELOAD.len() + 1..]
    }

    /// Whether the loader could bring in our object: after `chroot`, or as another user, perhaps not,
    /// and then it would say so to the user.
    pub fn can_be_loaded(&self) -> bool {
        let path = self.preload.to_bytes_with_nul().get(PRELOAD.len() + 1..).unwrap_or_default();
        CStr::from_bytes_with_nul(path)
            .is_ok_and(|path| file::may(Access::Read, CURRENT, path).is_ok())
    }

    /// The word.
    pub fn word(&self) -> &'static [u8] {
        &self.word.to_bytes()[VARIABLE.len() + 1..]
    }

    /// What a list of objects is without ours in front; `None`: it was not set before we came.
    pub fn theirs<'a>(&self, list: &'a [u8]) -> Option<&'a [u8]> {
        match list.strip_prefix(self.object()) {
            Some([]) => None,
            Some([b':', rest @ ..]) => Some(rest),
            _ => Some(list),
        }
    }

    /// Calls `call` with `theirs` and our two variables; `None`, without calling, when there is no
    /// memory for it. Another `OCTAVO_RUN` than ours is that of an `octavo run` which the program
    /// itself makes, and stays.
    ///
    /// # Safety
    /// `theirs` is an environment.
    pub unsafe fn add_to<R>(
        self,
        theirs: Environment,
        call: impl FnOnce(Environment) -> R,
    ) -> Option<R> {
        // SAFETY: the caller's promise.
        let Some(plan) = (unsafe { Plan::new(self, theirs) }) else { return Some(call(theirs)) };
        // A quarter of a small alternate stack, then half of the smallest stack of a thread.
        match plan.words() {
            0..=256 => on_stack::<256, R>(&plan, call),
            257..=1024 => on_stack::<1024, R>(&plan, call),
            words => {
                let mut scratch = Scratch::new(words * size_of::<usize>()).ok()?;
                Some(call(plan.write(scratch.words())))
            }
        }
    }
}

#[inline(never)]
fn on_stack<const N: usize, R>(plan: &Plan, call: impl FnOnce(Environment) -> R) -> Option<R> {
    Some(call(plan.write(&mut [0; N])))
}

/// What an environment with our variables will be.
struct Plan {
    ours: Ours,
    theirs: Environment,
    /// Entries of theirs.
    count: usize,
    /// Their own list of objects, in one of the entries.
    preload: Option<&'static [u8]>,
}

impl Plan {
    /// `None`: there is another `OCTAVO_RUN` than ours.
    ///
    /// # Safety
    /// `theirs` is an environment, which lives as long as the plan.
    unsafe fn new(ours: Ours, theirs: Environment) -> Option<Self> {
        let mut plan = Self { ours, theirs, count: 0, preload: None };
        // SAFETY: the caller's promise; the strings outlive the plan.
        for entry in unsafe { entries(theirs) } {
            plan.count += 1;
            if let Some(list) = value(entry, PRELOAD) {
                plan.preload = ours.theirs(list);
            } else if let Some(word) = value(entry, VARIABLE.as_bytes())
                && word != ours.word()
            {
                return None;
            }
        }
        Some(plan)
    }

    /// Words the environment takes: its entries, a null, and the one string that is new.
    fn words(&self) -> usize {
        const OURS_AND_NULL: usize = 3;
        let text = self.preload.map_or(0, |t| self.ours.preload.count_bytes() + t.len() + 2);
        self.count + OURS_AND_NULL + text.div_ceil(size_of::<usize>())
    }

    /// Writes the environment to `room`, which has that many words: theirs in their order, then ours.
    fn write(&self, room: &mut [usize]) -> Environment {
        let (list, text) = room.split_at_mut(self.count + 3);
        let ours = [self.preload(text), self.ours.word.as_ptr()];
        // SAFETY: as of `new`.
        let theirs = unsafe { entries(self.theirs) };
        let is_other =
            |e: &&CStr| value(e, PRELOAD).is_none() && value(e, VARIABLE.as_bytes()).is_none();
        let all = theirs.filter(is_other).map(CStr::as_ptr).chain(ours);
        // The last word stays: who changes its environment meanwhile finds no more room than this.
        let last = list.len() - 1;
        let end = list[..last].iter_mut().zip(all).fold(0, |n, (to, entry)| {
            *to = entry as usize;
            n + 1
        });
        list[end] = 0;
        list.as_ptr().cast()
    }

    /// `LD_PRELOAD=` with our object and theirs, written to `text` where they have any.
    fn preload(&self, text: &mut [usize]) -> *const c_char {
        let Some(theirs) = self.preload else { return self.ours.preload.as_ptr() };
        let bytes = self.ours.preload.to_bytes().iter().chain(b":").chain(theirs).chain(b"\0");
        let mut bytes = bytes.copied();
        for word in text.iter_mut() {
            *word = usize::from_le_bytes([0; 8].map(|_: u8| bytes.next().unwrap_or(0)));
        }
        text.as_ptr().cast()
    }
}

/// The entries of an environment.
///
/// # Safety
/// `list` is an environment, and its strings live for `'a`.
unsafe fn entries<'a>(list: Environment) -> impl Iterator<Item = &'a CStr> {
    let mut at = list;
    core::iter::from_fn(move || {
        // SAFETY: not past the null yet, by the caller's promise; each entry is a string.
        unsafe {
            let entry = at.as_ref().copied().filter(|e| !e.is_null())?;
            at = at.add(1);
            Some(CStr::from_ptr(entry))
        }
    })
}

/// The value of an entry, if it is of the variable `name`.
fn value<'a>(entry: &'a CStr, name: &[u8]) -> Option<&'a [u8]> {
    entry.to_bytes().strip_prefix(name)?.strip_prefix(b"=")
}

/// The program's environment as it is now.
pub fn current() -> Environment {
    // SAFETY: read as `getenv` reads it: who changes it meanwhile is at fault.
    unsafe { environ }.cast_const().cast()
}

/// The value of a variable in the program's environment as it is now.
///
/// # Safety
/// As of `getenv`: nobody may change the environment while the value is used.
pub unsafe fn variable(name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: libc's own list; the caller's promise.
    unsafe { entries(current()) }.find_map(|entry| value(entry, name))
}

/// Takes our variables out of the environment at the process's start, which `initial` is, and keeps
/// them for children. Gives the word, and the first process of the job where that is just being
/// started; `None` when there is none.
///
/// # Errors
/// `ENOMEM` when there is no room to keep them.
///
/// # Safety
/// Called once, before any other thread and before the program's own code; `initial` is the array
/// that the kernel made, with the auxiliary vector behind it.
pub unsafe fn take(initial: *mut *mut c_char) -> Result<Option<(&'static [u8], Option<u32>)>> {
    // SAFETY: the caller's promise; its strings are copied before any is changed.
    let mut all = unsafe { entries(initial.cast_const().cast()) };
    let Some(word) = all.find_map(|entry| value(entry, VARIABLE.as_bytes())) else {
        return Ok(None);
    };
    // The word that children get names nobody as the first: what cannot be managed there runs unmanaged.
    let mut others = Text::<WORD>::new();
    let run = core::str::from_utf8(word).ok().and_then(|word| RunConfig::decode(word).ok());
    let first = run.map(|run| run.pid).filter(|pid| *pid != 0);
    let kept = run.is_some_and(|run| RunConfig { pid: 0, ..run }.encode(&mut others).is_ok());
    let word = if kept { others.as_bytes() } else { word };
    let ours = Ours::keep(image::path().to_bytes(), word)?;
    // SAFETY: nobody else runs. A library's constructor may have had libc copy the array; the
    // strings are the same, so the copy goes first, while they still can be read.
    unsafe {
        if !environ.is_null() && environ != initial {
            remove(environ, ours, false);
        }
        let removed = remove(initial, ours, true);
        ignore_gap(initial, removed);
    }
    Ok(Some((ours.word(), first)))
}

/// Takes our variables out of one array; how many entries that were. `LD_PRELOAD` that is not ours
/// alone is made shorter where it stands. With `blank`, what goes is overwritten.
///
/// # Safety
/// As of [`take`].
unsafe fn remove(array: *mut *mut c_char, ours: Ours, blank: bool) -> usize {
    let (mut from, mut to) = (array, array);
    loop {
        // SAFETY: `from` is not past the null, and `to` not past `from`; entries are strings that
        // nobody else uses now, and that can be written: the kernel's, or a library's copy.
        unsafe {
            let entry = *from;
            *to = entry;
            if entry.is_null() {
                return from.offset_from_unsigned(to);
            }
            from = from.add(1);
            let text = CStr::from_ptr(entry);
            let len = text.count_bytes();
            let list = value(text, PRELOAD);
            let theirs = list.and_then(|list| ours.theirs(list));
            if value(text, VARIABLE.as_bytes()).is_some() || (list.is_some() && theirs.is_none()) {
                if blank {
                    entry.write_bytes(0, len);
                }
                continue;
            }
            if let Some(theirs) = theirs.map(<[u8]>::len) {
                let start = PRELOAD.len() + 1;
                ptr::copy(entry.add(len - theirs), entry.add(start), theirs);
                entry.add(start + theirs).write_bytes(0, len - start - theirs);
            }
            to = to.add(1);
        }
    }
}

/// Behind the null of the initial array begins the auxiliary vector, for who looks for it there, as
/// Go does. Two entries less are one entry more of that vector, of the kind to ignore.
///
/// # Safety
/// As of [`take`]; `removed` entries were taken out.
unsafe fn ignore_gap(initial: *mut *mut c_char, removed: usize) {
    const AT_IGNORE: usize = 1;
    if removed != 2 {
        return;
    }
    // SAFETY: the caller's promise: two words behind the null were the array's own.
    unsafe {
        let end = initial.add(entries(initial.cast_const().cast()).count());
        end.add(1).write(ptr::without_provenance_mut(AT_IGNORE));
        end.add(2).write(ptr::null_mut());
    }
}
