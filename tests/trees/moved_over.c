/* Memory that the parent moves over other memory while its copy is still looked after: the copy has what
 * was in both places when it was made.
 *
 *   moved_over SIZE     MiB to write, so that all else is evicted
 *
 * A copy made by a bare clone is looked after for a while when it is taken for the child of a fork that
 * another thread has announced. Here it always is (who waits for a lock of the C library waits without end,
 * and nothing else here does):
 *
 *   main      locks a file ───────────────────────────── clones ─ moves ─ unlocks the file
 *   flusher      flushes all files: waits, with their list locked
 *   forker           forks: announces it, then waits for that list ─────────────── forks
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SPAN = 64 * PAGE, ROUNDS = 3 };

/* What is in the source when it is moved. */
enum { STORED, READ_AGAIN, WRITTEN_AGAIN, KINDS };

static char *map(size_t size) {
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return at;
}

static volatile pid_t flushes, forks;

static void *flush_all(void *none) {
    flushes = gettid();
    fflush(NULL);
    return none;
}

static void *fork_once(void *none) {
    forks = gettid();
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    return none;
}

/* Whether a thread waits in futex(2) without a time. No FILE: their list is what is locked here. */
static int waits(pid_t id) {
    char name[64], text[256] = "";
    unsigned long number = 0, timeout = 1;
    snprintf(name, sizeof name, "/proc/self/task/%d/syscall", (int)id);
    int fd = open(name, O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        exit(2);
    close(fd);
    return sscanf(text, "%lu %*x %*x %*x %lx", &number, &timeout) == 2 && number == SYS_futex && timeout == 0;
}

/* Starts a thread, and waits until it waits for a lock. */
static pthread_t start(void *(*code)(void *), volatile pid_t *id) {
    pthread_t thread;
    *id = 0;
    if (pthread_create(&thread, NULL, code, NULL))
        exit(2);
    while (*id == 0 || !waits(*id))
        usleep(1000);
    return thread;
}

/* Writes memory until nothing of `span` is there, for so many seconds about; whether nothing is. */
static int evict(char *span, char *memory, size_t size, time_t most) {
    static unsigned char there[KINDS * SPAN / PAGE];
    time_t end = time(NULL) + most;
    for (int times = 0; time(NULL) <= end; times++) {
        for (size_t i = 0; i < size; i += 64)
            memory[i] = (char)(i / 64 * 7 + (size_t)times);
        mincore(span, KINDS * SPAN, there);
        if (!memchr(there, 1, sizeof there))
            return 1;
    }
    return 0;
}

static void must_evict(char *span, char *memory, size_t size) {
    if (!evict(span, memory, size, 15)) {
        puts("not evicted");
        exit(2);
    }
}

static int holds(const char *span, int what) {
    for (int i = 0; i < SPAN; i++)
        if (span[i] != (char)what)
            return 0;
    return 1;
}

/* What is wrong in a copy: a bit for each place that does not have what was there. */
static int wrong_in_copy(const char *from, const char *to) {
    int wrong = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        wrong |= !holds(from + kind * SPAN, kind + 1) << kind;
        wrong |= !holds(to + kind * SPAN, 0) << (KINDS + kind);
    }
    return wrong;
}

static int wrong_after_moves(char *memory, size_t size) {
    char *from = map(KINDS * SPAN), *to = map(KINDS * SPAN), byte;
    pthread_t flusher, forker;
    int moved[2], status;
    for (int kind = 0; kind < KINDS; kind++)
        memset(from + kind * SPAN, kind + 1, SPAN);
    must_evict(from, memory, size);
    holds(from + READ_AGAIN * SPAN, READ_AGAIN + 1);
    memset(from + WRITTEN_AGAIN * SPAN, WRITTEN_AGAIN + 1, SPAN);

    flockfile(stdout);
    if (pipe(moved))
        exit(2);
    flusher = start(flush_all, &flushes);
    forker = start(fork_once, &forks);
    pid_t copy = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (copy == 0) {
        close(moved[1]); /* so that it ends with its parent, if that ends before its time */
        _exit(read(moved[0], &byte, 1) == 1 ? wrong_in_copy(from, to) : 2);
    }
    for (int kind = 0; kind < KINDS; kind++)
        mremap(from + kind * SPAN, SPAN, SPAN, MREMAP_MAYMOVE | MREMAP_FIXED, to + kind * SPAN);
    funlockfile(stdout);
    pthread_join(flusher, NULL);
    pthread_join(forker, NULL);
    evict(to, memory, size, 1); /* what the copy has too may stay */
    if (write(moved[1], "m", 1) != 1 || waitpid(copy, &status, 0) != copy)
        exit(2);
    must_evict(to, memory, size);
    for (int kind = 0; kind < KINDS; kind++)
        if (!holds(to + kind * SPAN, kind + 1))
            return 1 << 8;
    munmap(to, KINDS * SPAN);
    close(moved[0]);
    close(moved[1]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1 << 9;
}

int main(int argc, char **argv) {
    size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20;
    char *memory = map(size);
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++)
        wrong |= wrong_after_moves(memory, size);
    printf(wrong ? "wrong: %x\n" : "whole\n", wrong);
    return wrong != 0;
}
