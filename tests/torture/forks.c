/* Children that go on with a copy of a world (--fork).
 *
 * A worker forks at a random moment, while the other threads do whatever they do. Parent and
 * child then both verify, write and discard the same pages, each in its own copy of the model.
 * What becomes of a child is drawn by lot: it ends, is killed (by itself or by its parent), execs,
 * or forks once more and dies at once, so that its child loses its parent before its pager is up.
 *
 * The table of children lies in shared memory; a child writes its number there first of all. A
 * child that dies by SIGKILL must be marked there as doomed; every other end than that and exit
 * status 0 is a finding. Only the first process reaps, and only it kills others: a number that it
 * has not reaped cannot have become somebody else's.
 */
#include "torture.h"
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { SLOTS = 256, LIVE_MAX = 6 };

struct child {
    _Atomic int pid;       /* 0 until the child has written it down */
    _Atomic int parent;    /* who reserved the slot */
    _Atomic bool used;
    _Atomic bool condemned; /* its parent wants it killed */
    _Atomic bool doomed;    /* may die by SIGKILL */
    _Atomic bool given_up;  /* its parent died, perhaps before it forked; no longer counted */
};

static struct {
    _Atomic uint64_t made;
    _Atomic int live, spawned;
    struct child child[SLOTS];
} *table;
static pid_t first_process;

/* A page of which nothing is kept. */
static char *scratch;

void forks_start(void) {
    scratch = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    first_process = getpid();
}

uint64_t forks_made(void) { return table ? table->made : 0; }

static struct child *child_reserve(void) {
    if (atomic_fetch_add(&table->live, 1) < LIVE_MAX)
        for (unsigned i = 0; i < SLOTS; i++) {
            struct child *c = &table->child[i];
            if (!atomic_exchange(&c->used, true)) {
                c->doomed = c->condemned = c->given_up = false;
                c->pid = 0;
                c->parent = getpid();
                table->made++;
                return c;
            }
        }
    table->live--;
    return NULL;
}

static void child_release(struct child *c) {
    if (!c->given_up)
        table->live--;
    c->pid = 0;
    c->parent = 0;
    c->used = false;
}

static struct child *child_find(int pid) {
    for (unsigned i = 0; i < SLOTS; i++)
        if (table->child[i].used && table->child[i].pid == pid)
            return &table->child[i];
    return NULL;
}

static void kill_condemned(void) {
    for (unsigned i = 0; i < SLOTS; i++) {
        struct child *c = &table->child[i];
        if (c->used && c->condemned && c->pid && !c->doomed) {
            c->doomed = true;
            kill(c->pid, SIGKILL);
        }
    }
}

/* What a process reserved and then died: its child is there, or will never be. */
static void give_up_children_of(int pid) {
    for (unsigned i = 0; i < SLOTS; i++) {
        struct child *c = &table->child[i];
        if (c->used && !c->pid && c->parent == pid && !atomic_exchange(&c->given_up, true))
            table->live--;
    }
}

/* The first process reaps everybody: its children, and orphans of theirs. */
bool forks_reap(void) {
    int status, pid;
    if (!table)
        return false;
    kill_condemned();
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        struct child *c = child_find(pid);
        bool killed = c && c->doomed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (!killed && status)
            fail_at(worker[0], "a child ended badly (found: its wait status)", NULL, 0,
                    (uint64_t)status);
        if (c)
            child_release(c);
        else
            table->spawned--;
        give_up_children_of(pid);
    }
    return pid == 0;
}

/* After a finding nobody may go on behind the report's back. */
void forks_kill(void) {
    for (unsigned i = 0; table && getpid() == first_process && i < SLOTS; i++)
        if (table->child[i].used && table->child[i].pid > 0)
            kill(table->child[i].pid, SIGKILL);
}

/* What fork does to the model: wiped pages are zeros, others are not there, no lock is inherited. */
static void inherit(struct world *d) {
    for (uint32_t i = 0; i < d->count; i++) {
        struct region *r = d->region[i];
        for (uint32_t k = 0; k < r->pages; k++) {
            struct page *p = &r->page[k];
            d->locked -= (p->flags & LOCKED) != 0;
            p->flags &= (uint8_t)~LOCKED;
            if (p->flags & WIPE) {
                p->stamp = p->pokes = 0;
                p->flags &= (uint8_t)~LAZY;
            }
        }
    }
    for (uint32_t i = 0; i < d->count;) {
        struct region *r = d->region[i];
        uint32_t k = 0, n = 0;
        while (k < r->pages && !(r->page[k].flags & DONTFORK))
            k++;
        while (k + n < r->pages && r->page[k + n].flags & DONTFORK)
            n++;
        if (!n)
            i++;
        else if (k + n < r->pages && k && !d->unused_count)
            _exit(0); /* no room to describe what is left; rare, and nothing is wrong */
        else
            forget_range(d, (struct range){r, k, n});
    }
}

/* Which ranges a child without libc gets as zeros a pager can only look up after the fact. So whoever made
 * one does not change that before it was heard of: a discard is told after a fork, and waits to be heard.
 * Nor does another thread fork meanwhile, whose child might be taken for this one. */
static pthread_rwlock_t fork_lock = PTHREAD_RWLOCK_INITIALIZER;

static pid_t clone_without_libc(void) {
    pthread_rwlock_wrlock(&fork_lock);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    for (int i = 0; pid > 0 && i < 4; i++)
        syscall(SYS_madvise, scratch, PAGE, MADV_DONTNEED);
    if (pid)
        pthread_rwlock_unlock(&fork_lock);
    return pid;
}

static pid_t fork_with_libc(void) {
    pthread_rwlock_rdlock(&fork_lock);
    pid_t pid = fork();
    if (pid)
        pthread_rwlock_unlock(&fork_lock);
    return pid;
}

/* In a child that was made without libc, libc's fork may wait for ever: for its allocator, which a thread had that is
 * not there. */
static pid_t fork_some_way(struct worker *w, bool *no_libc) {
    *no_libc = w->no_threads || one_in(w, 4);
    return *no_libc ? clone_without_libc() : fork_with_libc();
}

/* Nor does such a child, which may have children, as long as somebody answers for its memory. Takes no lock
 * of libc. */
bool forks_answered_for(void) {
    if (!table)
        return false;
    char text[4096];
    size_t kept = 0;
    bool found = false;
    int fd = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);
    ssize_t n = 0;
    while (fd >= 0 && !found && (n = read(fd, text + kept, sizeof text - kept)) > 0) {
        size_t len = kept + (size_t)n;
        found = memmem(text, len, " um ", 4) != NULL;
        kept = len < 3 ? len : 3;
        memmove(text, text + len - kept, kept);
    }
    if (fd >= 0)
        close(fd);
    return found || fd < 0 || n < 0;
}

int probe(void) {
    opt.threads = 1;
    opt.size = 16u << 20;
    struct worker *w = worker_new(0, opt.size / PAGE);
    worker[0] = w;
    w->no_threads = true;
    w->depth = 1;
    lanes_start();
    signals_start();
    signals_thread(w);
    for (unsigned i = 0; i < 300; i++)
        run_one(w, w->world, true);
    verify_world(w, w->world, true);
    return 0;
}

static _Noreturn void die(struct child *me) {
    me->doomed = true;
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void exec_probe(struct worker *w) {
    char seed[24];
    snprintf(seed, sizeof seed, "%lu", rnd(w));
    execl("/proc/self/exe", "torture", "--probe", "--seed", seed, (char *)NULL);
    _exit(3);
}

static void child_begin(struct worker *w, struct child *me, bool no_libc) {
    me->pid = getpid();
    w->depth++;
    w->no_threads |= no_libc; /* the locks of libc may be held by threads that are not here */
    w->rng = mix(w->rng ^ (uint64_t)getpid());
    w->serial += (uint64_t)(me - table->child + 1) << 34;
    pthread_rwlock_init(&fd_lock, NULL);
    pthread_rwlock_init(&fork_lock, NULL);
    inherit(w->world);
    for (unsigned i = 0; i < SHARED_WORLDS; i++)
        inherit(shared[i]);
}

static _Noreturn void child_main(struct worker *w, struct child *me, bool no_libc) {
    child_begin(w, me, no_libc);
    uint64_t fate = below(w, 8);
    while (fate == 2) { /* the grandchild loses its parent at once */
        struct child *next = child_reserve();
        pid_t pid = next ? fork_some_way(w, &no_libc) : -1;
        if (pid)
            die(me);
        me = next;
        child_begin(w, me, no_libc);
        fate = below(w, 8);
    }
    if (fate == 0)
        _exit(0);
    if (fate == 1)
        die(me);
    if (fate == 3)
        exec_probe(w);
    unsigned ops = (unsigned)below(w, 200), killed_at = fate == 4 ? (unsigned)below(w, 200) : ~0u;
    if (one_in(w, 2))
        verify_world(w, w->world, true);
    for (unsigned i = 0; i < ops; i++) {
        if (i == killed_at)
            die(me);
        run_one(w, one_in(w, 4) ? shared[below(w, SHARED_WORLDS)] : w->world, false);
    }
    verify_world(w, w->world, true);
    for (unsigned i = 0; i < SHARED_WORLDS; i++)
        verify_world(w, shared[i], true);
    _exit(0);
}

/* A program started the modern way: the child shares this address space until it execs. */
static bool op_spawn(struct worker *w, struct world *d) {
    char seed[24], *argv[] = {"torture", "--probe", "--seed", seed, NULL};
    pid_t pid;
    if (!table || d->shared || w->depth || w->no_threads)
        return false;
    if (table->spawned > 2)
        return false;
    table->spawned++;
    table->made++;
    snprintf(seed, sizeof seed, "%lu", rnd(w));
    note(w, "spawn", NULL, 0, 0, 0);
    int e = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ);
    if (e)
        fail_call(w, "posix_spawn refused", NULL, -e);
    return true;
}

static void lock_shared(void) {
    for (unsigned i = 0; i < SHARED_WORLDS; i++)
        pthread_rwlock_wrlock(&shared_lock[i]);
}

static void unlock_shared(void) {
    for (unsigned i = 0; i < SHARED_WORLDS; i++)
        pthread_rwlock_unlock(&shared_lock[i]);
}

static bool op_fork(struct worker *w, struct world *d) {
    if (!table || d->shared || w->depth >= 3)
        return false;
    struct child *c = child_reserve();
    if (!c)
        return false;
    bool first = w->depth == 0, no_libc = false;
    if (first)
        lock_shared(); /* so that the child's copies of them are whole */
    note(w, "fork", NULL, 0, (uint64_t)(c - table->child), 0);
    pid_t pid = fork_some_way(w, &no_libc);
    if (pid == 0)
        child_main(w, c, no_libc || w->no_threads);
    if (first)
        unlock_shared();
    if (pid < 0)
        fail_call(w, "fork refused", NULL, -errno);
    if (one_in(w, 2))
        disturb(w, d); /* break the sharing from this side */
    if (one_in(w, 4))
        c->condemned = true;
    return true;
}

const struct op fork_ops[] = {
    {"fork", "fork", 6, op_fork},
    {"spawn", "fork", 1, op_spawn},
    {0},
};
