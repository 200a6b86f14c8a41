/* Writes fresh memory as fast as one thread can, then verifies all of it.
 * The pager's watch must see the growth before it passes the limit: 2 to 4 GB/s. */
#include "common.h"

int main(int argc, char **argv) {
    size_t size = size_argument(argc, argv, 1), words = size / 8;
    uint64_t *p = map(size, 0);
    double begin = seconds();
    for (size_t i = 0; i < words; i += 512)
        for (unsigned k = 0; k < 512; k++)
            p[i + k] = page_word(i / 512, k);
    double filled = seconds();
    for (size_t i = 0; i < words; i++)
        if (p[i] != page_word(i / 512, i % 512))
            wrong(&p[i], page_word(i / 512, i % 512), p[i]);
    fprintf(stderr, "fill %.3f s, verify %.3f s\n", filled - begin, seconds() - filled);
    printf("verified %zu bytes\n", size);
    return 0;
}
