//! As long as a program uses little, little of us is there: one task that looks at what it uses.
//!
//! Most programs of a tree are small and short: a compiler's driver, a shell's `true`. What evicts and
//! restores takes memory and time to make, so it is made when the limit comes near, and before
//! anything is registered.

use crate::budget::Budget;
use crate::populate;
use crate::presence::{NEAR, Presence};
use crate::program::Program;
use crate::start::{self, Job};
use core::time::Duration;
use octavo_ledger::{Ledger, Member};
use octavo_page::config::{TABLE_RESERVE, reserve_bytes};
use octavo_page::rest::Work;
use octavo_page::{ByteSize, PAGE_SIZE};
use octavo_sys::Result;
use octavo_sys::file::Fd;
use octavo_sys::maps::Maps;
use octavo_sys::memory::Scratch;

/// What is there from the start.
pub(crate) struct Outpost {
    pub job: &'static Job,
    pub target: i32,
    pub target_fd: Fd,
    pub program: Program,
    pub maps: Maps,
    pub ledger: &'static Ledger,
    pub member: &'static Member,
    pub presence: Presence,
    /// The address space that the rest will take: a limit on it that the program sets for itself, or
    /// has, is to mean the same before and after.
    pub space: Scratch,
}

impl Outpost {
    /// Opens what may be refused, so that it is refused now.
    pub fn new(job: &'static Job, target: i32, target_fd: Fd) -> Result<Self> {
        let ledger = start::open_ledger(job.keeper)?;
        let member = start::join_ledger(ledger, target)?;
        let maps = Maps::open()?;
        maps.writable_from(0)?; // ENOTTY on a kernel that cannot list mappings this way
        let (program, presence) = (Program::open()?, Presence::new(target)?);
        let limit = ByteSize::new(job.config.limit);
        let space = Scratch::new(reserve_bytes(limit) as usize - TABLE_RESERVE)?;
        Ok(Self { job, target, target_fd, program, maps, ledger, member, presence, space })
    }

    /// Looks until more of us is needed, which is work that has begun then; leaves after the program.
    pub fn stand(&mut self) -> Work<'static> {
        let budget = Budget::new(self.job.config.limit / PAGE_SIZE as u64);
        loop {
            let work = start::work();
            let pause = self.look(&budget);
            if budget.until_prepared() == 0 {
                return work;
            }
            drop(work);
            start::pause(self.ledger, self.member, pause);
        }
    }

    fn look(&mut self, budget: &Budget) -> Duration {
        let Some(look) = self.presence.look(self.ledger, self.member, 0, || 0) else { return NEAR };
        if self.presence.is_elsewhere() || self.target_fd.is_readable() {
            start::leave();
        }
        self.presence.tell(self.member);
        budget.measured(look.used);
        // Nothing can be given so far.
        budget.publish(self.ledger, self.member, look.used);
        populate::end_look(look.populated, budget.until_armed());
        self.presence.until_next_look(look.used, budget.until_limit(), budget.until_prepared())
    }
}
