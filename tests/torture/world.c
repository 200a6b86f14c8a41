/* A world and the operations on it.
 *
 *      world ── region ── region ── ...        each region: addr, pages, one `struct page` a page
 *                 │
 *                 [ stamp pokes prot flags ] [ ... ] [ ... ]
 *
 * Every operation makes one system call (or touches memory) and tells the model what must be true
 * afterwards. A call that fails where the kernel must accept it is a finding too.
 */
#include "torture.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

/* ---- the calls -------------------------------------------------------------------------- */

/* Made without libc: what an interposer of libc's functions does not see. */
static long raw(long nr, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static long from_libc(void *p) { return p == MAP_FAILED ? -errno : (long)p; }

long do_mmap(struct worker *w, void *addr, size_t len, int prot, int flags) {
    if (one_in(w, 2))
        return raw(SYS_mmap, (long)addr, (long)len, prot, flags, -1, 0);
    return from_libc(mmap(addr, len, prot, flags, -1, 0));
}

long do_munmap(struct worker *w, void *addr, size_t len) {
    if (one_in(w, 2))
        return raw(SYS_munmap, (long)addr, (long)len, 0, 0, 0, 0);
    return munmap(addr, len) ? -errno : 0;
}

long do_mremap(struct worker *w, void *addr, size_t old, size_t len, int flags, void *to) {
    if (one_in(w, 2))
        return raw(SYS_mremap, (long)addr, (long)old, (long)len, flags, (long)to, 0);
    return from_libc(mremap(addr, old, len, flags, to));
}

long do_mprotect(struct worker *w, void *addr, size_t len, int prot) {
    if (one_in(w, 2))
        return raw(SYS_mprotect, (long)addr, (long)len, prot, 0, 0, 0);
    return mprotect(addr, len, prot) ? -errno : 0;
}

long do_madvise(struct worker *w, void *addr, size_t len, int advice) {
    if (one_in(w, 2))
        return raw(SYS_madvise, (long)addr, (long)len, advice, 0, 0, 0);
    return madvise(addr, len, advice) ? -errno : 0;
}

/* ---- regions ---------------------------------------------------------------------------- */

/* A region for memory just mapped, all zeros, or NULL when the table is full. */
static struct region *region_add(struct world *d, char *addr, uint32_t pages, int prot) {
    if (!d->unused_count)
        return NULL;
    struct region *r = d->unused[--d->unused_count];
    r->addr = addr;
    r->pages = pages;
    r->single = true;
    r->brk = false;
    for (uint32_t i = 0; i < pages; i++)
        r->page[i] = (struct page){.prot = (uint8_t)prot};
    d->region[d->count++] = r;
    d->pages += pages;
    return r;
}

static bool locked(const struct page *p) { return p->flags & LOCKED; }

static void unlock_count(struct world *d, struct range x) {
    for (uint32_t i = 0; i < x.n; i++)
        d->locked -= locked(&range_page(x)[i]);
}

static void region_drop(struct world *d, struct region *r) {
    d->unused[d->unused_count++] = r;
    for (uint32_t i = 0; i < d->count; i++)
        if (d->region[i] == r)
            d->region[i] = d->region[--d->count];
}

/* Room in the table for the pieces that one operation may leave. */
static bool room(const struct world *d, uint32_t n) { return d->unused_count >= n; }

void forget_range(struct world *d, struct range x) {
    struct region *r = x.r;
    uint32_t tail = r->pages - x.first - x.n;
    unlock_count(d, x);
    d->pages -= x.n;
    if (tail && x.first) { /* a hole in the middle: two regions; the caller saw to the room */
        struct region *t = d->unused[--d->unused_count];
        t->addr = range_addr(x) + range_len(x);
        t->pages = tail;
        t->single = r->single;
        t->brk = r->brk;
        memcpy(t->page, r->page + x.first + x.n, tail * sizeof(struct page));
        d->region[d->count++] = t;
        r->pages = x.first;
    } else if (tail) {
        r->addr += range_len(x);
        r->pages = tail;
        memmove(r->page, r->page + x.n, tail * sizeof(struct page));
    } else if (x.first) {
        r->pages = x.first;
    } else {
        region_drop(d, r);
    }
}

bool overlap(struct range a, struct range b) {
    return a.r == b.r && a.first < b.first + b.n && b.first < a.first + a.n;
}

/* Hot spots: half of the picks fall on an eighth of the regions. */
static struct region *pick_region(struct worker *w, struct world *d) {
    if (!d->count)
        return NULL;
    uint32_t n = one_in(w, 2) ? (d->count + 7) / 8 : d->count;
    return d->region[below(w, n)];
}

static struct range sub_range(struct worker *w, struct region *r, uint32_t max) {
    uint32_t most = r->pages < max ? r->pages : max, n;
    switch (below(w, 4)) {
    case 0:
        n = 1;
        break;
    case 1:
        n = 1 + (uint32_t)below(w, most < 16 ? most : 16);
        break;
    case 2:
        n = 1 + (uint32_t)below(w, most);
        break;
    default:
        n = most;
    }
    uint32_t slack = r->pages - n, first;
    switch (below(w, 4)) { /* head, tail, anywhere */
    case 0:
        first = 0;
        break;
    case 1:
        first = slack;
        break;
    default:
        first = (uint32_t)below(w, slack + 1);
    }
    return (struct range){r, first, n};
}

bool pick_range(struct worker *w, struct world *d, uint32_t max, struct range *out) {
    struct region *r = pick_region(w, d);
    if (!r)
        return false;
    *out = sub_range(w, r, max);
    return true;
}

uint64_t new_stamp(struct worker *w) {
    static const uint8_t kinds[8] = {RANDOM, TEXT, TEXT, SAME, SPARSE, RAMP, HALF, RANDOM};
    unsigned kind = kinds[below(w, 8)];
    return (uint64_t)w->id << 48 | ++w->serial << 3 | (opt.half ? HALF : kind);
}

static void write_page(struct worker *w, char *addr, struct page *p) {
    atomic_store_explicit(&w->at, addr, memory_order_relaxed);
    p->stamp = one_in(w, 32) ? 0 : new_stamp(w);
    p->pokes = 0;
    p->flags &= (uint8_t)~LAZY;
    if (one_in(w, 4)) { /* one big copy, through wide stores */
        content_fill((uint64_t *)w->expect, p->stamp, 0);
        memcpy(addr, w->expect, PAGE);
    } else {
        content_fill((uint64_t *)addr, p->stamp, 0);
    }
    w->written++;
    atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
}

void write_range(struct worker *w, struct range x) {
    note(w, "write", range_addr(x), range_len(x), range_page(x)->stamp, w->serial);
    for (uint32_t i = 0; i < x.n; i++)
        if (writable(&range_page(x)[i]))
            write_page(w, range_addr(x) + i * PAGE, &range_page(x)[i]);
}

/* Compares a page with its model. `alone`: nobody else reads this world now, so what a look has
 * decided (a page given to MADV_FREE is gone) may be written down. */
static void check_page(struct worker *w, const char *addr, struct page *p, bool alone) {
    atomic_store_explicit(&w->at, addr, memory_order_relaxed);
    content_fill((uint64_t *)w->expect, p->stamp, p->pokes);
    w->verified++;
    atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
    if (!memcmp(addr, w->expect, PAGE))
        return;
    if (!(p->flags & LAZY) || !all_zero(addr))
        fail_page(w, "page does not hold what was written", addr, p, addr);
    if (alone) {
        p->stamp = p->pokes = 0;
        p->flags &= (uint8_t)~LAZY;
    }
}

void check_range(struct worker *w, struct range x, bool alone) {
    note(w, "check", range_addr(x), range_len(x), range_page(x)->stamp, 0);
    for (uint32_t i = 0; i < x.n; i++)
        if (readable(&range_page(x)[i]))
            check_page(w, range_addr(x) + i * PAGE, &range_page(x)[i], alone);
}

void verify_world(struct worker *w, struct world *d, bool alone) {
    for (uint32_t i = 0; i < d->count; i++)
        check_range(w, (struct range){d->region[i], 0, d->region[i]->pages}, alone);
}

/* After MADV_FREE a page is its old self or zeros; a whole write makes it certain. */
static bool settle(struct worker *w, struct range x) {
    for (uint32_t i = 0; i < x.n; i++) {
        struct page *p = &range_page(x)[i];
        if (p->flags & LAZY) {
            if (!writable(p))
                return false;
            write_page(w, range_addr(x) + i * PAGE, p);
        }
    }
    return true;
}

/* The longest run from a random start on which `want` holds for every page. */
static bool pick_run(struct worker *w, struct world *d, uint32_t max, struct range *out,
                     bool (*want)(const struct page *)) {
    if (!pick_range(w, d, max, out))
        return false;
    for (uint32_t i = 0; i < out->n; i++)
        if (!want(&range_page(*out)[i])) {
            out->n = i;
            break;
        }
    return out->n > 0;
}

bool pick_readable(struct worker *w, struct world *d, uint32_t max, struct range *out) {
    return pick_run(w, d, max, out, readable) && settle(w, *out);
}

bool pick_writable(struct worker *w, struct world *d, uint32_t max, struct range *out) {
    return pick_run(w, d, max, out, writable);
}

void disturb(struct worker *w, struct world *d) {
    struct range x;
    for (unsigned i = 0; i < 3; i++)
        if (pick_writable(w, d, 256, &x)) {
            check_range(w, x, true);
            write_range(w, x);
        }
}

/* ---- operations: mappings come, go, move ------------------------------------------------ */

static uint32_t random_pages(struct worker *w) {
    switch (below(w, 10)) {
    case 0 ... 4:
        return 1 + (uint32_t)below(w, 16);
    case 5 ... 7:
        return 16 + (uint32_t)below(w, 240);
    default:
        return 256 + (uint32_t)below(w, 1793); /* up to 8 MiB */
    }
}

static int random_prot(struct worker *w) {
    static const int prots[8] = {RW, RW, RW, PROT_NONE, PROT_NONE, PROT_READ, RW | PROT_EXEC,
                                 PROT_READ | PROT_EXEC};
    return prots[below(w, 8)];
}

static bool op_map(struct worker *w, struct world *d) {
    uint32_t n = random_pages(w);
    if (!room(d, 1) || d->pages + n > d->budget)
        return false;
    int prot = one_in(w, 4) ? random_prot(w) : RW;
    int flags = ANON | (one_in(w, 8) ? MAP_POPULATE : 0) | (one_in(w, 8) ? MAP_NORESERVE : 0) |
                (one_in(w, 16) ? MAP_STACK : 0);
    long p = do_mmap(w, NULL, n * PAGE, prot, flags);
    note(w, flags & MAP_POPULATE ? "map populate" : "map", (void *)p, n * PAGE, (uint64_t)prot,
         (uint64_t)flags);
    if (p < 0)
        fail_call(w, "mmap refused", NULL, p);
    struct region *r = region_add(d, (char *)p, n, prot);
    if (one_in(w, 4))
        do_madvise(w, r->addr, n * PAGE, MADV_HUGEPAGE);
    if (!one_in(w, 4))
        write_range(w, sub_range(w, r, MAX_PAGES));
    return true;
}

static bool op_unmap(struct worker *w, struct world *d) {
    struct range x;
    if (d->pages < d->budget / 2 || !room(d, 1) || !pick_range(w, d, MAX_PAGES, &x) || x.r->brk)
        return false;
    if (one_in(w, 2))
        check_range(w, x, true);
    long e = do_munmap(w, range_addr(x), range_len(x));
    note(w, "unmap", range_addr(x), range_len(x), 0, 0);
    if (e)
        fail_call(w, "munmap refused", range_addr(x), e);
    forget_range(d, x);
    return true;
}

/* Pages of the range are new: zeros, `prot`, no advice, no lock. */
static void renew(struct world *d, struct range x, int prot) {
    unlock_count(d, x);
    for (uint32_t i = 0; i < x.n; i++)
        range_page(x)[i] = (struct page){.prot = (uint8_t)prot};
    x.r->single = x.n == x.r->pages;
}

static bool op_fixed(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, MAX_PAGES, &x) || x.r->brk)
        return false;
    int prot = random_prot(w);
    int flags = ANON | MAP_FIXED | (one_in(w, 8) ? MAP_POPULATE : 0);
    note(w, "map fixed", range_addr(x), range_len(x), (uint64_t)prot, (uint64_t)flags);
    long p = do_mmap(w, range_addr(x), range_len(x), prot, flags);
    if (p != (long)range_addr(x))
        fail_call(w, "mmap(MAP_FIXED) refused", range_addr(x), p);
    renew(d, x, prot);
    return true;
}

/* An adjacent mapping, as a program does that grows an arena of its own. */
static bool op_adjacent(struct worker *w, struct world *d) {
    struct range x;
    uint32_t n = 1 + (uint32_t)below(w, 64);
    if (!pick_range(w, d, 1, &x) || x.r->brk || x.r->pages + n > MAX_PAGES ||
        d->pages + n > d->budget)
        return false;
    struct region *r = x.r;
    char *end = r->addr + r->pages * PAGE;
    long p = do_mmap(w, end, n * PAGE, RW, ANON | MAP_FIXED_NOREPLACE);
    note(w, "map adjacent", end, n * PAGE, (uint64_t)p, 0);
    if (p == -EEXIST)
        return false;
    if (p != (long)end)
        fail_call(w, "mmap(MAP_FIXED_NOREPLACE) refused", end, p);
    for (uint32_t i = 0; i < n; i++)
        r->page[r->pages + i] = (struct page){.prot = RW};
    r->pages += n;
    r->single = false;
    d->pages += n;
    return true;
}

/* The kernel has grown the region's last mapping by `n` pages. */
static void grown(struct world *d, struct region *r, uint32_t n) {
    struct page last = r->page[r->pages - 1];
    for (uint32_t i = 0; i < n; i++)
        r->page[r->pages + i] =
            (struct page){.prot = last.prot, .flags = (uint8_t)(last.flags & ~LAZY)};
    r->pages += n;
    d->pages += n;
    d->locked += locked(&last) ? n : 0;
}

static bool op_grow(struct worker *w, struct world *d) {
    struct range x;
    uint32_t n = 1 + (uint32_t)below(w, 128);
    if (!pick_range(w, d, 1, &x) || x.r->brk || x.r->pages + n > MAX_PAGES ||
        d->pages + n > d->budget || locked(&x.r->page[x.r->pages - 1]))
        return false;
    struct region *r = x.r;
    /* A region may be several mappings; its last page is always in one. */
    uint32_t from = r->single && one_in(w, 2) ? 0 : r->pages - 1;
    char *at = r->addr + from * PAGE;
    size_t old = (r->pages - from) * PAGE;
    long p = do_mremap(w, at, old, old + n * PAGE, 0, NULL);
    note(w, "grow", at, old + n * PAGE, old, (uint64_t)p);
    if (p == -ENOMEM)
        return false; /* something else lies behind it */
    if (p != (long)at)
        fail_call(w, "mremap in place refused", at, p);
    grown(d, r, n);
    return true;
}

static bool op_grow_move(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, 1, &x) || !x.r->single || x.r->brk || locked(&x.r->page[0]))
        return false;
    struct region *r = x.r;
    uint32_t n = 1 + (uint32_t)below(w, r->pages * 2);
    if (r->pages + n > MAX_PAGES || d->pages + n > d->budget)
        return false;
    long p = do_mremap(w, r->addr, r->pages * PAGE, (r->pages + n) * PAGE, MREMAP_MAYMOVE, NULL);
    note(w, "grow from", r->addr, r->pages * PAGE, n, (uint64_t)p);
    note(w, "grow to", (void *)p, (r->pages + n) * PAGE, n, (uint64_t)r->addr);
    if (p < 0) {
        if (opt.lenient && p == -EFAULT)
            return false;
        fail_call(w, "mremap(MAYMOVE) of a single mapping refused", r->addr, p);
    }
    r->addr = (char *)p;
    grown(d, r, n);
    if (one_in(w, 2))
        check_range(w, (struct range){r, 0, r->pages}, true);
    return true;
}

static bool op_shrink(struct worker *w, struct world *d) {
    struct range x;
    if (d->pages < d->budget / 2 || !pick_range(w, d, 1, &x) || !x.r->single || x.r->brk ||
        x.r->pages < 2)
        return false;
    struct region *r = x.r;
    uint32_t keep = 1 + (uint32_t)below(w, r->pages - 1);
    long p = do_mremap(w, r->addr, r->pages * PAGE, keep * PAGE,
                       one_in(w, 2) ? MREMAP_MAYMOVE : 0, NULL);
    note(w, "shrink", r->addr, r->pages * PAGE, keep, (uint64_t)p);
    if (p != (long)r->addr)
        fail_call(w, "mremap(shrink) refused", r->addr, p);
    forget_range(d, (struct range){r, keep, r->pages - keep});
    return true;
}

/* Moves the pages' models: `to` gets what `from` had. */
static void move_models(struct world *d, struct range from, struct range to, uint32_t n) {
    unlock_count(d, to);
    memmove(range_page(to), range_page(from), n * sizeof(struct page));
    for (uint32_t i = 0; i < n; i++)
        d->locked += locked(&range_page(to)[i]);
}

/* A part of one region onto a part of another: REMAP and UNMAP in one call. */
static bool op_move_fixed(struct worker *w, struct world *d) {
    struct range from, to;
    if (!room(d, 2) || !pick_range(w, d, MAX_PAGES, &from) || !from.r->single || from.r->brk ||
        !pick_range(w, d, MAX_PAGES, &to) || to.r->brk || to.r == from.r)
        return false;
    uint32_t n = from.n < to.n ? from.n : to.n;
    from.n = to.n = n;
    note(w, "move from", range_addr(from), range_len(from), (uint64_t)range_addr(to), 0);
    note(w, "move to", range_addr(to), range_len(to), (uint64_t)range_addr(from), 0);
    long p = do_mremap(w, range_addr(from), range_len(from), range_len(to),
                       MREMAP_MAYMOVE | MREMAP_FIXED, range_addr(to));
    if (p != (long)range_addr(to)) {
        if (opt.lenient && p == -EFAULT) { /* the target may be gone already: make it new */
            do_mmap(w, range_addr(to), range_len(to), RW, ANON | MAP_FIXED);
            renew(d, to, RW);
            return true;
        }
        fail_call(w, "mremap(FIXED) of a single mapping refused", range_addr(from), p);
    }
    move_models(d, from, to, n);
    if (n < to.r->pages)
        to.r->single = false;
    if (one_in(w, 2))
        check_range(w, to, true);
    forget_range(d, from);
    return true;
}

/* The pages move away, the mapping stays, and is empty. */
static bool op_dontunmap(struct worker *w, struct world *d) {
    struct range from;
    if (!room(d, 1) || !pick_range(w, d, MAX_PAGES, &from) || !from.r->single || from.r->brk ||
        d->pages + from.n > d->budget)
        return false;
    long p = do_mremap(w, range_addr(from), range_len(from), range_len(from),
                       MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    note(w, "dontunmap", range_addr(from), range_len(from), (uint64_t)p, 0);
    if (p < 0) {
        if (opt.lenient && p == -EFAULT)
            return false;
        fail_call(w, "mremap(DONTUNMAP) of a single mapping refused", range_addr(from), p);
    }
    struct region *r = region_add(d, (char *)p, from.n, RW);
    move_models(d, from, (struct range){r, 0, from.n}, from.n);
    note(w, "dontunmap to", r->addr, r->pages * PAGE, (uint64_t)range_addr(from), 0);
    unlock_count(d, from);
    for (uint32_t i = 0; i < from.n; i++) { /* advice and protection stay, bytes and locks not */
        struct page *q = &range_page(from)[i];
        q->stamp = q->pokes = 0;
        q->flags &= (uint8_t)~(LAZY | LOCKED);
    }
    if (from.n < from.r->pages)
        from.r->single = false;
    if (one_in(w, 2))
        check_range(w, from, true);
    return true;
}

/* ---- operations: protection and advice -------------------------------------------------- */

static bool op_protect(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, MAX_PAGES, &x))
        return false;
    int prot = x.r->brk ? RW : random_prot(w);
    note(w, "protect", range_addr(x), range_len(x), (uint64_t)prot, 0);
    long e = do_mprotect(w, range_addr(x), range_len(x), prot);
    if (e)
        fail_call(w, "mprotect refused", range_addr(x), e);
    for (uint32_t i = 0; i < x.n; i++)
        range_page(x)[i].prot = (uint8_t)prot;
    if (x.n < x.r->pages)
        x.r->single = false;
    return true;
}

/* The next part of a reserve is committed, as an allocator does with its arena. */
static bool op_commit(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, 1, &x))
        return false;
    struct region *r = x.r;
    uint32_t most = 1 + (uint32_t)below(w, 128);
    x.first = x.n = 0;
    while (x.first < r->pages && r->page[x.first].prot != PROT_NONE)
        x.first++;
    while (x.n < most && x.first + x.n < r->pages && r->page[x.first + x.n].prot == PROT_NONE)
        x.n++;
    if (!x.n)
        return false;
    note(w, "commit", range_addr(x), range_len(x), 0, 0);
    long e = do_mprotect(w, range_addr(x), range_len(x), RW);
    if (e)
        fail_call(w, "mprotect refused", range_addr(x), e);
    for (uint32_t i = 0; i < x.n; i++)
        range_page(x)[i].prot = RW;
    if (x.n < r->pages)
        r->single = false;
    check_range(w, x, true);
    write_range(w, x);
    return true;
}

/* Away and back: what evicts must not take the protection of a moment for the page's end. */
static bool op_round_trip(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_writable(w, d, 64, &x))
        return false;
    static const int via[3] = {PROT_NONE, PROT_READ, RW | PROT_EXEC};
    int prot = via[below(w, 3)], back = range_page(x)->prot;
    for (uint32_t i = 0; i < x.n; i++)
        if (range_page(x)[i].prot != back)
            x.n = i;
    note(w, "round trip", range_addr(x), range_len(x), (uint64_t)prot, (uint64_t)back);
    long e = do_mprotect(w, range_addr(x), range_len(x), prot);
    long f = do_mprotect(w, range_addr(x), range_len(x), back);
    if (e || f)
        fail_call(w, "mprotect refused", range_addr(x), e ? e : f);
    if (x.n < x.r->pages)
        x.r->single = false;
    check_range(w, x, true);
    return true;
}

static bool any_locked(struct range x) {
    for (uint32_t i = 0; i < x.n; i++)
        if (locked(&range_page(x)[i]))
            return true;
    return false;
}

static bool op_dontneed(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, MAX_PAGES, &x))
        return false;
    int advice = any_locked(x) ? MADV_DONTNEED_LOCKED : MADV_DONTNEED;
    long e = do_madvise(w, range_addr(x), range_len(x), advice);
    note(w, "dontneed", range_addr(x), range_len(x), 0, 0);
    if (e)
        fail_call(w, "madvise(DONTNEED) refused", range_addr(x), e);
    for (uint32_t i = 0; i < x.n; i++) {
        struct page *p = &range_page(x)[i];
        p->stamp = p->pokes = 0;
        p->flags &= (uint8_t)~LAZY;
    }
    if (one_in(w, 2))
        check_range(w, x, true);
    else if (one_in(w, 2))
        write_range(w, x);
    return true;
}

static bool op_free(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, MAX_PAGES, &x) || any_locked(x))
        return false;
    long e = do_madvise(w, range_addr(x), range_len(x), MADV_FREE);
    note(w, "free", range_addr(x), range_len(x), 0, 0);
    if (e)
        fail_call(w, "madvise(FREE) refused", range_addr(x), e);
    for (uint32_t i = 0; i < x.n; i++)
        if (range_page(x)[i].stamp)
            range_page(x)[i].flags |= LAZY;
    if (one_in(w, 2))
        disturb(w, d);
    return true;
}

static bool op_hint(struct worker *w, struct world *d) {
    /* Advice that changes no byte, whether or not the kernel can follow it. */
    static const struct {
        const char *name;
        int advice;
        bool splits;
    } hints[] = {{"cold", MADV_COLD, false},
                 {"pageout", MADV_PAGEOUT, false},
                 {"willneed", MADV_WILLNEED, false},
                 {"hugepage", MADV_HUGEPAGE, true},
                 {"nohugepage", MADV_NOHUGEPAGE, true},
                 {"collapse", MADV_COLLAPSE, false},
                 {"dontdump", MADV_DONTDUMP, true},
                 {"populate r", MADV_POPULATE_READ, false},
                 {"populate w", MADV_POPULATE_WRITE, false}};
    struct range x;
    if (!pick_range(w, d, MAX_PAGES, &x))
        return false;
    size_t i = below(w, sizeof hints / sizeof *hints);
    long e = do_madvise(w, range_addr(x), range_len(x), hints[i].advice);
    note(w, hints[i].name, range_addr(x), range_len(x), 0, (uint64_t)e);
    if (hints[i].splits && x.n < x.r->pages)
        x.r->single = false;
    return true;
}

static bool op_fork_advice(struct worker *w, struct world *d) {
    static const struct {
        const char *name;
        int advice;
        uint8_t set, clear;
    } kinds[] = {{"wipeonfork", MADV_WIPEONFORK, WIPE, 0},
                 {"keeponfork", MADV_KEEPONFORK, 0, WIPE},
                 {"dontfork", MADV_DONTFORK, DONTFORK, 0},
                 {"dofork", MADV_DOFORK, 0, DONTFORK}};
    struct range x;
    if (!pick_range(w, d, 64, &x) || x.r->brk)
        return false;
    if (w->no_threads && w->depth && forks_answered_for())
        return false; /* see forks.c */
    size_t k = below(w, 4);
    long e = do_madvise(w, range_addr(x), range_len(x), kinds[k].advice);
    note(w, kinds[k].name, range_addr(x), range_len(x), 0, 0);
    if (e)
        fail_call(w, "madvise about fork refused", range_addr(x), e);
    for (uint32_t i = 0; i < x.n; i++) {
        range_page(x)[i].flags |= kinds[k].set;
        range_page(x)[i].flags &= (uint8_t)~kinds[k].clear;
    }
    if (x.n < x.r->pages)
        x.r->single = false;
    return true;
}

static bool op_lock(struct worker *w, struct world *d) {
    struct range x;
    bool lock = d->locked < 64 && one_in(w, 2);
    if (!pick_range(w, d, 16, &x) || x.r->brk || (!lock && !any_locked(x)))
        return false;
    if (lock)
        for (uint32_t i = 0; i < x.n; i++)
            if (range_page(x)[i].prot == PROT_NONE)
                return false; /* mlock would report that it cannot fill it */
    long e = lock ? mlock2(range_addr(x), range_len(x), one_in(w, 2) ? MLOCK_ONFAULT : 0)
                  : syscall(SYS_munlock, range_addr(x), range_len(x)); /* sanitizers make libc's a no-op */
    note(w, lock ? "lock" : "unlock", range_addr(x), range_len(x), (uint64_t)e, 0);
    if (e)
        return false; /* RLIMIT_MEMLOCK: the kernel checks it before it changes anything */
    unlock_count(d, x);
    for (uint32_t i = 0; i < x.n; i++) {
        struct page *p = &range_page(x)[i];
        p->flags = (uint8_t)((p->flags & ~LOCKED) | (lock ? LOCKED : 0));
    }
    d->locked += lock ? x.n : 0;
    if (x.n < x.r->pages)
        x.r->single = false;
    return true;
}

/* ---- operations: bytes ------------------------------------------------------------------ */

static bool op_write(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, 512, &x))
        return false;
    write_range(w, x);
    return true;
}

static bool op_check(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, 512, &x))
        return false;
    check_range(w, x, true);
    return true;
}

/* One word written to each of many pages, most of them far apart: the write that is lost when a
 * page is taken out while it is written. */
static bool op_poke(struct worker *w, struct world *d) {
    struct range x;
    unsigned times = 1 + (unsigned)below(w, 64);
    while (times--) {
        if (!pick_range(w, d, 1, &x))
            return false;
        struct page *p = range_page(x);
        char *at = range_addr(x);
        if (!writable(p))
            continue;
        note(w, "poke", at, PAGE, p->stamp, p->pokes + 1u);
        if ((p->flags & LAZY) || p->pokes >= MAX_POKES) {
            check_page(w, at, p, true);
            write_page(w, at, p);
            continue;
        }
        if (!p->stamp) /* zeros with a word in them: a blank page that has a name */
            p->stamp = (uint64_t)w->id << 48 | ++w->serial << 3 | BLANK;
        p->pokes++;
        volatile uint64_t *word = (uint64_t *)at + poke_word(p->stamp, p->pokes);
        *word = poke_value(p->stamp, p->pokes);
    }
    return true;
}

static bool op_sweep(struct worker *w, struct world *d) {
    verify_world(w, d, true);
    return true;
}

/* Many touches of few pages. */
static bool op_hot(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, 8, &x))
        return false;
    for (unsigned i = 0; i < 50; i++) {
        uint32_t k = (uint32_t)below(w, x.n);
        struct page *p = &range_page(x)[k];
        if (readable(p))
            check_page(w, range_addr(x) + k * PAGE, p, true);
        if (writable(p) && one_in(w, 4))
            write_page(w, range_addr(x) + k * PAGE, p);
    }
    note(w, "hot", range_addr(x), range_len(x), 0, 0);
    return true;
}

static bool op_copy(struct worker *w, struct world *d) {
    struct range a, b;
    if (!pick_readable(w, d, 128, &a) || !pick_writable(w, d, a.n, &b) || overlap(a, b))
        return false;
    note(w, "copy from", range_addr(a), b.n * PAGE, range_page(a)->stamp, 0);
    note(w, "copy to", range_addr(b), b.n * PAGE, range_page(a)->stamp, (uint64_t)range_addr(a));
    memcpy(range_addr(b), range_addr(a), b.n * PAGE);
    for (uint32_t i = 0; i < b.n; i++) {
        struct page *p = &range_page(b)[i];
        p->stamp = range_page(a)[i].stamp;
        p->pokes = range_page(a)[i].pokes;
        p->flags &= (uint8_t)~LAZY;
    }
    return true;
}

/* ---- brk -------------------------------------------------------------------------------- */

static char *brk_base, *brk_now;
static struct region *brk_region;

/* Gives libc's heap slack to live on, so that the break is ours from here on. */
void brk_start(void) {
    void *slack = malloc(48 << 10);
    void *more[32];
    for (unsigned i = 0; i < 32; i++)
        more[i] = malloc(60 << 10);
    for (unsigned i = 0; i < 32; i++)
        free(more[i]);
    free(slack);
    char *now = (char *)raw(SYS_brk, 0, 0, 0, 0, 0, 0);
    brk_base = (char *)(((uintptr_t)now + PAGE - 1) & ~(PAGE - 1));
    brk_now = (char *)raw(SYS_brk, (long)brk_base, 0, 0, 0, 0, 0);
}

static bool op_brk(struct worker *w, struct world *d) {
    if (w->id != 0 || d->shared || w->depth || brk_now != brk_base + (brk_region ? brk_region->pages * PAGE : 0))
        return false;
    if ((char *)raw(SYS_brk, 0, 0, 0, 0, 0, 0) != brk_now) {
        brk_now = NULL; /* libc took the break after all: leave it alone for good */
        return false;
    }
    uint32_t have = brk_region ? brk_region->pages : 0;
    uint32_t want = (uint32_t)below(w, MAX_PAGES / 2) >> below(w, 8);
    if (want > have && (d->pages + want - have > d->budget || !room(d, 1)))
        return false;
    char *to = brk_base + want * PAGE;
    char *got = (char *)raw(SYS_brk, (long)to, 0, 0, 0, 0, 0);
    note(w, "brk", brk_base, want * PAGE, have, (uint64_t)got);
    if (got != to)
        fail_call(w, "brk refused", to, -ENOMEM);
    brk_now = to;
    if (want < have) {
        forget_range(d, (struct range){brk_region, want, have - want});
    } else if (!brk_region) {
        if (want) {
            brk_region = region_add(d, brk_base, want, RW);
            brk_region->brk = true;
        }
    } else {
        for (uint32_t i = have; i < want; i++)
            brk_region->page[i] = (struct page){.prot = RW};
        brk_region->pages = want;
        d->pages += want - have;
    }
    if (!want)
        brk_region = NULL;
    return true;
}

/* A look where the program may not look must end in SIGSEGV, and a call in EFAULT. */
extern bool touch_faults(void *addr, bool write);

static bool op_forbidden(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_range(w, d, 1, &x) || (readable(range_page(x)) && writable(range_page(x))))
        return false;
    bool write = readable(range_page(x)) || one_in(w, 2);
    note(w, "forbidden", range_addr(x), PAGE, write, range_page(x)->prot);
    if (!touch_faults(range_addr(x) + below(w, PAGE), write))
        fail_at(w, "access to a protected page went through", range_addr(x), 1, 0);
    return true;
}

const struct op world_ops[] = {
    {"map", "map", 40, op_map},
    {"unmap", "unmap", 40, op_unmap},
    {"fixed", "fixed", 12, op_fixed},
    {"adjacent", "map", 12, op_adjacent},
    {"grow", "mremap", 12, op_grow},
    {"grow_move", "mremap", 12, op_grow_move},
    {"shrink", "mremap", 10, op_shrink},
    {"move_fixed", "mremap", 16, op_move_fixed},
    {"dontunmap", "mremap", 10, op_dontunmap},
    {"protect", "protect", 24, op_protect},
    {"commit", "protect", 12, op_commit},
    {"round_trip", "protect", 12, op_round_trip},
    {"forbidden", "protect", 8, op_forbidden},
    {"dontneed", "dontneed", 24, op_dontneed},
    {"free", "free", 16, op_free},
    {"hint", "hint", 16, op_hint},
    {"fork_advice", "hint", 6, op_fork_advice},
    {"lock", "lock", 6, op_lock},
    {"write", "touch", 60, op_write},
    {"check", "touch", 60, op_check},
    {"poke", "touch", 60, op_poke},
    {"sweep", "touch", 3, op_sweep},
    {"hot", "touch", 20, op_hot},
    {"copy", "touch", 16, op_copy},
    {"brk", "brk", 20, op_brk},
    {0},
};
