/* Memory that is there at once: MAP_POPULATE in pieces of 64 MiB, then MADV_POPULATE_WRITE over
 * a reserve; the kernel fills it inside the call, with no fault that anybody could count. */
#include "common.h"
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static void use(uint64_t *p, size_t size, uint64_t base) {
    for (size_t i = 0; i < size / 8; i++)
        if (p[i])
            wrong(&p[i], 0, p[i]);
    for (size_t i = 0; i < size / 8; i++)
        p[i] = page_word(base + i / 512, i % 512);
}

int main(int argc, char **argv) {
    size_t size = size_argument(argc, argv, 1), piece = 64ul << 20;
    size_t pieces = (size / 2 + piece - 1) / piece;
    uint64_t **p = calloc(pieces, sizeof *p);
    for (size_t i = 0; i < pieces; i++) {
        p[i] = map(piece, MAP_POPULATE);
        use(p[i], piece, i * piece / PAGE);
    }
    uint64_t *q = map(size / 2, 0);
    if (madvise(q, size / 2, MADV_POPULATE_WRITE))
        perror("madvise"); /* before Linux 5.14: then they are ordinary faults */
    use(q, size / 2, 1u << 30);
    for (size_t i = 0; i < pieces; i++)
        for (size_t k = 0; k < piece / 8; k++)
            if (p[i][k] != page_word(i * piece / PAGE + k / 512, k % 512))
                wrong(&p[i][k], page_word(i * piece / PAGE + k / 512, k % 512), p[i][k]);
    for (size_t k = 0; k < size / 2 / 8; k++)
        if (q[k] != page_word((1u << 30) + k / 512, k % 512))
            wrong(&q[k], page_word((1u << 30) + k / 512, k % 512), q[k]);
    printf("verified %zu bytes\n", pieces * piece + size / 2);
    return 0;
}
