/* Threads that move ranges of memory to where other threads have just moved theirs away.
 *
 * Each thread has a few pages, moves them to an address of the kernel's choice, again and again,
 * and now and then looks whether they hold what it wrote; what is not looked at gets evicted. The
 * kernel tells of a move in parts (moved, then gone from the old place), and while one thread waits
 * for its turn to tell the second part, another's pages may already lie there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 4, RANGES = 400, PAGE = 4096, PAGES = 8, STEPS = 20000 };

static char *map(size_t bytes) {
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return p;
}

/* What a word of a range is: three of four are zeros, so that pages compress. */
static uint64_t word(uint64_t seed, size_t at) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + at + 1;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    return at % 4 ? 0 : x;
}

static void fill(char *range, size_t pages, uint64_t seed) {
    for (size_t i = 0; i < pages * PAGE / 8; i++)
        ((uint64_t *)range)[i] = word(seed, i);
}

static void check(const char *range, size_t pages, uint64_t seed, const char *what) {
    for (size_t i = 0; i < pages * PAGE / 8; i++) {
        uint64_t found = ((const volatile uint64_t *)range)[i];
        if (found != word(seed, i)) {
            printf("%s of seed %lu: word %zu is %lx\n", what, (unsigned long)seed, i,
                   (unsigned long)found);
            fflush(stdout);
            _exit(1);
        }
    }
}

/* A page between two ranges keeps them from becoming one mapping. */
static char *apart(void) {
    char *p = map((PAGES + 1) * PAGE);
    mprotect(p + PAGES * PAGE, PAGE, PROT_NONE);
    return p;
}

static atomic_bool done;

/* Binds the thread to the first or the last CPU it may use; `slow`: it runs when nobody else does. */
static void place(bool last, bool slow) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    int cpu = last ? CPU_SETSIZE - 1 : 0;
    while (!CPU_ISSET(cpu, &all))
        cpu += last ? -1 : 1;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    if (slow)
        sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
}

/* Leaves the slow movers so little of their CPU that each part of a move is told late. */
static void *spinner(void *unused) {
    place(true, false);
    for (uint64_t n = 0; !done; n++)
        if (n % (1 << 20) == 0)
            usleep(300);
    return unused;
}

static void *mover(void *number) {
    uint64_t rng = (uint64_t)(uintptr_t)number * 77 + 1;
    bool slow = (uintptr_t)number % 2;
    char *range[RANGES];
    uint64_t seed[RANGES];
    for (int i = 0; i < RANGES; i++) {
        range[i] = apart();
        fill(range[i], PAGES, seed[i] = (uint64_t)(uintptr_t)number << 32 | (uint64_t)i);
    }
    place(slow, slow);
    for (int n = 0; slow ? !done : n < STEPS; n++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        int i = (int)(rng >> 33) % RANGES;
        if ((rng >> 20) % 32) {
            check(range[i], PAGES, seed[i], "a range");
            continue;
        }
        /* Growing by a page moves the range, since the next page is taken; then it shrinks. */
        char *to = mremap(range[i], PAGES * PAGE, (PAGES + 1) * PAGE, MREMAP_MAYMOVE);
        if (to == MAP_FAILED) {
            perror("mremap");
            exit(2);
        }
        if (!slow)
            usleep(100);
        munmap(range[i] + PAGES * PAGE, PAGE);
        range[i] = to;
        mprotect(to + PAGES * PAGE, PAGE, PROT_NONE);
        if ((rng >> 26) % 8 == 0)
            fill(range[i], PAGES, seed[i] += 1 << 8);
    }
    for (int i = 0; i < RANGES; i++)
        check(range[i], PAGES, seed[i], "a moved range at the end");
    return NULL;
}

int main(void) {
    pthread_t thread[THREADS + 1];
    for (uintptr_t i = 0; i <= THREADS; i++)
        if (pthread_create(&thread[i], NULL, i < THREADS ? mover : spinner, (void *)i))
            return 2;
    for (int i = 0; i < THREADS; i += 2)
        pthread_join(thread[i], NULL);
    done = true;
    for (int i = 1; i < THREADS; i += 2)
        pthread_join(thread[i], NULL);
    pthread_join(thread[THREADS], NULL);
    printf("%d threads moved %d ranges each, half of them in %d steps\n", THREADS, RANGES, STEPS);
    return 0;
}
