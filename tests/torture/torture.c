/* Options, the clock, the watchdog. torture.h says what the whole does. */
#include "torture.h"
#include <getopt.h>
#include <sys/resource.h>

pthread_rwlock_t *shared_lock;
pthread_rwlock_t fd_lock;

/* ---- which operations ------------------------------------------------------------------- */

enum { MAX_OPS = 64 };
static struct op chosen[MAX_OPS];
static _Atomic uint64_t done_count[MAX_OPS];
static unsigned chosen_count, total_weight, inside_weight;
static const char *only_groups, *without_groups;

static bool in_list(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; p && *p; p = strchr(p, ','), p = p ? p + 1 : NULL)
        if (!strncmp(p, word, n) && (p[n] == 0 || p[n] == ','))
            return true;
    return false;
}

bool group_enabled(const char *group) {
    return (!only_groups || in_list(only_groups, group)) && !in_list(without_groups, group);
}

/* Operations that start threads or processes are left out inside another operation. */
static bool outside_only(const struct op *o) {
    return !strcmp(o->group, "threads") || !strcmp(o->group, "fork") || !strcmp(o->group, "close");
}

static const struct op *const tables[] = {world_ops, call_ops, thread_ops, fork_ops};

void ops_select(const char *only, const char *without) {
    only_groups = only;
    without_groups = without;
    for (int outside = 0; outside < 2; outside++) /* those for inside first */
        for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
            for (const struct op *o = tables[t]; o->name; o++)
                if (outside_only(o) == outside && group_enabled(o->group)) {
                    chosen[chosen_count++] = *o;
                    total_weight += o->weight;
                    inside_weight += outside ? 0 : o->weight;
                }
}

static bool known_groups(const char *list) {
    char copy[512], *save = NULL;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *g = strtok_r(copy, ",", &save); g; g = strtok_r(NULL, ",", &save)) {
        bool known = !strcmp(g, "race");
        for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
            for (const struct op *o = tables[t]; o->name; o++)
                known |= !strcmp(o->group, g);
        if (!known) {
            fprintf(stderr, "torture: no group of operations is called '%s' (see --list)\n", g);
            return false;
        }
    }
    return true;
}

void ops_list(void) {
    printf("%-10s %-12s weight\n%-10s (two threads of its own)\n", "group", "operation", "race");
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct op *o = tables[t]; o->name; o++)
            printf("%-10s %-12s %u\n", o->group, o->name, o->weight);
}

void run_one(struct worker *w, struct world *d, bool inside) {
    unsigned weight = inside ? inside_weight : total_weight;
    if (!weight) /* only groups with threads of their own were picked */
        usleep(1000);
    for (unsigned tries = 0; weight && tries < 20; tries++) {
        uint64_t x = below(w, weight);
        const struct op *o = chosen;
        while (x >= o->weight)
            x -= o++->weight;
        if (o->run(w, d)) {
            w->ops++;
            done_count[o - chosen]++;
            atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
            return;
        }
        w->refused++;
    }
    atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
}

/* ---- workers ---------------------------------------------------------------------------- */

/* One turn in eight goes to a world that all workers use in turn; half of those only read it,
 * together with whoever else does, and so fault on the same pages at the same time. */
static void turn(struct worker *w) {
    if (!one_in(w, 8)) {
        run_one(w, w->world, false);
        return;
    }
    unsigned i = (unsigned)below(w, SHARED_WORLDS);
    struct range x;
    if (one_in(w, 2)) {
        pthread_rwlock_rdlock(&shared_lock[i]);
        for (unsigned k = 0; k < 4; k++)
            if (pick_range(w, shared[i], 128, &x))
                check_range(w, x, false);
        pthread_rwlock_unlock(&shared_lock[i]);
    } else {
        pthread_rwlock_wrlock(&shared_lock[i]);
        for (unsigned k = 0; k < 4; k++)
            run_one(w, shared[i], true);
        pthread_rwlock_unlock(&shared_lock[i]);
    }
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    signals_thread(w);
    while (!stop && (!opt.ops || w->ops < opt.ops))
        turn(w);
    verify_world(w, w->world, true);
    w->done = true;
    return NULL;
}

/* Ends the run when its time is over; fails it when a worker has stood still for too long, which
 * is what a wake-up that was missed looks like. */
static void watch(void) {
    uint64_t seen[MAX_WORKERS + 2] = {0}, since[MAX_WORKERS + 2], begin = now_ns(), ended = begin;
    for (unsigned i = 0; i < MAX_WORKERS + 2; i++)
        since[i] = begin;
    for (;;) {
        bool all_done = true;
        usleep(20000);
        if (!opt.ops && now_ns() - begin > opt.seconds * 1000000000ull)
            stop = true;
        bool children = forks_reap();
        for (unsigned i = 0; i < MAX_WORKERS + 2; i++) {
            struct worker *w = worker[i];
            if (!w || w->done)
                continue;
            all_done &= i >= MAX_WORKERS;
            if (w->progress != seen[i]) {
                seen[i] = w->progress;
                since[i] = now_ns();
            } else if (now_ns() - since[i] > opt.stall * 1000000000ull) {
                tell_stall(since);
                fail_at(w, "a thread stands still (expected: at most so many seconds)", w->at,
                        opt.stall, (now_ns() - since[i]) / 1000000000);
            }
        }
        if (!all_done)
            ended = now_ns();
        else if (!children)
            break;
        else if (now_ns() - ended > opt.stall * 1000000000ull)
            fail_at(worker[0], "a child process stands still", NULL, 0, 0);
    }
    stop = true;
}

/* ---- options ---------------------------------------------------------------------------- */

static _Noreturn void usage(int status) {
    fputs("usage: torture [--seconds N | --ops N] [--seed N] [--size SIZE] [--threads N]\n"
          "               [--mode GROUP,...] [--without GROUP,...] [--list] [--fork] [--close-fds]\n"
          "               [--stall SECONDS] [--tmp DIR] [--lenient-mremap] [--abort] [--counts]\n"
          "               [--half]\n"
          "\n"
          "Does to memory all that the kernel allows, in many threads, and compares every byte\n"
          "with a model. Exit status 0: no mismatch; 1: a mismatch, told on stderr.\n"
          "\n"
          "  --ops N           operations of each worker, instead of a time\n"
          "  --size SIZE       memory in use by all together, as 64M (default 256M)\n"
          "  --mode, --without groups of operations, see --list\n"
          "  --close-fds       close all descriptors from time to time\n"
          "  --stall SECONDS   a thread without progress for so long is a failure (60)\n"
          "  --half            contents that compress to half, and no others, so that what is kept\n"
          "                    of them takes much of a limit\n"
          "  --lenient-mremap  let mremap of a mapping that was never split fail with EFAULT\n",
          status ? stderr : stdout);
    exit(status);
}

static uint64_t number(const char *what, const char *s, bool is_size) {
    char *end;
    errno = 0;
    uint64_t n = strtoull(s, &end, 0);
    unsigned shift = 0;
    if (is_size && *end)
        shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0, end += shift != 0;
    if (errno || *end || end == s) {
        fprintf(stderr, "torture: %s: '%s' is not a %s\n", what, s,
                is_size ? "size, such as 64M" : "number");
        exit(2);
    }
    return n << shift;
}

int main(int argc, char **argv) {
    enum { LIST = 256, FORK, CLOSE, LENIENT, ABORT, COUNTS, STALL, TMP, OPS, WITHOUT, PROBE, HALVES };
    static const struct option long_options[] = {
        {"seconds", 1, 0, 's'}, {"seed", 1, 0, 'r'},        {"size", 1, 0, 'm'},
        {"threads", 1, 0, 't'}, {"mode", 1, 0, 'o'},        {"without", 1, 0, WITHOUT},
        {"ops", 1, 0, OPS},     {"list", 0, 0, LIST},       {"fork", 0, 0, FORK},
        {"help", 0, 0, 'h'},    {"close-fds", 0, 0, CLOSE}, {"lenient-mremap", 0, 0, LENIENT},
        {"counts", 0, 0, COUNTS},
        {"abort", 0, 0, ABORT}, {"stall", 1, 0, STALL},     {"tmp", 1, 0, TMP},
        {"probe", 0, 0, PROBE}, {"half", 0, 0, HALVES},     {0}};
    const char *only = NULL, *without = NULL;
    bool probing = false, counts = false;
    opt = (struct options){.seconds = 10, .threads = 4, .size = 256u << 20, .stall = 60,
                           .tmp = "/tmp", .seed = now_ns() % 1000000007};
    for (int c; (c = getopt_long(argc, argv, "h", long_options, NULL)) != -1;)
        switch (c) {
        case 's': opt.seconds = (unsigned)number("--seconds", optarg, false); break;
        case 'r': opt.seed = number("--seed", optarg, false); break;
        case 'm': opt.size = number("--size", optarg, true); break;
        case 't': opt.threads = (unsigned)number("--threads", optarg, false); break;
        case 'o': only = optarg; break;
        case WITHOUT: without = optarg; break;
        case OPS: opt.ops = number("--ops", optarg, false); break;
        case LIST: ops_list(); return 0;
        case FORK: opt.fork = true; break;
        case CLOSE: opt.close_fds = true; break;
        case LENIENT: opt.lenient = true; break;
        case COUNTS: counts = true; break;
        case ABORT: opt.abort = true; break;
        case STALL: opt.stall = (unsigned)number("--stall", optarg, false); break;
        case TMP: opt.tmp = optarg; break;
        case PROBE: probing = true; break;
        case HALVES: opt.half = true; break;
        case 'h': usage(0);
        default: usage(2);
        }
    if (optind < argc)
        usage(2);
    if (opt.threads < 1 || opt.threads > MAX_WORKERS || opt.size < 1u << 20) {
        fprintf(stderr, "torture: --threads 1 to %u, --size at least 1M\n", MAX_WORKERS);
        return 2;
    }
    if ((only && !known_groups(only)) || (without && !known_groups(without)))
        return 2;
    ops_select(only, without);
    if (!total_weight && !group_enabled("race")) {
        fputs("torture: no operation is left\n", stderr);
        return 2;
    }

    pthread_rwlockattr_t prefer;
    pthread_rwlockattr_init(&prefer);
    pthread_rwlockattr_setkind_np(&prefer, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&fd_lock, &prefer);
    if (probing)
        return probe();
    printf("torture: seed %lu seconds %u threads %u size %zuM%s%s\n", opt.seed, opt.seconds,
           opt.threads, opt.size >> 20, opt.fork ? " fork" : "", opt.close_fds ? " close-fds" : "");
    fflush(stdout);

    shared_lock = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t pages = opt.size / PAGE;
    for (unsigned i = 0; i < SHARED_WORLDS; i++) {
        pthread_rwlock_init(&shared_lock[i], &prefer);
        shared[i] = world_new(pages / 10, true);
    }
    for (unsigned i = 0; i < opt.threads; i++)
        worker[i] = worker_new(i, pages * 7 / 10 / opt.threads);
    brk_start();
    lanes_start();
    if (opt.fork)
        forks_start();
    signals_start();
    if (group_enabled("race"))
        race_start();
    for (unsigned i = 0; i < opt.threads; i++)
        if (pthread_create(&worker[i]->thread, NULL, worker_main, worker[i])) {
            perror("torture: pthread_create");
            return 2;
        }
    watch();
    for (unsigned i = 0; i < opt.threads; i++)
        pthread_join(worker[i]->thread, NULL);
    race_join();
    for (unsigned i = 0; i < SHARED_WORLDS; i++)
        verify_world(worker[0], shared[i], true);
    lanes_finish();

    uint64_t ops = 0, verified = 0, written = 0;
    for (unsigned i = 0; i < opt.threads; i++)
        ops += worker[i]->ops, verified += worker[i]->verified, written += worker[i]->written;
    uint64_t races = worker[MAX_WORKERS] ? worker[MAX_WORKERS]->ops : 0;
    for (unsigned i = 0; counts && i < chosen_count; i++)
        printf("  %-12s %lu\n", chosen[i].name, done_count[i]);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("torture: ok, seed %lu: %lu operations, %lu pages verified, %lu written, %lu races, "
           "%lu signals, %lu forks, peak %ld MiB\n",
           opt.seed, ops, verified, written, races, signals_seen(), forks_made(),
           u.ru_maxrss >> 10);
    return 0;
}
