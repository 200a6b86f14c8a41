/* Maps memory anew where there was some: over every second page of a range, then into holes of one page, by mmap
 * without a place; at last the whole is moved to twice its room, which the kernel refuses (EFAULT) where it is
 * several mappings. A pager that registers what is new when it was used already leaves a mapping for each
 * page behind: their number at the end is told on stderr ("mappings N"), for the runner to compare. */
#include "common.h"

static void check_zeros(const char *page) {
    const uint64_t *w = (const uint64_t *)page;
    for (unsigned i = 0; i < PAGE / 8; i++)
        if (w[i])
            wrong(&w[i], 0, w[i]);
}

static void *anew(void *at, int flags) {
    void *p = mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return p;
}

/* Page n has the words of this id: every second one was mapped anew, and every eighth once more. */
static uint64_t id_of(size_t n, size_t pages) {
    return n % 2 ? n : n % 8 ? n + pages : n + 2 * pages;
}

static void every_second_page_anew(char *all, size_t pages) {
    for (size_t n = 0; n < pages; n += 2) {
        char *page = anew(all + n * PAGE, MAP_FIXED);
        check_zeros(page);
        fill_page(page, n + pages);
    }
}

/* Every eighth page is unmapped; in which hole the next page comes to lie is the kernel's choice. */
static void holes_are_filled(char *all, size_t pages) {
    for (size_t n = 0; n < pages; n += 8)
        if (munmap(all + n * PAGE, PAGE)) {
            perror("munmap");
            exit(2);
        }
    for (size_t left = (pages + 7) / 8; left > 0;) {
        char *page = anew(NULL, 0);
        check_zeros(page);
        size_t n = (size_t)(page - all) / PAGE;
        fill_page(page, n + 2 * pages);
        left -= page >= all && n < pages; /* elsewhere there may be holes too */
    }
}

static void the_whole_moves(char *all, size_t pages) {
    char *moved = mremap(all, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
        perror("mremap");
        exit(2);
    }
    for (size_t n = 0; n < pages; n++)
        check_page(moved + n * PAGE, id_of(n, pages));
    check_zeros(moved + pages * PAGE);
}

int main(int argc, char **argv) {
    size_t pages = size_argument(argc, argv, 1) / PAGE;
    char *all = map(pages * PAGE, 0);
    for (size_t n = 0; n < pages; n++)
        fill_page(all + n * PAGE, n);
    double begin = seconds();
    every_second_page_anew(all, pages);
    double anew_s = seconds();
    holes_are_filled(all, pages);
    double filled_s = seconds();
    the_whole_moves(all, pages);
    printf("verified %zu pages\n", pages);
    fprintf(stderr, "note: anew %.2f s, holes %.2f, moved %.2f\n", anew_s - begin, filled_s - anew_s,
            seconds() - filled_s);
    fprintf(stderr, "mappings %u\n", mappings());
    return 0;
}
