/* A job whose data do not compress: fills memory with random words, then changes and verifies
 * some of it, round after round. Under a limit of half its size it must end, over the limit. */
#include "common.h"

int main(int argc, char **argv) {
    size_t size = size_argument(argc, argv, 1), pages = size / PAGE;
    unsigned rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 4;
    uint64_t *p = map(size, 0), sum = 0;
    uint8_t *version = map(pages + PAGE, 0);
    for (unsigned r = 0; r <= rounds; r++)
        for (size_t n = 0; n < pages; n++) {
            uint64_t old = (uint64_t)n << 8 | version[n];
            uint64_t *w = p + n * 512;
            for (unsigned i = 0; r && i < 512; i++)
                if (w[i] != mix(old * 512 + i))
                    wrong(&w[i], mix(old * 512 + i), w[i]);
            if (r && mix(n * 1000 + r) % 4) /* three in four are only read */
                continue;
            uint64_t new = (uint64_t)n << 8 | (version[n] = (uint8_t)r);
            for (unsigned i = 0; i < 512; i++)
                sum += w[i] = mix(new * 512 + i);
        }
    printf("%zu pages, %u rounds, checksum %016lx\n", pages, rounds, sum);
    return 0;
}
