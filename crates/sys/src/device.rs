//! What is shared with a device that reads and writes our memory on its own: the memory, and the
//! portals through which it is told what to do.
//!
//! ```text
//!   we ── write ──► Region ◄── reads, writes ── device
//!    └── 64 bytes ──► Portal ──────────────────────┘
//! ```
//!
//! No reference into a [`Region`] ever exists: it is copied from and to, by the processor's own
//! string instruction, of which the compiler knows nothing. So whatever a device writes, and
//! whenever, what is torn is bytes and not the program. Who may write when is a protocol between
//! both sides; one byte, loaded and stored with order ([`Region::load`], [`Region::store`]), tells
//! that a side is done. A region stays mapped until the address space ends: a device that is late
//! finds memory.
#![allow(unsafe_code)] // copies at addresses, maps device memory, instructions without intrinsics

use crate::file::Fd;
use crate::memory::Reserve;
use crate::{Errno, Result};
use core::arch::asm;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};
use octavo_page::PAGE_SIZE;
use syscalls::{Sysno, syscall};

/// Memory of ours that a device uses too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region(Range<usize>);

impl Region {
    /// Maps `len` bytes, whole pages, all present: a device need not wait for a fault.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is limited or full.
    pub fn new(len: usize, name: &CStr) -> Result<Self> {
        let reserve = Reserve::new(len, name)?;
        reserve.populate(reserve.span())?;
        Ok(Self(reserve.span()))
    }

    /// The `len` bytes from `at` on.
    ///
    /// # Panics
    /// When they are not inside.
    #[must_use]
    pub fn part(&self, at: usize, len: usize) -> Self {
        let start = self.place(at, len);
        Self(start..start + len)
    }

    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where byte `at` lies, as a device is told.
    #[must_use]
    pub const fn address(&self, at: usize) -> u64 {
        (self.0.start + at) as u64
    }

    /// The place in this region of `len` bytes at `address`, if they lie inside.
    #[must_use]
    pub fn find(&self, address: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(address).ok()?.checked_sub(self.0.start)?;
        (at.checked_add(len)? <= self.0.len()).then_some(at)
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// When they do not lie inside.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.place(at, bytes.len());
        // SAFETY: source and destination are mapped and do not overlap, as nobody has references
        // into a region; no other memory is touched.
        unsafe { copy(bytes.as_ptr() as usize, to, bytes.len()) };
    }

    /// Copies from `at` on until `bytes` is full.
    ///
    /// # Panics
    /// When that does not lie inside.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = self.place(at, bytes.len());
        // SAFETY: as in `write`.
        unsafe { copy(from, bytes.as_mut_ptr() as usize, bytes.len()) };
    }

    /// The byte at `at`; what was written before it was stored can be read after it was loaded.
    ///
    /// # Panics
    /// When it does not lie inside.
    #[must_use]
    pub fn load(&self, at: usize) -> u8 {
        let at = self.place(at, 1);
        // SAFETY: mapped, and no reference to it exists but such as this.
        unsafe { AtomicU8::from_ptr(at as *mut u8) }.load(Ordering::Acquire)
    }

    /// Stores a byte at `at`, after everything written before.
    ///
    /// # Panics
    /// When it does not lie inside.
    pub fn store(&self, at: usize, value: u8) {
        let at = self.place(at, 1);
        // SAFETY: as in `load`.
        unsafe { AtomicU8::from_ptr(at as *mut u8) }.store(value, Ordering::Release);
    }

    fn place(&self, at: usize, len: usize) -> usize {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.0.len());
        assert!(inside, "{len} bytes from {at} of a region of {}", self.0.len());
        self.0.start + at
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are mapped, they do not overlap, and nobody minds that the second is written.
unsafe fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Bytes in what a portal takes.
pub const DESCRIPTOR: usize = 64;

/// What a portal takes, at an address that the instructions accept.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Command(pub [u8; DESCRIPTOR]);

/// Why a portal did not take a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is no room at the moment.
    Full,
    /// The device is gone, or does not talk to this process.
    Gone,
}

/// How commands reach a queue.
#[derive(Debug)]
enum Way {
    /// A store of 64 bytes to this address, which nobody answers: who counts knows that there is room.
    Dedicated(usize),
    /// A store of 64 bytes to this address that is answered.
    Shared(usize),
    /// `write(2)`.
    Written,
}

/// The way into a work queue.
#[derive(Debug)]
pub struct Portal {
    file: Fd,
    way: Way,
}

impl Portal {
    /// The portal of the character device `path` of a queue that is `dedicated` to one process or
    /// shared. Where the kernel does not map it (since 6.9.1 that takes CAP_SYS_RAWIO), or the
    /// processor lacks the instruction, commands are written.
    ///
    /// # Errors
    /// As of `openat(2)`: `EBUSY` when a dedicated queue has another owner.
    pub fn open(path: &CStr, dedicated: bool) -> Result<Self> {
        let file = Fd::open_device(path)?;
        let way = match map_portal(&file) {
            Ok(at) if dedicated && has(Instruction::Movdir64b) => Way::Dedicated(at),
            Ok(at) if !dedicated && has(Instruction::Enqcmd) => Way::Shared(at),
            Ok(_) | Err(_) => Way::Written,
        };
        Ok(Self { file, way })
    }

    /// Hands a command over.
    ///
    /// # Errors
    /// [`Refused`]; never `Full` for a dedicated queue that is mapped: whoever owns it counts.
    pub fn submit(&self, command: &Command) -> core::result::Result<(), Refused> {
        let from = command.0.as_ptr();
        match self.way {
            Way::Dedicated(to) => {
                // SAFETY: stores the 64 bytes of `command`, which is aligned, to a portal that is
                // mapped for that; the fence has what the command names written before.
                unsafe {
                    asm!("sfence", ".byte 0x66, 0x0f, 0x38, 0xf8, 0x02", // movdir64b rax, [rdx]
                        in("rax") to, in("rdx") from, options(nostack, preserves_flags));
                }
                Ok(())
            }
            Way::Shared(to) => {
                let refused: u8;
                // SAFETY: as above; the answer is the zero flag, 1 for "not taken".
                unsafe {
                    asm!("sfence", ".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02", // enqcmd rax, [rdx]
                        "setz {0}", out(reg_byte) refused,
                        in("rax") to, in("rdx") from, options(nostack));
                }
                if refused == 0 { Ok(()) } else { Err(Refused::Full) }
            }
            Way::Written => {
                let bytes = DESCRIPTOR;
                // SAFETY: the kernel reads the 64 bytes of `command`.
                match unsafe { syscall!(Sysno::write, self.file.raw(), from, bytes) } {
                    Ok(DESCRIPTOR) => Ok(()),
                    Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::EBUSY) => Err(Refused::Full),
                    Err(_) => Err(Refused::Gone),
                }
            }
        }
    }
}

fn map_portal(file: &Fd) -> Result<usize> {
    const WRITE: usize = 2;
    const SHARED: usize = 1;
    // SAFETY: a new mapping at an address of the kernel's choice touches nobody's memory; it stays
    // until the address space ends.
    unsafe { syscall!(Sysno::mmap, 0usize, PAGE_SIZE, WRITE, SHARED, file.raw(), 0usize) }
}

/// Instructions that reach portals: their bits in register C of leaf 7.
#[derive(Clone, Copy)]
enum Instruction {
    Movdir64b = 28,
    Enqcmd = 29,
}

fn has(instruction: Instruction) -> bool {
    use core::arch::x86_64::__cpuid_count;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ecx >> instruction as u32 & 1 == 1
}
