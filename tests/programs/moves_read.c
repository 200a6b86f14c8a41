/* A thread that moves ranges of memory while another has the kernel read them, by both addresses.
 *
 * The reader gets what was written there or EFAULT, since it may come too late; its faults reach the pager
 * in the middle of a move, when the old place is gone and nobody has been told. What is not touched
 * gets evicted, so that contents are lost if such a fault is taken for one that was answered. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RANGES = 4000, PAGE = 4096, PAGES = 4, STEPS = 60000 };

static char *place[2]; /* where ranges are, by turns; each has a hole where it is not */
static _Atomic(char *) moving;
static atomic_bool done;

/* What a word of a range is: three of four are zeros, so that pages compress. */
static uint64_t word(uint64_t range, size_t at) {
    uint64_t x = range * 0x9e3779b97f4a7c15u + at + 1;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    return at % 4 ? 0 : x | 1;
}

static void fail(const char *what, int range, size_t at, uint64_t found) {
    printf("%s: range %d, word %zu is %lx\n", what, range, at, (unsigned long)found);
    fflush(stdout);
    _exit(1);
}

/* Has the kernel read words of the range that is just moving, at both places. */
static void *reader(void *unused) {
    while (!done) {
        char *at = moving;
        for (size_t page = 0; at && page < PAGES; page++) {
            uint64_t found;
            struct iovec to = {&found, sizeof found}, from = {at + page * PAGE, sizeof found};
            ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
            if (got == sizeof found && found == 0)
                fail("read while it moved", -1, page, found);
            if (got < 0 && errno != EFAULT) {
                perror("process_vm_readv");
                exit(2);
            }
        }
    }
    return unused;
}

static char *of(int range, int side) {
    return place[side] + (size_t)range * PAGES * PAGE;
}

int main(void) {
    size_t bytes = (size_t)RANGES * PAGES * PAGE;
    for (int side = 0; side < 2; side++) {
        int protection = side ? PROT_NONE : PROT_READ | PROT_WRITE;
        place[side] = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place[side] == MAP_FAILED) {
            perror("mmap");
            return 2;
        }
    }
    static int side[RANGES];
    for (int i = 0; i < RANGES; i++)
        for (size_t at = 0; at < PAGES * PAGE / 8; at++)
            ((uint64_t *)of(i, 0))[at] = word((uint64_t)i, at);
    pthread_t thread;
    if (pthread_create(&thread, NULL, reader, NULL))
        return 2;
    uint64_t rng = 1;
    for (int n = 0; n < STEPS; n++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        int i = (int)(rng >> 33) % RANGES;
        char *from = of(i, side[i]), *to = of(i, !side[i]);
        moving = from;
        for (volatile unsigned pause = rng >> 20 & 4095; pause; pause--)
            ;
        if (mremap(from, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
            perror("mremap");
            return 2;
        }
        side[i] = !side[i];
        for (size_t at = 0; at < PAGES * PAGE / 8; at += PAGE / 8 / 4)
            if (((volatile uint64_t *)to)[at] != word((uint64_t)i, at))
                fail("moved", i, at, ((volatile uint64_t *)to)[at]);
    }
    done = true;
    pthread_join(thread, NULL);
    printf("%d ranges moved in %d steps\n", RANGES, STEPS);
    return 0;
}
