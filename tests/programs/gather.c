/* Random reads over memory in huge pages: the program that feels small pages (a tenth and more).
 * Time on stderr, checksum on stdout. */
#include "common.h"

int main(int argc, char **argv) {
    size_t size = size_argument(argc, argv, 1), words = size / 8, huge = 2ul << 20;
    size_t reads = argc > 2 ? strtoull(argv[2], NULL, 0) : 50000000;
    char *raw = map(size + huge, 0);
    uint64_t *p = (uint64_t *)(((uintptr_t)raw + huge - 1) & ~(huge - 1)), sum = 0, x = 1;
    madvise(p, size, MADV_HUGEPAGE);
    for (size_t i = 0; i < words; i++)
        p[i] = page_word(i / 512, i % 512);
    double begin = seconds();
    for (size_t i = 0; i < reads; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        sum += p[(unsigned __int128)x * words >> 64];
    }
    fprintf(stderr, "gather %.3f s\n", seconds() - begin);
    printf("%zu reads, checksum %016lx\n", reads, sum);
    return 0;
}
