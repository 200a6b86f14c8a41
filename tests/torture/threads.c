/* Short-lived threads, signals, lanes and the race of discard against write. */
#include "torture.h"
#include <linux/futex.h>
#include <sys/time.h>

static char *map_managed(size_t bytes) {
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("torture: mmap");
        exit(2);
    }
    return p;
}

/* ---- signals ---------------------------------------------------------------------------- */

/* Handlers run on stacks in managed memory and touch managed memory: a signal may arrive while
 * its thread waits for a page, and then waits for another page. */

static __thread sigjmp_buf *expected_fault;
static __thread char *expected_at;
static _Atomic uint64_t *common_page; /* managed; handlers in threads that are no worker count */
static _Atomic uint64_t *common_count;

static void on_signal(int sig) {
    int saved = errno;
    struct worker *w = self;
    (void)sig;
    if (w) {
        uint64_t n = w->signals++;
        unsigned i = n % SIGNAL_PAGES;
        uint64_t *at = w->signal_pages + i * WORDS + mix(n / SIGNAL_PAGES / 64) % 8;
        uint64_t *sum = w->signal_pages + i * WORDS + WORDS - 1;
        if (*sum != w->signal_count[i])
            fail_at(w, "a page that only signal handlers write", sum, w->signal_count[i], *sum);
        w->signal_count[i]++;
        (*sum)++;
        *at = n;
    } else {
        atomic_fetch_add(common_page, 1);
        atomic_fetch_add(common_count, 1);
    }
    errno = saved;
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (expected_fault && info->si_addr == expected_at && sig == SIGSEGV)
        siglongjmp(*expected_fault, 1);
    struct worker *w = self ? self : worker[0];
    fail_at(w, sig == SIGBUS ? "SIGBUS" : "SIGSEGV", info->si_addr, 0, (uint64_t)info->si_code);
}

bool touch_faults(void *addr, bool write);
bool touch_faults(void *addr, bool write) {
    sigjmp_buf here;
    volatile bool faulted = true;
    if (!sigsetjmp(here, 1)) {
        expected_at = addr;
        expected_fault = &here;
        atomic_signal_fence(memory_order_seq_cst);
        if (write)
            *(volatile char *)addr = 1;
        else
            (void)*(volatile char *)addr;
        faulted = false;
    }
    expected_fault = NULL;
    return faulted;
}

void signals_start(void) {
    struct sigaction a = {0};
    a.sa_handler = on_signal;
    a.sa_flags = SA_RESTART | SA_ONSTACK;
    sigfillset(&a.sa_mask);
    sigdelset(&a.sa_mask, SIGSEGV);
    sigdelset(&a.sa_mask, SIGBUS);
    sigaction(SIGALRM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    a.sa_handler = NULL;
    a.sa_sigaction = on_fault;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &a, NULL);
    sigaction(SIGBUS, &a, NULL);
    common_page = (_Atomic uint64_t *)map_managed(PAGE);
    common_count = unmanaged(PAGE);
    struct itimerval t = {{0, 2000}, {0, 2000}};
    if (group_enabled("signals"))
        setitimer(ITIMER_REAL, &t, NULL);
}

void signals_thread(struct worker *w) {
    enum { STACK = 64 << 10 };
    w->signal_pages = (uint64_t *)map_managed(SIGNAL_PAGES * PAGE);
    w->altstack = map_managed(STACK);
    sigaltstack(&(stack_t){.ss_sp = w->altstack, .ss_size = STACK}, NULL);
    self = w;
    w->thread = pthread_self();
    w->started = true;
}

uint64_t signals_seen(void) {
    uint64_t n = 0, page = 0;
    if (common_page)
        do { /* a handler may run in between, in this very thread */
            n = *common_count;
            page = *common_page;
        } while (n != *common_count);
    if (page != n)
        fail_at(worker[0], "the page that all handlers count in", common_page, n, page);
    for (unsigned i = 0; i < MAX_WORKERS + 2; i++)
        n += worker[i] ? worker[i]->signals : 0;
    return n;
}

static bool op_signal(struct worker *w, struct world *d) {
    (void)d;
    if (w->depth) {
        raise(SIGUSR1);
        return true;
    }
    struct worker *to = worker[below(w, opt.threads)];
    if (to->started && !to->done)
        pthread_kill(to->thread, SIGUSR1);
    return true;
}

/* ---- threads that come and go ----------------------------------------------------------- */

enum task { STACK_WORK, READ_ALONG, TAKE_OVER, PING, TASKS };

struct helper {
    struct worker *w;
    struct world *d;
    struct range x;
    enum task task;
    _Atomic uint32_t *word;
    uint64_t found;
};

/* A frame per level, each with bytes of its own, checked on the way back. */
static uint64_t descend(unsigned level, uint64_t key) {
    volatile uint64_t frame[256];
    for (unsigned i = 0; i < 256; i++)
        frame[i] = mix(key + i);
    if (level) {
        if (level == 8)
            sched_yield();
        uint64_t bad = descend(level - 1, key + 1000);
        if (bad)
            return bad;
    }
    for (unsigned i = 0; i < 256; i++)
        if (frame[i] != mix(key + i))
            return (uint64_t)(uintptr_t)&frame[i];
    return 0;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    while (atomic_load(word) == value)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_set(_Atomic uint32_t *word, uint32_t value) {
    atomic_store(word, value);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The worker sets odd values, the helper answers each with the next even one. */
enum { ROUNDS = 50 };

static void ping(_Atomic uint32_t *word) {
    for (uint32_t i = 0; i < ROUNDS; i++) {
        futex_set(word, 2 * i + 1);
        futex_wait(word, 2 * i + 1);
    }
}

static void pong(_Atomic uint32_t *word) {
    for (uint32_t i = 0; i < ROUNDS; i++) {
        futex_wait(word, 2 * i);
        futex_set(word, 2 * i + 2);
    }
}

static void *helper_main(void *arg) {
    struct helper *h = arg;
    switch (h->task) {
    case STACK_WORK:
        h->found = descend(24, (uint64_t)(uintptr_t)h);
        break;
    case READ_ALONG: /* the worker reads the same pages at this moment: both fault on them */
        for (uint32_t i = 0; i < h->x.n; i++) {
            struct page *p = &range_page(h->x)[i];
            uint64_t want[WORDS];
            content_fill(want, p->stamp, p->pokes);
            if (readable(p) && !(p->flags & LAZY) &&
                memcmp(want, range_addr(h->x) + i * PAGE, PAGE))
                fail_page(h->w, "page does not hold what was written (second reader)",
                          range_addr(h->x) + i * PAGE, p, range_addr(h->x) + i * PAGE);
        }
        break;
    case TAKE_OVER: /* the worker waits: this thread is the worker for some operations */
        for (unsigned i = 0; i < 24 && !stop; i++)
            run_one(h->w, h->d, true);
        break;
    default:
        pong(h->word);
    }
    return NULL;
}

static bool op_thread(struct worker *w, struct world *d) {
    enum { STACK = 256 << 10 };
    struct helper h = {.w = w, .d = d, .task = (enum task)below(w, TASKS)};
    pthread_attr_t attr;
    pthread_t thread;
    char *stack = NULL;
    if (w->no_threads)
        return false;
    if (h.task == READ_ALONG && !pick_range(w, d, 256, &h.x))
        return false;
    if (h.task == PING) {
        if (!pick_writable(w, d, 1, &h.x))
            return false;
        h.word = (_Atomic uint32_t *)(range_addr(h.x) + 64 * below(w, 64));
        atomic_store(h.word, 0);
    }
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    if (one_in(w, 2)) {
        stack = map_managed(STACK);
        pthread_attr_setstack(&attr, stack, STACK);
    }
    note(w, "thread", stack, stack ? STACK : 0, h.task, 0);
    int e = pthread_create(&thread, &attr, helper_main, &h);
    pthread_attr_destroy(&attr);
    if (!e) {
        if (h.task == READ_ALONG)
            check_range(w, h.x, false);
        if (h.task == PING)
            ping(h.word);
        pthread_join(thread, NULL);
    }
    if (h.found)
        fail_at(w, "a thread's stack", (void *)(uintptr_t)h.found, 0, 0);
    if (h.task == PING)
        write_range(w, h.x);
    if (stack)
        munmap(stack, STACK);
    return true;
}

/* ---- lanes ------------------------------------------------------------------------------ */

/* Pages that all workers write at once, each its own word, and a word that all add to:
 *
 *      word 0 .. 63    the lane of worker 0 .. 63: only it writes there, so it knows what is there
 *      word 511        everybody adds 1 with an atomic: in the end the sum of all additions
 *
 * A page taken out while one thread writes loses that write; here somebody always writes. */
static uint64_t *lanes;
static uint32_t lane_pages;

void lanes_start(void) {
    lane_pages = (uint32_t)(opt.size / PAGE / 16);
    lane_pages = lane_pages ? lane_pages : 1;
    lanes = (uint64_t *)map_managed(lane_pages * PAGE);
    for (unsigned i = 0; i < opt.threads; i++)
        worker[i]->lane = unmanaged(lane_pages * sizeof(uint64_t));
}

static bool op_lanes(struct worker *w, struct world *d) {
    (void)d;
    uint32_t spot = (uint32_t)below(w, lane_pages), width = 1 + lane_pages / 8;
    note(w, "lanes", lanes, 0, spot, w->adds);
    for (unsigned k = 0; k < 200; k++) {
        uint32_t i = (uint32_t)(one_in(w, 2) ? (spot + below(w, width)) % lane_pages
                                             : below(w, lane_pages));
        volatile uint64_t *at = lanes + i * WORDS + w->id;
        if (*at != w->lane[i])
            fail_at(w, "a write was lost: lane", (void *)at, w->lane[i], *at);
        *at = w->lane[i] = rnd(w);
        if (!w->depth) {
            atomic_fetch_add((_Atomic uint64_t *)(lanes + i * WORDS + WORDS - 1), 1);
            w->adds++;
        }
    }
    atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
    return true;
}

void lanes_finish(void) {
    uint64_t sum = 0, adds = 0;
    for (uint32_t i = 0; i < lane_pages; i++)
        sum += lanes[i * WORDS + WORDS - 1];
    for (unsigned i = 0; i < opt.threads; i++) {
        struct worker *w = worker[i];
        adds += w->adds;
        for (uint32_t k = 0; k < lane_pages; k++)
            if (lanes[k * WORDS + i] != w->lane[k])
                fail_at(w, "a write was lost: lane", lanes + k * WORDS + i, w->lane[k],
                        lanes[k * WORDS + i]);
    }
    if (sum != adds)
        fail_at(worker[0], "atomic additions were lost", lanes, adds, sum);
}

/* ---- discard against write -------------------------------------------------------------- */

/* One thread writes words, always in the order 0 .. 63, 0 .. 63, of a page; another discards
 * ranges of pages meanwhile, in every way there is. A word then holds its last value or zero.
 * More: a discard takes all of a page at one moment, so, read from the newest word to the oldest,
 * once a word is zero all older ones are, and a word once seen as zero stays zero until it is
 * written. Anything else is a page that came back from the dead.
 *
 *      written     1 2 3 4 5 6 7 8          newest first:  8 7 6 0 0 0 0 0   right
 *      discarded          ^                                8 7 0 0 4 3 2 1   wrong
 */
enum { RACE_PAGES = 512, RACE_WORDS = 64, RACE_STEP = 8 };
static char *race;
static struct {
    uint64_t last[RACE_WORDS];
    unsigned next;
} *race_model;
static pthread_t race_thread[2];

static uint64_t *race_word(uint32_t page, unsigned i) {
    return (uint64_t *)(race + page * PAGE) + i * RACE_STEP;
}

static void race_check(struct worker *w, uint32_t page) {
    bool gone = false;
    for (unsigned k = 1; k <= RACE_WORDS; k++) {
        unsigned i = (race_model[page].next + RACE_WORDS - k) % RACE_WORDS;
        uint64_t want = race_model[page].last[i], got = *(volatile uint64_t *)race_word(page, i);
        if (got && got != want)
            fail_at(w, "a discarded page came back: old word", race_word(page, i), want, got);
        if (got && gone)
            fail_at(w, "half of a discarded page came back", race_word(page, i), 0, got);
        if (!got && want) {
            gone = true;
            race_model[page].last[i] = 0; /* seen dead once, dead for good */
        }
    }
    w->verified++;
}

static void *race_writer(void *arg) {
    struct worker *w = arg; /* `self` when its pages are there: a signal may come before */
    signals_thread(w);
    uint64_t value = 0;
    while (!stop) {
        uint32_t page = (uint32_t)below(w, one_in(w, 2) ? 32 : RACE_PAGES);
        for (unsigned n = 1 + (unsigned)below(w, 96); n; n--) {
            unsigned i = race_model[page].next;
            race_model[page].last[i] = ++value;
            *(volatile uint64_t *)race_word(page, i) = value;
            race_model[page].next = (i + 1) % RACE_WORDS;
        }
        race_check(w, one_in(w, 2) ? page : (uint32_t)below(w, RACE_PAGES));
        if (one_in(w, 32))
            usleep(200); /* leaves some of the processors to the others */
        atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
        w->ops++;
    }
    for (uint32_t i = 0; i < RACE_PAGES; i++)
        race_check(w, i);
    w->done = true;
    return NULL;
}

static void *race_discarder(void *arg) {
    struct worker *w = arg; /* `self` when its pages are there: a signal may come before */
    signals_thread(w);
    while (!stop) {
        uint32_t n = one_in(w, 4) ? 1 + (uint32_t)below(w, RACE_PAGES) : 1 + (uint32_t)below(w, 20);
        uint32_t first = (uint32_t)below(w, RACE_PAGES - n + 1);
        if (one_in(w, 2)) {
            n = n < 32 ? n : 32;
            first = (uint32_t)below(w, 33 - n);
        }
        char *at = race + first * PAGE;
        uint64_t kind = below(w, 10);
        long e = 0;
        note(w, "race", at, n * PAGE, kind, 0);
        if (kind < 5) {
            e = do_madvise(w, at, n * PAGE, MADV_DONTNEED);
        } else if (kind < 7) {
            e = do_madvise(w, at, n * PAGE, MADV_FREE);
        } else if (kind == 7) {
            e = do_mmap(w, at, n * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED);
            e = e == (long)at ? 0 : e;
        } else if (kind == 8) { /* away to another address: one page is always one mapping */
            e = do_mremap(w, at, PAGE, PAGE, MREMAP_MAYMOVE | 4 /* DONTUNMAP */, NULL);
            if (e > 0) {
                munmap((void *)e, PAGE);
                e = 0;
            }
        } else {
            usleep((useconds_t)below(w, 2000));
        }
        if (e)
            fail_call(w, "a discard was refused", at, e);
        if (one_in(w, 4))
            sched_yield();
        w->ops++;
    }
    w->done = true;
    return NULL;
}

void race_start(void) {
    race = map_managed(RACE_PAGES * PAGE);
    race_model = unmanaged(RACE_PAGES * sizeof *race_model);
    for (unsigned i = 0; i < 2; i++) {
        struct worker *w = worker_new(MAX_WORKERS + i, 0);
        worker[MAX_WORKERS + i] = w;
        pthread_create(&race_thread[i], NULL, i ? race_discarder : race_writer, w);
    }
}

void race_join(void) {
    for (unsigned i = 0; i < 2; i++)
        if (race_thread[i])
            pthread_join(race_thread[i], NULL);
}

const struct op thread_ops[] = {
    {"thread", "threads", 6, op_thread},
    {"signal", "signals", 10, op_signal},
    {"lanes", "lanes", 20, op_lanes},
    {0},
};
