/* The torture program: a model of every byte, and threads that do to memory all that the kernel
 * lets them, comparing what they find with the model.
 *
 *   content.c   a page's bytes are a function of one number, its stamp, so the model of a page is
 *               16 bytes, and a page copied by anybody, any way, is a stamp copied
 *   model.c     where the model lives, the op log, and the report of a mismatch
 *   world.c     a world: regions of private anonymous memory, and the operations on them
 *   calls.c     operations in which the kernel reads and writes the pages: pipes, files, vmsplice
 *   threads.c   short-lived threads, signals, shared lanes, discard against write
 *   forks.c     children that go on with a copy of a world (--fork)
 *   torture.c   options, the clock, the watchdog
 *   stall.c     what there is to see when a thread stands still
 *
 * Invariants:
 *  - a region is one range of addresses, all of it mapped by us; a hole ends a region;
 *  - we put a mapping over an address (MAP_FIXED) only where we own what is there, because an
 *    address given back may belong to another thread, or to libc, a moment later;
 *  - a world has one user at a time, except that many may read it under its lock;
 *  - the model, the log and the buffers of comparison lie in a private mapping of a file in
 *    memory: the pager manages anonymous memory only, so what we compare with cannot itself be
 *    wrong, and a fork still gives the child a copy of its own.
 */
#ifndef TORTURE_H
#define TORTURE_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)
#define MAX_PAGES 4096u  /* of one region: 16 MiB */
#define MAX_REGIONS 512u /* of one world */
#define MAX_WORKERS 64u
#define SHARED_WORLDS 2u
#define LOG_ENTRIES 4096u
#define MAX_POKES 6u
#define BUFFER_PAGES 64u
#define SIGNAL_PAGES 8u

/* ---- content.c ------------------------------------------------------------------------- */

/* Low bits of a stamp: what kind of bytes. Stamp 0 is the page of zeros. */
enum kind { BLANK, RANDOM, TEXT, SAME, SPARSE, RAMP, HALF, KINDS };

uint64_t mix(uint64_t x);
/* The bytes of the page `stamp` after its first `pokes` single-word writes. */
void content_fill(uint64_t out[WORDS], uint64_t stamp, unsigned pokes);
/* The `n`th single-word write (1, 2, ...) to the page `stamp`: which word, which value. */
unsigned poke_word(uint64_t stamp, unsigned n);
uint64_t poke_value(uint64_t stamp, unsigned n);
bool all_zero(const void *page);

/* ---- model.c --------------------------------------------------------------------------- */

enum { LAZY = 1, LOCKED = 2, WIPE = 4, DONTFORK = 8 };

struct page {
    uint64_t stamp;
    uint8_t pokes;
    uint8_t prot;
    uint8_t flags; /* LAZY: MADV_FREE was called: these bytes or zeros, until written */
};

struct region {
    char *addr;
    uint32_t pages;
    bool single; /* the kernel holds it as one mapping, so that mremap must accept it */
    bool brk;
    struct page page[MAX_PAGES];
};

struct world {
    size_t pages, budget; /* mapped now; what we keep to */
    uint32_t count, locked, unused_count;
    bool shared;
    struct region *region[MAX_REGIONS];
    struct region *unused[MAX_REGIONS];
    struct region slot[MAX_REGIONS];
};

struct entry {
    uint64_t ns;
    const char *op;
    const void *addr;
    size_t len;
    uint64_t a, b;
};

struct log {
    _Atomic uint64_t next;
    struct entry entry[LOG_ENTRIES];
};

struct worker {
    unsigned id;
    uint64_t rng, serial;
    pthread_t thread;
    _Atomic uint64_t progress; /* bumped at every op and page; the watchdog reads it */
    const void *_Atomic at;    /* the page it is at, for the report when it stands still */
    uint64_t ops, verified, written, refused;
    _Atomic bool started, done;
    struct world *world;
    struct log log;
    /* managed memory that only signal handlers of this worker touch, and what must be in it */
    uint64_t *signal_pages;
    uint64_t signal_count[SIGNAL_PAGES], signals;
    char *altstack;
    uint64_t *lane; /* last value this worker wrote into its lane of each lane page */
    uint64_t adds;
    unsigned depth; /* generation after forks */
    bool no_threads;
    _Alignas(4096) char expect[BUFFER_PAGES * PAGE];
    char scratch[BUFFER_PAGES * PAGE];
};

struct options {
    uint64_t seed, ops;
    unsigned seconds, threads, stall;
    size_t size;
    bool fork, close_fds, lenient, abort, half;
    const char *tmp;
};

extern struct options opt;
extern struct worker *worker[MAX_WORKERS + 2]; /* the last two: the pair that races */
extern struct world *shared[SHARED_WORLDS];
extern pthread_rwlock_t *shared_lock; /* in managed memory, on purpose */
extern pthread_rwlock_t fd_lock;      /* write: descriptors are closed under everybody */
extern _Atomic bool stop;
extern __thread struct worker *self; /* whose signal pages the handlers may use */

void *unmanaged(size_t bytes); /* zeroed; never freed */
struct worker *worker_new(unsigned id, size_t budget_pages);
struct world *world_new(size_t budget_pages, bool is_shared);

uint64_t rnd(struct worker *w);
static inline uint64_t below(struct worker *w, uint64_t n) { return rnd(w) % n; }
static inline bool one_in(struct worker *w, unsigned n) { return rnd(w) % n == 0; }
uint64_t now_ns(void);

/* Tells how long workers have had no progress, `since` when each, and what all threads wait for. */
void tell_stall(const uint64_t since[]);

void note(struct worker *w, const char *op, const void *addr, size_t len, uint64_t a, uint64_t b);
/* The three ways to fail: print seed, logs, and the finding; exit 1. */
_Noreturn void fail_page(struct worker *w, const char *what, const void *addr,
                         const struct page *model, const void *found);
_Noreturn void fail_at(struct worker *w, const char *what, const void *addr, uint64_t expected,
                       uint64_t found);
_Noreturn void fail_call(struct worker *w, const char *what, const void *addr, long result);

/* ---- world.c --------------------------------------------------------------------------- */

struct range {
    struct region *r;
    uint32_t first, n;
};

static inline char *range_addr(struct range x) { return x.r->addr + x.first * PAGE; }
static inline size_t range_len(struct range x) { return x.n * PAGE; }
static inline struct page *range_page(struct range x) { return &x.r->page[x.first]; }
static inline bool readable(const struct page *p) { return p->prot & PROT_READ; }
static inline bool writable(const struct page *p) { return p->prot & PROT_WRITE; }

/* The memory calls, made half of the time without libc, as some programs do. Errors: -errno. */
long do_mmap(struct worker *w, void *addr, size_t len, int prot, int flags);
long do_munmap(struct worker *w, void *addr, size_t len);
long do_mremap(struct worker *w, void *addr, size_t old, size_t len, int flags, void *to);
long do_mprotect(struct worker *w, void *addr, size_t len, int prot);
long do_madvise(struct worker *w, void *addr, size_t len, int advice);

bool pick_range(struct worker *w, struct world *d, uint32_t max, struct range *out);
/* A range all of whose pages can be read and hold bytes that are certain. */
bool pick_readable(struct worker *w, struct world *d, uint32_t max, struct range *out);
bool pick_writable(struct worker *w, struct world *d, uint32_t max, struct range *out);
bool overlap(struct range a, struct range b);
void check_range(struct worker *w, struct range x, bool alone);
void write_range(struct worker *w, struct range x);
void verify_world(struct worker *w, struct world *d, bool alone);
void forget_range(struct world *d, struct range x); /* the range is no longer mapped */
uint64_t new_stamp(struct worker *w);
void disturb(struct worker *w, struct world *d); /* memory pressure for a moment */

struct op {
    const char *name, *group;
    unsigned weight;
    bool (*run)(struct worker *w, struct world *d); /* false: not possible now */
};
extern const struct op world_ops[], call_ops[], thread_ops[], fork_ops[];
void ops_select(const char *only, const char *without);
bool group_enabled(const char *group);
void ops_list(void);
/* One operation picked at random; `depth` > 0 inside another operation: none that start threads. */
void run_one(struct worker *w, struct world *d, bool inside);
void brk_start(void);

/* ---- threads.c, forks.c ---------------------------------------------------------------- */

void signals_start(void);
void signals_thread(struct worker *w);
void lanes_start(void);
void lanes_finish(void);
void race_start(void);
void race_join(void);
uint64_t signals_seen(void);

void forks_start(void);
bool forks_reap(void); /* true while children live */
void forks_kill(void);
uint64_t forks_made(void);
bool forks_answered_for(void); /* whether somebody answers for this process's memory */
int probe(void); /* what an exec'd child does */

#endif
