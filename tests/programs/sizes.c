/* Its address space is of another size at every moment: a thread maps and unmaps, which nobody is told of, while
 * the main thread goes through memory. A pager that knows by the size whether the program is still the same
 * takes it for another one. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

static atomic_bool done;

static void *change(void *nothing) {
    for (size_t n = 1; !done; n = n % 7 + 1) {
        void *p = mmap(NULL, n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || munmap(p, n * PAGE)) {
            perror("mmap, munmap");
            exit(2);
        }
    }
    return nothing;
}

int main(int argc, char **argv) {
    size_t words = size_argument(argc, argv, 1) / 8;
    uint64_t *all = map(words * 8, 0);
    pthread_t changer;
    if (pthread_create(&changer, NULL, change, NULL))
        return 2;
    for (uint64_t round = 0; round < 4; round++)
        for (size_t i = 0; i < words; i++) {
            uint64_t before = round ? page_word(i / 512 + round - 1, i % 512) : 0;
            if (all[i] != before)
                wrong(&all[i], before, all[i]);
            all[i] = page_word(i / 512 + round, i % 512);
        }
    done = true;
    pthread_join(changer, NULL);
    printf("verified %zu words\n", words);
    return 0;
}
