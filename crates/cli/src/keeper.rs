//! The keeper: holds the ledger of a job, hears of deaths, sets shares, tells the statistics.
//!
//! `octavo run` becomes the program, so somebody else must outlive it: a copy made before, which is
//! nobody's child and has no descriptors but the ledger and, where it is to print there, stderr. It
//! ends when the job's first process is gone and no process is managed any more.

use crate::turns::{Seen, Spent, Turn, Turns};
use comfy_table::presets;
use octavo_ledger::ask::Ask;
use octavo_ledger::counters::Counters;
use octavo_ledger::shares::{self, Look};
use octavo_ledger::{Ledger, Member, Once, Owner};
use octavo_page::{ByteSize, EngineKind, PAGE_SIZE};
use octavo_pool::classes::ClassRow;
use octavo_sys::file::{self, Fd};
use octavo_sys::proc::{self, Stat, Statm};
use octavo_sys::{Errno, shared, task};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two looks.
const TICK: Duration = Duration::from_millis(20);

/// After the first process has ended and when nobody is left, others may still be starting.
const GRACE: Duration = Duration::from_secs(1);

/// So long over the limit is no passing moment.
const LASTS: Duration = Duration::from_millis(500);

/// How the statistics are wanted.
#[derive(Debug)]
pub struct Report {
    /// As a table on stderr.
    pub table: bool,
    /// As a JSON object in this file, which has this name.
    pub json: Option<(File, PathBuf)>,
    /// End the job rather than go over the limit.
    pub strict: bool,
    /// What is to compress.
    pub engine: EngineKind,
    /// What the processes of the job borrow to write memory back.
    pub lent: Vec<Fd>,
}

/// Becomes a process that keeps `ledger` for the job whose first process is `first`, until that job
/// is over.
pub fn keep(ledger: &'static Ledger, memory: &Fd, first: &Fd, report: Report) -> ! {
    task::detach();
    task::allow_descriptors();
    task::set_name(c"octavo-keeper");
    let mut kept = vec![memory.raw(), first.raw()];
    kept.extend(report.json.iter().map(|(file, _)| file.as_raw_fd()));
    kept.extend(report.lent.iter().map(Fd::raw));
    if report.table || report.json.is_some() {
        kept.push(2);
    }
    close_others(kept);
    let mut keeper = Keeper {
        ledger,
        own: Statm::open().ok(),
        report,
        pagers: BTreeMap::new(),
        processes: BTreeMap::new(),
        met: 0,
        names: BTreeMap::new(),
        last: Last::default(),
        most: Most::default(),
        is_news: true,
        over_since: None,
        bequeathed_since: None,
        turns: Turns::default(),
    };
    let mut alone_since = None;
    loop {
        let bell = ledger.bell().load(std::sync::atomic::Ordering::Acquire);
        keeper.look();
        if keeper.pagers.is_empty() && first.is_readable() {
            keeper.tell();
            let since = *alone_since.get_or_insert_with(Instant::now);
            if since.elapsed() > GRACE {
                task::exit_group(0);
            }
        } else {
            alone_since = None;
        }
        shared::wait(ledger.bell(), bell, TICK);
    }
}

/// Closes all descriptors but these.
fn close_others(mut kept: Vec<i32>) {
    kept.sort_unstable();
    let mut from = 0;
    for fd in kept {
        if fd > from {
            let _ = file::close_range(from, fd.unsigned_abs() - 1);
        }
        from = fd + 1;
    }
    let _ = file::close_range(from, u32::MAX);
}

/// A pager that was heard of.
struct Pager {
    /// Readable when it has ended.
    process: Fd,
    /// Whether it had when last looked at, and the program had not.
    is_lost: bool,
    /// Faults so far, when last looked at, and the average of the last looks.
    faults: u64,
    heat: u64,
}

/// A process that is managed, or was before it began another program.
struct Process {
    /// Readable when it has ended.
    fd: Fd,
    name: String,
}

/// Processes without a pager that are remembered, at most.
const MAX_ALONE: usize = 64;

/// What the members had stored when last looked at: when they are gone they have nothing.
#[derive(Default)]
struct Last {
    used: u64,
    compressed_bytes: u64,
    pool_bytes: u64,
    pages: u64,
    same_filled: u64,
    raw: u64,
    unverified: u64,
    learnt_objects: u64,
    table_bytes: u64,
    away_bytes: u64,
    file_bytes: u64,
    /// The pool's classes, all processes together.
    classes: [[u64; ClassRow::COLUMNS.len()]; 2],
}

/// The most that the members had stored at once, as far as it was seen.
#[derive(Default)]
struct Most {
    /// Bytes compressed, in memory and in backing files.
    stored_bytes: u64,
    /// Of those, the most in backing files.
    away_bytes: u64,
}

impl Most {
    fn note(&mut self, last: &Last) {
        self.stored_bytes = self.stored_bytes.max(last.compressed_bytes + last.away_bytes);
        self.away_bytes = self.away_bytes.max(last.away_bytes);
    }
}

struct Keeper {
    ledger: &'static Ledger,
    /// What the kernel says of our own memory.
    own: Option<Fd>,
    report: Report,
    /// By process id of the pager.
    pagers: BTreeMap<i32, Pager>,
    /// By process id of the program.
    processes: BTreeMap<i32, Process>,
    /// Processes so far.
    met: u64,
    /// How many of them there were of each name: the last one that a process had.
    names: BTreeMap<String, u64>,
    last: Last,
    most: Most,
    /// Whether there is something to tell that was not told.
    is_news: bool,
    over_since: Option<Instant>,
    bequeathed_since: Option<Instant>,
    turns: Turns,
}

/// What the process `id` has spent; `None` when it is gone.
fn spent(id: i32) -> Option<Spent> {
    let stat = proc::open(id, "stat").ok()?;
    let [user, system] = [Stat::UserTime, Stat::SystemTime].map(|of| of.read::<u64>(&stat));
    let user = ticks(user?);
    Some(Spent { user, all: user + ticks(system?) })
}

/// The kernel tells times in hundredths of a second, whatever its own clock.
const fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(10 * ticks)
}

impl Keeper {
    fn look(&mut self) {
        self.meet();
        self.bury();
        self.settle();
        self.note();
        self.share();
        self.say_exceeded();
        if self.ledger.is_forbidden() {
            // The oldest first: who waits for another must not go on when that ends.
            self.processes.values().for_each(|process| {
                let _ = task::kill(&process.fd);
            });
        }
        let end = self.ledger.members().all(|member| member.ends() || !self.lives(member));
        self.is_news |= !end;
        // Where all were killed nobody waits for that, and a child forked a moment before may still come.
        if end && self.ledger.members().any(Member::ends) {
            self.tell();
        }
    }

    /// Says that all together are over the limit, once, where that lasts and nobody of them has said it:
    /// many small processes may have nothing to give.
    fn say_exceeded(&mut self) {
        let limit = ByteSize::new(self.ledger.limit() * PAGE_SIZE as u64);
        let over = self.ledger.over() * PAGE_SIZE as u64;
        if over < ByteSize::mib(1).bytes() {
            self.over_since = None;
            return;
        }
        let since = *self.over_since.get_or_insert_with(Instant::now);
        if since.elapsed() < LASTS || !self.ledger.says_first(Once::Exceeded) {
            return;
        }
        let whose = match self.pagers.len() {
            1 => "the process has".to_owned(),
            processes => format!("{processes} processes have"),
        };
        let end = if self.report.strict { "--strict ends the job" } else { "going on" };
        let mib = over.div_ceil(1 << 20);
        let line = format!(
            "octavo: the limit of {limit} is exceeded by {mib}M so far: {whose} no more to give; \
             {end}\n"
        );
        if let Some(process) = self.processes.values().next() {
            task::tell(&process.fd, line.as_bytes());
        }
        if self.report.strict {
            self.ledger.forbid();
        }
    }

    /// Whether the program is there still, whose pager may not have left yet.
    fn lives(&self, member: &Member) -> bool {
        let process = member.owner().and_then(|owner| self.processes.get(&owner.program));
        process.is_some_and(|process| !process.fd.is_readable())
    }

    /// Gets to know new members.
    fn meet(&mut self) {
        let ledger = self.ledger;
        for member in ledger.members() {
            let Some(Owner { program, pager }) = member.owner() else { continue };
            if self.pagers.contains_key(&pager) {
                continue;
            }
            let process = match task::pidfd(pager) {
                Ok(process) => process,
                Err(Errno::ESRCH) => {
                    self.count(program, member);
                    ledger.clear(member); // gone already
                    continue;
                }
                Err(_) => continue, // met when there is a descriptor for it again
            };
            self.count(program, member);
            let faults = member.counters.faults.get();
            self.pagers.insert(pager, Pager { process, is_lost: false, faults, heat: 0 });
        }
    }

    /// Counts the process `program`, once, however many programs it becomes by exec.
    fn count(&mut self, program: i32, member: &Member) {
        let name = member.name();
        let end = name.iter().position(|b| matches!(b, 0 | b'\n')).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        *self.names.entry(name.clone()).or_default() += 1;
        if let Some(known) = self.processes.remove(&program)
            && !known.fd.is_readable()
        {
            self.names.entry(known.name).and_modify(|n| *n -= 1);
            self.processes.insert(program, Process { fd: known.fd, name });
            return;
        }
        self.met += 1;
        if self.processes.len() > self.pagers.len() + MAX_ALONE {
            self.processes.retain(|_, process| !process.fd.is_readable());
        }
        if let Ok(fd) = task::pidfd(program) {
            self.processes.insert(program, Process { fd, name });
        }
    }

    /// Clears the places of members that are gone. A program that lost its pager waits for it in vain; it is
    /// ended, if its guard did not do so before the next look.
    fn bury(&mut self) {
        let ledger = self.ledger;
        for member in ledger.members() {
            let Some(Owner { program, pager }) = member.owner() else { continue };
            let Some(known) = self.pagers.get_mut(&pager) else { continue };
            if known.process.is_readable() {
                let left = self.processes.get(&program).filter(|left| !left.fd.is_readable());
                if let Some(left) = left.filter(|_| member.depends()) {
                    if !core::mem::replace(&mut known.is_lost, true) {
                        continue;
                    }
                    task::tell(&left.fd, octavo_ledger::LOST);
                    let _ = task::kill(&left.fd);
                }
                ledger.clear(member);
                self.pagers.remove(&pager);
                if self.processes.get(&program).is_some_and(|process| process.fd.is_readable()) {
                    self.processes.remove(&program);
                }
            }
        }
    }

    /// Forgets what those who are gone had in common with others, once they count it, or could have.
    fn settle(&mut self) {
        let since = (self.ledger.bequeathed() > 0)
            .then(|| self.bequeathed_since.unwrap_or_else(Instant::now));
        self.bequeathed_since = since;
        self.ledger.settle(since.is_some_and(|since| since.elapsed() > LASTS));
    }

    /// Notes what there is, our own memory included.
    fn note(&mut self) {
        let own = self.own.as_ref().and_then(Statm::read);
        self.ledger.keep(own.map_or(0, Statm::anonymous));
        if self.ledger.members().next().is_none() {
            return;
        }
        let sum = |of: &dyn Fn(&Member) -> u64| self.ledger.members().map(of).sum();
        self.last = Last {
            used: self.ledger.used(),
            compressed_bytes: sum(&|m| m.stored.compressed_bytes.get()),
            pool_bytes: sum(&|m| m.stored.pool_bytes.get()),
            pages: sum(&|m| m.stored.pages.get()),
            same_filled: sum(&|m| m.stored.same_filled.get()),
            raw: sum(&|m| m.stored.raw.get()),
            unverified: sum(&|m| m.stored.unverified.get()),
            learnt_objects: sum(&|m| m.stored.learnt_objects.get()),
            table_bytes: sum(&|m| m.stored.table_bytes.get()),
            away_bytes: sum(&|m| m.stored.away_bytes.get()),
            file_bytes: self.ledger.file_bytes(),
            classes: [0, 1].map(|class| self.sum_class(class)),
        };
        self.most.note(&self.last);
    }

    fn sum_class(&self, class: usize) -> [u64; ClassRow::COLUMNS.len()] {
        let mut sums = [0; ClassRow::COLUMNS.len()];
        for member in self.ledger.members() {
            let numbers = member.stored.classes[class].0.iter().map(|number| number.get());
            for ((sum, number), name) in sums.iter_mut().zip(numbers).zip(ClassRow::COLUMNS) {
                *sum = if ClassRow::is_of_class(name) { number.max(*sum) } else { *sum + number };
            }
        }
        sums
    }

    /// Sets shares where several members need more than there is; else each may have what is free.
    fn share(&mut self) {
        let members: Vec<_> = self.ledger.members().collect();
        let (looks, seen): (Vec<_>, Vec<_>) = members.iter().map(|m| self.look_at(m)).unzip();
        let limit = self.ledger.limit();
        let room = limit - limit / 64;
        let turn = self.turn(&members, &seen, room);
        if turn.is_none() && (members.len() < 2 || self.ledger.used() < limit - limit / 8) {
            members.iter().for_each(|member| member.give(None));
            return;
        }
        let mut given: Vec<_> = members.iter().map(|m| m.share().unwrap_or(0)).collect();
        match turn {
            Some(Turn { holder, wants, asks }) => {
                shares::by_turns(room, &looks, &asks, (holder, wants), &mut given);
            }
            None => shares::rebalance(room, &looks, &mut given),
        }
        members.iter().zip(given).for_each(|(member, share)| member.give(Some(share)));
    }

    /// Whose turn it is, where members take turns; and has each of them know what is asked of it.
    fn turn(&mut self, members: &[&Member], seen: &[Seen], room: u64) -> Option<Turn> {
        // Where all pages would fit, as they are.
        let needed = members.iter().map(|member| {
            let stored = &member.stored;
            let pool = stored.pool_bytes.get() / PAGE_SIZE as u64;
            member.used().saturating_sub(pool) + stored.pages.get()
        });
        let is_short = needed.sum::<u64>() > room;
        let program = |id: i32| members.iter().find_map(|m| m.owner().filter(|o| o.pager == id));
        let mut spent = |id| spent(program(id)?.program);
        let now = task::now();
        let turn = self.turns.look(now, seen, is_short, &mut spent);
        for (n, member) in members.iter().enumerate() {
            member.asked.ask(turn.as_ref().map_or(Ask::Nothing, |turn| turn.asks[n]), now);
        }
        turn
    }

    fn look_at(&mut self, member: &Member) -> (Look, Seen) {
        let mut look = Look { used: member.used(), floor: member.floor(), heat: 0 };
        let id = member.owner().map_or(0, |owner| owner.pager);
        let mut seen = Seen { id, faults: 0, heat: 0, used: look.used };
        if let Some(Pager { faults, heat, .. }) = self.pagers.get_mut(&id) {
            let before = std::mem::replace(faults, member.counters.faults.get());
            seen.faults = faults.saturating_sub(before);
            // The last eight looks, in sixteenths of a fault.
            *heat = *heat - *heat / 8 + 2 * seen.faults;
            (look.heat, seen.heat) = (*heat, *heat / 16);
        }
        (look, seen)
    }

    /// Tells the statistics, if there is something new: the table once, the file each time.
    fn tell(&mut self) {
        if std::mem::take(&mut self.is_news) {
            let rows = self.rows();
            if let Some((file, path)) = &self.report.json
                && let Err(why) = rewrite(file, &(json!(rows).to_string() + "\n"))
            {
                eprintln!("octavo: --stats-json {}: cannot be written: {why}", path.display());
            }
            if std::mem::take(&mut self.report.table) {
                eprint!("{}", table(&rows));
            }
            // Who reads there waits for our end of it to be closed.
            let _ = file::close_range(2, 2);
        }
        self.ledger.tell();
    }

    fn rows(&self) -> Map<String, Value> {
        let total = Counters::default();
        self.ledger.count(&total);
        let (ledger, last) = (self.ledger, &self.last);
        let lacks = ledger.backing_lacks();
        let bytes = |pages: u64| json!(pages * PAGE_SIZE as u64);
        let micros = |time: Duration| json!((time.as_nanos() as f64 / 100.0).round() / 10.0);
        let names = self.names.iter().filter(|(_, n)| **n > 0);
        let names: Vec<_> = names.map(|(name, n)| json!({"name": name, "processes": n})).collect();
        let class = |(n, numbers): (usize, [u64; ClassRow::COLUMNS.len()])| {
            let named = ClassRow::COLUMNS.into_iter().zip(numbers.map(Value::from));
            let numbered = [("class", json!(n))].into_iter().chain(named);
            numbered.map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>()
        };
        let classes: Vec<_> = last.classes.into_iter().enumerate().map(class).collect();
        let rows = [
            ("limit_bytes", bytes(ledger.limit())),
            ("peak_bytes", bytes(ledger.peak())),
            ("resident_bytes", bytes(last.used)),
            ("exceeded_bytes", bytes(ledger.exceeded())),
            ("compressed_bytes", json!(last.compressed_bytes)),
            ("pool_bytes", json!(last.pool_bytes)),
            ("stored_pages", json!(last.pages)),
            ("same_filled_pages", json!(last.same_filled)),
            ("incompressible_pages", json!(total.put_back.get())),
            ("faults", json!(total.faults.get())),
            ("fresh_faults", json!(total.fresh_faults.get())),
            ("evictions", json!(total.evictions.get())),
            ("clean_evictions", json!(total.clean_evictions.get())),
            ("neighbour_pages", json!(total.neighbours.get())),
            ("waited_faults", json!(total.waited.get())),
            ("condensed_pages", json!(total.condensed.get())),
            ("events", json!(total.events.get())),
            ("lost_pages", json!(total.lost.get())),
            ("fault_p50_us", micros(total.fault_time.quantile(0.5))),
            ("fault_p99_us", micros(total.fault_time.quantile(0.99))),
            ("pager_cpu_s", json!(total.cpu_us.get() as f64 / 1e6)),
            ("processes", json!(self.met)),
            ("unmanaged_processes", json!(ledger.unmanaged())),
            ("turns", json!(self.turns.begun())),
            ("engine", json!(self.report.engine.name())),
            ("cpu_requests", json!(total.cpu_requests.get())),
            ("device_requests", json!(total.device_requests.get())),
            ("instead_requests", json!(total.instead_requests.get())),
            ("raw_pages", json!(last.raw)),
            ("unverified_units", json!(last.unverified)),
            ("learnt_generations", json!(total.generations.get())),
            ("learnt_objects", json!(last.learnt_objects)),
            ("table_bytes", json!(last.table_bytes)),
            ("written_back_bytes", json!(total.written_back.get())),
            ("away_bytes", json!(last.away_bytes)),
            ("stored_peak_bytes", json!(self.most.stored_bytes)),
            ("away_peak_bytes", json!(self.most.away_bytes)),
            ("file_bytes", json!(last.file_bytes)),
            ("file_reads", json!(total.file_reads.get())),
            ("file_direct", json!(lacks.map(|lacks| !lacks.direct))),
            ("file_holes", json!(lacks.map(|lacks| !lacks.holes))),
            ("file_ring", json!(lacks.map(|lacks| !lacks.ring))),
            ("programs", json!(names)),
            ("pool_classes", json!(classes)),
        ];
        rows.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Makes `text` all that is in `file`.
fn rewrite(file: &File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(text.as_bytes(), 0)
}

/// The statistics for people.
fn table(rows: &Map<String, Value>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING);
    for (key, value) in rows {
        let (name, unit) = match key.rsplit_once('_') {
            Some((name, unit @ ("bytes" | "us" | "s"))) => (name, unit),
            _ => (key.as_str(), ""),
        };
        let number = value.as_f64().unwrap_or(0.0);
        let text = match (value, unit) {
            (Value::Array(classes), _) if key == "pool_classes" => {
                classes.iter().map(class).collect::<Vec<_>>().join("\n")
            }
            (Value::Array(programs), _) => {
                programs.iter().map(program).collect::<Vec<_>>().join(", ")
            }
            (Value::String(text), _) => text.clone(),
            (_, "bytes") => format!("{:.1} MiB", number / f64::from(1 << 20)),
            (_, "us") => format!("{number:.1} us"),
            (_, "s") => format!("{number:.2} s"),
            _ => value.to_string(),
        };
        table.add_row(["octavo:", name, &text]);
    }
    format!("{}\n", table.trim_fmt())
}

/// A class of the pool: its numbers, each with its name.
fn class(entry: &Value) -> String {
    let numbers = entry.as_object().into_iter().flatten();
    numbers.map(|(name, number)| format!("{name} {number}")).collect::<Vec<_>>().join("  ")
}

/// A program's name, and how many processes it was.
fn program(entry: &Value) -> String {
    let name = entry["name"].as_str().unwrap_or_default();
    match entry["processes"].as_u64() {
        Some(1) | None => name.to_owned(),
        Some(n) => format!("{n} {name}"),
    }
}
