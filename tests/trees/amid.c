/* Forks amid faults: each time right after pages came back, and beside threads that touch others all the time.
 *
 *     amid MIB TIMES THREADS
 *
 * Each child checks some pages, and ends. Prints "N children are well". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pages.h"

enum { SOME = 20, CHECKED = 200 };

static void check(unsigned long *seed, int n) {
    while (n--) {
        unsigned long page = draw(seed) % pages;
        if (!is_right(page, 0)) {
            fprintf(stderr, "amid: %d: page %lu is not what it was\n", (int)getpid(), page);
            _exit(2);
        }
    }
}

static void *touch(void *seed) {
    for (;;)
        check(seed, 1);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 64;
    static unsigned long seeds[16];
    unsigned long seed = 1;
    pages = strtoul(argv[1], NULL, 10) << 8;
    int times = atoi(argv[2]), threads = atoi(argv[3]);
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill_all(0);
    for (int n = 0; n < threads; n++) {
        pthread_t thread;
        seeds[n] = n + 2;
        pthread_create(&thread, NULL, touch, &seeds[n]);
    }
    for (int i = 0; i < times; i++) {
        check(&seed, SOME);
        pid_t pid = fork();
        if (pid == 0) {
            check(&seed, CHECKED);
            _exit(0);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status) {
            fprintf(stderr, "amid: child %d: status %x\n", i, status);
            return 1;
        }
    }
    printf("%d children are well\n", times);
    return 0;
}
