/* Children that are there at once, all over one heap: each reads pages here and there, and may write some.
 *
 *     heirs MIB CHILDREN SECONDS EACH
 *
 * Of its own, a child writes each EACH-th page that it comes upon, none if that is 0. Prints "N heirs are well". */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pages.h"

static void child(unsigned n, int seconds, int each) {
    static unsigned char generation[1 << 20];
    unsigned long seed = n;
    for (time_t end = time(NULL) + seconds; time(NULL) < end;)
        for (int i = 0; i < 100; i++) {
            unsigned long page = draw(&seed) % pages;
            if (!is_right(page, generation[page])) {
                fprintf(stderr, "heirs: %d: page %lu is not what it was\n", (int)getpid(), page);
                _exit(2);
            }
            if (each && page % each == 0)
                fill(page, generation[page] = n + 1);
        }
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 64;
    pages = strtoul(argv[1], NULL, 10) << 8;
    int children = atoi(argv[2]), wrong = 0;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill_all(0);
    for (int n = 0; n < children; n++)
        if (fork() == 0) {
            child(n, atoi(argv[3]), atoi(argv[4]));
            _exit(0);
        }
    for (int status; wait(&status) > 0;)
        wrong += status != 0;
    printf("%d heirs are well\n", children - wrong);
    return wrong != 0;
}
