/* Reads its pages, while a thread discards memory of its own all the while and others keep the CPUs busy.
 *
 *     storms MIB READS SPINNERS
 *
 * While a discard is told nobody's page can be brought, and this thread is in the next before anybody had the CPU.
 * Prints "storms: all well". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "pages.h"

static void *discard(void *of) {
    while (madvise(of, 14 * PAGE, MADV_DONTNEED) == 0)
        ;
    return NULL;
}

static void *spin(void *unused) {
    for (;;)
        __asm__ volatile("" ::"r"(unused));
    return NULL;
}

static void *map(unsigned long bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        exit(2);
    return at;
}

int main(int count, char **words) {
    if (count != 4)
        return 2;
    pages = strtoul(words[1], NULL, 10) << 8;
    memory = map(pages * PAGE);
    fill_all(0);
    pthread_t thread;
    int refused = pthread_create(&thread, NULL, discard, map(14 * PAGE));
    for (unsigned long n = strtoul(words[3], NULL, 10); n > 0; n--)
        refused |= pthread_create(&thread, NULL, spin, NULL);
    if (refused)
        return 2;
    unsigned long wrong = 0, state = 1;
    for (unsigned long n = strtoul(words[2], NULL, 10); n > 0; n--)
        wrong += !is_right(draw(&state) % pages, 0);
    if (wrong)
        printf("storms: %lu pages wrong\n", wrong);
    else
        puts("storms: all well");
    return wrong != 0;
}
