/* malloc, realloc and free of all sizes in two threads, every block verified before it goes.
 * Linked with jemalloc it discards memory often; with glibc it uses brk and arenas. */
#include "common.h"
#include <pthread.h>

enum { SLOTS = 20000 };

struct heap {
    uint64_t seed, checked;
    size_t bytes;
    struct {
        uint64_t *p, id;
        size_t words;
    } slot[SLOTS];
};

static void check(struct heap *h, unsigned s) {
    for (size_t i = 0; i < h->slot[s].words; i++)
        if (h->slot[s].p[i] != page_word(h->slot[s].id, (unsigned)i) + i / 64)
            wrong(&h->slot[s].p[i], h->slot[s].id, h->slot[s].p[i]);
    h->checked += h->slot[s].words;
}

static void *work(void *arg) {
    struct heap *h = arg;
    for (uint64_t n = 0; n < 400000; n++) {
        uint64_t x = mix(h->seed + n);
        unsigned s = x % SLOTS;
        if (h->slot[s].p) {
            check(h, s);
            if (x >> 60 > 4) {
                free(h->slot[s].p);
                h->slot[s].p = NULL;
                continue;
            }
        }
        size_t words = 1 + (x >> 20) % (x >> 50 & 63 ? 512 : 32768), from = 0;
        if (h->slot[s].p && h->slot[s].words < words)
            from = h->slot[s].words;
        else
            h->slot[s].id = x;
        h->slot[s].p = realloc(h->slot[s].p, words * 8);
        h->slot[s].words = words;
        for (size_t i = from; i < words; i++)
            h->slot[s].p[i] = page_word(h->slot[s].id, (unsigned)i) + i / 64;
    }
    for (unsigned s = 0; s < SLOTS; s++)
        if (h->slot[s].p)
            check(h, s);
    return NULL;
}

int main(void) {
    static struct heap heap[2];
    pthread_t t[2];
    for (unsigned i = 0; i < 2; i++) {
        heap[i].seed = i * 1000000007ull;
        pthread_create(&t[i], NULL, work, &heap[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    printf("checked %lu words\n", heap[0].checked + heap[1].checked);
    return 0;
}
