/* Where the model lives, the op log, and the report. */
#include "torture.h"
#include <fcntl.h>
#include <stdarg.h>

struct options opt;
struct worker *worker[MAX_WORKERS + 2];
struct world *shared[SHARED_WORLDS];
_Atomic bool stop;
__thread struct worker *self;

/* A private mapping of a file in memory: never managed by a pager of anonymous memory, copied on
 * write by fork, and there for good even when every descriptor has been closed. */
void *unmanaged(size_t bytes) {
    bytes = (bytes + PAGE - 1) & ~(PAGE - 1);
    int fd = memfd_create("model", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        perror("torture: memory for the model");
        exit(2);
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
        perror("torture: memory for the model");
        exit(2);
    }
    close(fd);
    return p;
}

struct world *world_new(size_t budget_pages, bool is_shared) {
    struct world *d = unmanaged(sizeof *d);
    d->budget = budget_pages;
    d->shared = is_shared;
    for (uint32_t i = 0; i < MAX_REGIONS; i++)
        d->unused[i] = &d->slot[MAX_REGIONS - 1 - i];
    d->unused_count = MAX_REGIONS;
    return d;
}

struct worker *worker_new(unsigned id, size_t budget_pages) {
    struct worker *w = unmanaged(sizeof *w);
    w->id = id;
    w->rng = mix(opt.seed * 1000003 + id);
    if (budget_pages)
        w->world = world_new(budget_pages, false);
    return w;
}

uint64_t rnd(struct worker *w) {
    w->rng += 0x9e3779b97f4a7c15ull;
    return mix(w->rng);
}

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void note(struct worker *w, const char *op, const void *addr, size_t len, uint64_t a, uint64_t b) {
    uint64_t n = atomic_fetch_add(&w->log.next, 1);
    w->log.entry[n % LOG_ENTRIES] = (struct entry){now_ns(), op, addr, len, a, b};
    atomic_store_explicit(&w->at, addr, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
}

/* ---- the report ------------------------------------------------------------------------ */

static char *text; /* unmanaged, so that the report can be written whatever broke */
static size_t text_len;
enum { TEXT_MAX = 1 << 20 };

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    if (text_len < TEXT_MAX - 512)
        text_len += (size_t)vsnprintf(text + text_len, 512, format, ap);
    va_end(ap);
}

static void say_entry(unsigned id, const struct entry *e) {
    say("  %12.6f thread %u %-12s %p + %zu KiB  %#lx %#lx\n", (double)e->ns / 1e9, id, e->op,
        e->addr, e->len / 1024, e->a, e->b);
}

/* The last operations of everybody on the page, oldest first, then the last ones of `w`. */
static void say_logs(struct worker *w, const void *addr) {
    const char *at = addr;
    uint64_t before = 0;
    int left = 200;
    say("operations on this page, oldest first (time, thread, operation, range, arguments):\n");
    while (left--) {
        const struct entry *best = NULL;
        unsigned best_id = 0;
        for (unsigned i = 0; i < MAX_WORKERS + 2 && at; i++)
            for (unsigned k = 0; worker[i] && k < LOG_ENTRIES; k++) {
                const struct entry *e = &worker[i]->log.entry[k];
                const char *from = e->addr;
                if (e->ns > before && e->addr && at + PAGE > from && at < from + e->len &&
                    (!best || e->ns < best->ns))
                    best = e, best_id = i;
            }
        if (!best)
            break;
        say_entry(best_id, best);
        before = best->ns;
    }
    say("last operations of thread %u:\n", w->id);
    uint64_t next = w->log.next;
    for (uint64_t n = next > 24 ? next - 24 : 0; n < next; n++)
        say_entry(w->id, &w->log.entry[n % LOG_ENTRIES]);
}

static void say_map(const void *addr) {
    /* Reading this file takes memory and descriptors that may be what broke; it comes last. */
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[256];
    bool here = false;
    while (f && fgets(line, sizeof line, f)) {
        uintptr_t from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = (uintptr_t)addr >= from && (uintptr_t)addr < to;
        if (here && (strchr(line, '-') || strstr(line, "VmFlags") || strstr(line, "Rss")))
            say("mapping: %s", line);
    }
}

static void write_all(void) {
    for (size_t done = 0; done < text_len;) {
        ssize_t n = write(2, text + done, text_len - done);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    text_len = 0;
}

static _Atomic int reporting;

static void report_begin(struct worker *w, const char *what, const void *addr) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    if (atomic_exchange(&reporting, 1))
        for (;;)
            pause(); /* somebody else is reporting: the first finding is the one to read */
    text = unmanaged(TEXT_MAX);
    say("\ntorture: MISMATCH: %s\n  seed %lu threads %u size %zuM thread %u pid %d generation %u "
        "(after %lu operations)\n  at %p, time %.6f\n",
        what, opt.seed, opt.threads, opt.size >> 20, w->id, (int)getpid(), w->depth, w->ops, addr,
        (double)now_ns() / 1e9);
}

static _Noreturn void report_end(struct worker *w, const void *addr) {
    write_all();
    say_logs(w, addr);
    write_all();
    say_map(addr);
    say("torture: FAILED, seed %lu\n", opt.seed);
    write_all();
    forks_kill();
    if (opt.abort) {
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    _exit(1);
}

_Noreturn void fail_page(struct worker *w, const char *what, const void *addr,
                         const struct page *model, const void *found) {
    uint64_t got[WORDS], want[WORDS];
    memcpy(got, found, PAGE);
    report_begin(w, what, addr);
    content_fill(want, model->stamp, model->pokes);
    unsigned first = WORDS, differ = 0;
    for (unsigned i = 0; i < WORDS; i++)
        if (got[i] != want[i]) {
            differ++;
            if (first == WORDS)
                first = i;
        }
    say("  model: stamp %#lx (kind %lu, writer %lu, serial %lu) pokes %u prot %u flags %u\n",
        model->stamp, model->stamp % 8, model->stamp >> 48, (model->stamp >> 3) & 0x1fffffffffff,
        model->pokes, model->prot, model->flags);
    say("  %u of %lu words differ, the first at offset %u\n", differ, WORDS, first * 8);
    for (unsigned i = first; i < first + 4 && i < WORDS; i++)
        say("    +%4u expected %016lx found %016lx\n", i * 8, want[i], got[i]);
    for (unsigned n = 0; n <= MAX_POKES; n++) {
        content_fill(want, model->stamp, n);
        if (n != model->pokes && !memcmp(got, want, PAGE))
            say("  found: the same page after only %u of its %u single-word writes\n", n,
                model->pokes);
    }
    if (all_zero(got))
        say("  found: all zeros\n");
    else if (got[0] % 8 != BLANK && got[0] % 8 != SAME && got[0] >> 48 < MAX_WORKERS + 2)
        say("  found: it looks like a page of stamp %#lx (writer %lu, serial %lu)\n", got[0],
            got[0] >> 48, (got[0] >> 3) & 0x1fffffffffff);
    memcpy(got, found, PAGE);
    content_fill(want, model->stamp, model->pokes);
    say("  read again: %s\n", memcmp(got, want, PAGE) ? "still wrong" : "right this time");
    report_end(w, addr);
}

_Noreturn void fail_at(struct worker *w, const char *what, const void *addr, uint64_t expected,
                       uint64_t found) {
    report_begin(w, what, addr);
    say("  expected %#lx found %#lx\n", expected, found);
    report_end(w, addr);
}

_Noreturn void fail_call(struct worker *w, const char *what, const void *addr, long result) {
    report_begin(w, what, addr);
    say("  result %ld (%s)\n", result, result < 0 ? strerror((int)-result) : "");
    report_end(w, addr);
}
