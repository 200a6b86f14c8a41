/* Operations in which the kernel, not the program, reads and writes the pages.
 *
 * A buffer that was evicted is then touched inside a system call: the call must wait for it, never
 * fail and never see zeros. Where a whole page arrives somewhere else, its stamp has moved there;
 * where bytes arrive unaligned, they are compared in a buffer outside managed memory.
 *
 * Descriptors live within one operation, under `fd_lock`, because --close-fds closes all of them
 * at once from time to time, as daemons do at their start.
 */
#include "torture.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <sys/utsname.h>

enum { PIPE_PAGES = 16 };

static void fds_use(void) { pthread_rwlock_rdlock(&fd_lock); }
static void fds_done(void) { pthread_rwlock_unlock(&fd_lock); }

/* A signal may cut a call short: these go on until everything has passed. */
static void move_all(struct worker *w, const char *what, int fd, char *p, size_t n, bool out) {
    while (n) {
        ssize_t k = out ? write(fd, p, n) : read(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            fail_call(w, what, p, k < 0 ? -errno : 0);
        p += k;
        n -= (size_t)k;
    }
}

static bool make_pipe(int fd[2]) { return pipe2(fd, O_CLOEXEC) == 0; }

/* What pages [off, off + len) of the range hold, written to `w->scratch`. */
static void expect_bytes(struct worker *w, struct range x, size_t off, size_t len) {
    for (size_t i = off / PAGE; i * PAGE < off + len; i++)
        content_fill((uint64_t *)(w->scratch + i * PAGE), range_page(x)[i].stamp,
                     range_page(x)[i].pokes);
}

/* `len` bytes that came out of range x at `off` are in w->expect: are they right? */
static void check_bytes(struct worker *w, const char *what, struct range x, size_t off,
                        size_t len) {
    expect_bytes(w, x, off, len);
    if (memcmp(w->scratch + off, w->expect, len)) {
        size_t i = 0;
        while (w->scratch[off + i] == w->expect[i])
            i++;
        uint64_t want = 0, got = 0;
        size_t rest = len - i < 8 ? len - i : 8;
        memcpy(&want, w->scratch + off + i, rest);
        memcpy(&got, w->expect + i, rest);
        fail_at(w, what, range_addr(x) + off + i, want, got);
    }
}

static void landed(struct range to, struct range from) {
    for (uint32_t i = 0; i < to.n; i++) {
        struct page *p = &range_page(to)[i];
        p->stamp = range_page(from)[i].stamp;
        p->pokes = range_page(from)[i].pokes;
        p->flags &= (uint8_t)~LAZY;
    }
}

static bool pick_two(struct worker *w, struct world *d, uint32_t max, struct range *from,
                     struct range *to) {
    if (!pick_readable(w, d, max, from) || !pick_writable(w, d, from->n, to) ||
        overlap(*from, *to))
        return false;
    from->n = to->n;
    return true;
}

static void note_two(struct worker *w, const char *op, struct range from, struct range to) {
    note(w, op, range_addr(from), range_len(from), (uint64_t)range_addr(to), 0);
    note(w, op, range_addr(to), range_len(to), (uint64_t)range_addr(from), 1);
}

static bool op_pipe(struct worker *w, struct world *d) {
    struct range a, b;
    int fd[2];
    if (!pick_two(w, d, PIPE_PAGES, &a, &b))
        return false;
    fds_use();
    if (make_pipe(fd)) {
        note_two(w, "pipe", a, b);
        move_all(w, "write(pipe) failed", fd[1], range_addr(a), range_len(a), true);
        move_all(w, "read(pipe) failed", fd[0], range_addr(b), range_len(b), false);
        landed(b, a);
        close(fd[0]);
        close(fd[1]);
    }
    fds_done();
    return true;
}

static bool op_pipe_bytes(struct worker *w, struct world *d) {
    struct range a;
    int fd[2];
    if (!pick_readable(w, d, PIPE_PAGES - 1, &a))
        return false;
    size_t off = below(w, PAGE), len = 1 + below(w, range_len(a) - off);
    fds_use();
    if (make_pipe(fd)) {
        note(w, "pipe bytes", range_addr(a) + off, len, off, 0);
        move_all(w, "write(pipe) failed", fd[1], range_addr(a) + off, len, true);
        move_all(w, "read(pipe) failed", fd[0], w->expect, len, false);
        check_bytes(w, "bytes through a pipe", a, off, len);
        close(fd[0]);
        close(fd[1]);
    }
    fds_done();
    return true;
}

static bool op_vectors(struct worker *w, struct world *d) {
    struct range from[8], to;
    struct iovec out[8], in[8];
    int fd[2];
    uint32_t n = 0;
    if (!pick_writable(w, d, 8, &to))
        return false;
    while (n < to.n) {
        if (!pick_readable(w, d, 1, &from[n]) || overlap(from[n], to))
            return false;
        n++;
    }
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (struct iovec){range_addr(from[i]), PAGE};
        in[i] = (struct iovec){range_addr(to) + i * PAGE, PAGE};
        note(w, "writev from", out[i].iov_base, PAGE, (uint64_t)in[i].iov_base, 0);
    }
    fds_use();
    if (make_pipe(fd)) {
        note(w, "readv to", range_addr(to), range_len(to), 0, 0);
        /* both calls pass whole pages within the pipe's capacity, so neither is ever cut short */
        ssize_t e = writev(fd[1], out, (int)n);
        if (e != (ssize_t)(n * PAGE))
            fail_call(w, "writev(pipe) failed", out[0].iov_base, e < 0 ? -errno : e);
        e = readv(fd[0], in, (int)n);
        if (e != (ssize_t)(n * PAGE))
            fail_call(w, "readv(pipe) failed", in[0].iov_base, e < 0 ? -errno : e);
        for (uint32_t i = 0; i < n; i++)
            landed((struct range){to.r, to.first + i, 1}, from[i]);
        close(fd[0]);
        close(fd[1]);
    }
    fds_done();
    return true;
}

/* Out to a file and back in, sometimes past the page cache: the device then reads the frames
 * themselves while they are pinned. */
static bool op_file(struct worker *w, struct world *d) {
    struct range a, b;
    if (!pick_two(w, d, 256, &a, &b))
        return false;
    bool direct = one_in(w, 3);
    fds_use();
    int fd = open(opt.tmp, O_TMPFILE | O_RDWR | O_CLOEXEC | (direct ? O_DIRECT : 0), 0600);
    if (fd < 0 && direct)
        fd = open(opt.tmp, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) {
        note_two(w, direct ? "file direct" : "file", a, b);
        off_t done = 0, len = (off_t)range_len(a);
        while (done < len) {
            ssize_t k = pwrite(fd, range_addr(a) + done, (size_t)(len - done), done);
            if (k <= 0 && errno == ENOSPC)
                break;
            if (k <= 0)
                fail_call(w, "pwrite failed", range_addr(a) + done, k < 0 ? -errno : 0);
            done += k;
        }
        off_t back = 0;
        while (done == len && back < len) {
            ssize_t k = pread(fd, range_addr(b) + back, (size_t)(len - back), back);
            if (k <= 0)
                fail_call(w, "pread failed", range_addr(b) + back, k < 0 ? -errno : 0);
            back += k;
        }
        if (back == len)
            landed(b, a);
        close(fd);
    }
    fds_done();
    return true;
}

static bool op_self_vm(struct worker *w, struct world *d) {
    struct range a, b;
    if (!pick_two(w, d, 256, &a, &b))
        return false;
    struct iovec from = {range_addr(a), range_len(a)}, to = {range_addr(b), range_len(b)};
    note_two(w, "self vm", a, b);
    ssize_t n = one_in(w, 2) ? process_vm_readv(getpid(), &to, 1, &from, 1, 0)
                             : process_vm_writev(getpid(), &from, 1, &to, 1, 0);
    if (n < 0 && (errno == EPERM || errno == ENOSYS))
        return false;
    if (n != (ssize_t)range_len(a))
        fail_call(w, "process_vm_readv/writev on self failed", from.iov_base, n < 0 ? -errno : n);
    landed(b, a);
    return true;
}

static bool op_getrandom(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_writable(w, d, 1, &x))
        return false;
    char *at = range_addr(x) + below(w, PAGE - 256);
    note(w, "getrandom", at, 256, 0, 0);
    if (getrandom(at, 256, 0) != 256)
        fail_call(w, "getrandom failed", at, -errno);
    memcpy(w->scratch, at, 256);
    uint64_t any = 0;
    for (unsigned i = 0; i < 256; i++)
        any |= (uint8_t)w->scratch[i];
    sched_yield();
    if (!any || memcmp(w->scratch, at, 256))
        fail_at(w, "what getrandom wrote did not stay", at, 1, any);
    write_range(w, x);
    return true;
}

/* The pipe holds the frames themselves. Whatever becomes of the range meanwhile, the reader must
 * get what was in it: a frame that is evicted and used again would carry foreign bytes. */
static bool op_vmsplice(struct worker *w, struct world *d) {
    struct range a;
    int fd[2];
    if (!pick_readable(w, d, PIPE_PAGES, &a))
        return false;
    check_range(w, a, true);
    struct page was[PIPE_PAGES];
    memcpy(was, range_page(a), a.n * sizeof *was);
    fds_use();
    if (make_pipe(fd)) {
        struct iovec v = {range_addr(a), range_len(a)};
        note(w, "vmsplice", v.iov_base, v.iov_len, 0, 0);
        ssize_t got = vmsplice(fd[1], &v, 1, 0);
        if (got <= 0)
            fail_call(w, "vmsplice failed", v.iov_base, -errno);
        if (one_in(w, 2) && !a.r->brk) {
            bool locked = false;
            for (uint32_t i = 0; i < a.n; i++)
                locked |= range_page(a)[i].flags & LOCKED;
            long e = locked ? 1 : do_madvise(w, v.iov_base, v.iov_len, MADV_DONTNEED);
            note(w, "dontneed", v.iov_base, v.iov_len, 0, (uint64_t)e);
            for (uint32_t i = 0; i < a.n && !e; i++)
                range_page(a)[i].stamp = range_page(a)[i].pokes = 0;
        }
        for (unsigned k = below(w, 4); k; k--) { /* pressure, away from the spliced range */
            struct range x;
            if (pick_readable(w, d, 256, &x) && !overlap(x, a))
                check_range(w, x, true);
            if (pick_writable(w, d, 256, &x) && !overlap(x, a))
                write_range(w, x);
        }
        move_all(w, "read(pipe) after vmsplice failed", fd[0], w->scratch, (size_t)got, false);
        for (size_t i = 0; i * PAGE < (size_t)got; i++) {
            content_fill((uint64_t *)w->expect, was[i].stamp, was[i].pokes);
            size_t n = (size_t)got - i * PAGE < PAGE ? (size_t)got - i * PAGE : PAGE;
            if (memcmp(w->expect, w->scratch + i * PAGE, n))
                fail_page(w, "the pipe's reader got other bytes than were spliced",
                          range_addr(a) + i * PAGE, &was[i], w->scratch + i * PAGE);
        }
        close(fd[0]);
        close(fd[1]);
    }
    fds_done();
    return true;
}

/* A call into memory that the program may not touch gives EFAULT, under a pager too. */
static bool op_efault(struct worker *w, struct world *d) {
    struct range x;
    int fd[2];
    if (!pick_range(w, d, 1, &x) || writable(range_page(x)))
        return false;
    fds_use();
    if (make_pipe(fd)) {
        bool out = !readable(range_page(x));
        note(w, "efault", range_addr(x), PAGE, out, 0);
        if (write(fd[1], w->scratch, 64) != 64)
            fail_call(w, "write(pipe) failed", w->scratch, -errno);
        ssize_t e = out ? write(fd[1], range_addr(x), 64) : read(fd[0], range_addr(x), 64);
        if (e >= 0 || errno != EFAULT)
            fail_call(w, "a call into a protected page did not give EFAULT", range_addr(x),
                      e < 0 ? -errno : e);
        close(fd[0]);
        close(fd[1]);
    }
    fds_done();
    return true;
}

/* A futex word in a managed page that was not touched for a while: WAIT on a value that is not
 * there must return at once, WAKE finds nobody. (threads.c has the ones that do wait.) */
static bool op_futex(struct worker *w, struct world *d) {
    struct range x;
    if (!pick_writable(w, d, 1, &x))
        return false;
    uint32_t *word = (uint32_t *)(range_addr(x) + 8 * below(w, WORDS));
    note(w, "futex", word, 4, 0, 0);
    uint32_t value = *word;
    struct timespec t = {0, 1000};
    long e = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value + 1, &t, NULL, 0);
    if (e != -1 || errno != EAGAIN)
        fail_call(w, "futex wait on another value", word, e < 0 ? -errno : e);
    e = syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    if (e != 0)
        fail_call(w, "futex wake of nobody", word, e < 0 ? -errno : e);
    write_range(w, x);
    return true;
}

/* Small structures that the kernel writes and reads in managed memory: a system call that returns
 * a result through a pointer, and one that takes its argument there. */
static bool op_structs(struct worker *w, struct world *d) {
    struct range x;
    struct utsname right;
    sigset_t none, was;
    if (!pick_writable(w, d, 1, &x))
        return false;
    char *at = range_addr(x) + 8 * below(w, (PAGE - sizeof right) / 8);
    note(w, "structs", at, sizeof right, 0, 0);
    uname(&right);
    long e = syscall(SYS_uname, at);
    if (e || memcmp(at, &right, offsetof(struct utsname, machine)))
        fail_call(w, "uname into a managed page", at, e ? -errno : 0);
    sigemptyset(&none);
    sigaddset(&none, SIGUSR2);
    memcpy(at, &none, 8);
    e = syscall(SYS_rt_sigprocmask, SIG_BLOCK, at, &was, 8);
    if (e)
        fail_call(w, "rt_sigprocmask from a managed page", at, -errno);
    write_range(w, x);
    return true;
}

/* All descriptors beyond stderr, at once: the pager's would be among them. */
static bool op_close(struct worker *w, struct world *d) {
    (void)d;
    if (!opt.close_fds)
        return false;
    pthread_rwlock_wrlock(&fd_lock);
    note(w, "close_range", NULL, 0, 0, 0);
    if (one_in(w, 2))
        syscall(SYS_close_range, 3u, ~0u, 0u);
    else
        for (int fd = 3; fd < 256; fd++)
            syscall(SYS_close, fd);
    pthread_rwlock_unlock(&fd_lock);
    return true;
}

const struct op call_ops[] = {
    {"pipe", "calls", 12, op_pipe},
    {"pipe_bytes", "calls", 12, op_pipe_bytes},
    {"vectors", "calls", 10, op_vectors},
    {"file", "file", 3, op_file},
    {"self_vm", "calls", 8, op_self_vm},
    {"getrandom", "calls", 8, op_getrandom},
    {"efault", "calls", 4, op_efault},
    {"futex", "calls", 6, op_futex},
    {"structs", "calls", 6, op_structs},
    {"vmsplice", "vmsplice", 8, op_vmsplice},
    {"close_range", "close", 2, op_close},
    {0},
};
