/* More threads than the pager's queue has room for wait for pages, while others discard memory and unmap
 * it.
 *
 * The kernel tells of all who wait before it tells of a discard, and until that is read nobody is
 * answered: a pager that has those it cannot queue ask again reads nothing else. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { THREADS = 700, READS = 60, CHANGERS = 4, CHANGES = 300, PAGE = 4096, PAGES = 16384, OWN = 64 };

static unsigned char *memory;

static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Half of a page is noise. */
static void fill(unsigned char *page, uint64_t number) {
    uint64_t state = number;
    for (size_t at = 0; at < PAGE; at += 16)
        *(uint64_t *)(page + at) = draw(&state);
}

static int is_right(const unsigned char *page, uint64_t number) {
    uint64_t state = number;
    for (size_t at = 0; at < PAGE; at += 16)
        if (*(const uint64_t *)(page + at) != draw(&state))
            return 0;
    return 1;
}

static void *reader(void *number) {
    uint64_t state = (uintptr_t)number;
    for (int n = 0; n < READS; n++) {
        uint64_t page = draw(&state) % PAGES;
        if (!is_right(memory + page * PAGE, page)) {
            printf("page %lu is not what was written\n", (unsigned long)page);
            exit(1);
        }
    }
    return NULL;
}

static void *changer(void *number) {
    for (int n = 0; n < CHANGES; n++) {
        unsigned char *own = mmap(NULL, OWN * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own == MAP_FAILED)
            exit(2);
        for (int round = 0; round < 2; round++) {
            for (uint64_t page = 0; page < OWN; page++)
                fill(own + page * PAGE, page);
            for (uint64_t page = 0; page < OWN; page++)
                if (!is_right(own + page * PAGE, page))
                    exit(3);
            if (madvise(own, OWN * PAGE, MADV_DONTNEED) || own[PAGE] != 0)
                exit(4);
        }
        munmap(own, OWN * PAGE);
    }
    return number;
}

int main(void) {
    static pthread_t threads[THREADS + CHANGERS];
    memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    for (uint64_t page = 0; page < PAGES; page++)
        fill(memory + page * PAGE, page);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (uintptr_t n = 0; n < THREADS + CHANGERS; n++)
        if (pthread_create(&threads[n], &small, n < CHANGERS ? changer : reader, (void *)n))
            return 2;
    for (int n = 0; n < THREADS + CHANGERS; n++)
        pthread_join(threads[n], NULL);
    puts("all were answered");
    return 0;
}
