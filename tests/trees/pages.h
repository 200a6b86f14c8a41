/* Pages that tell which they are, and of which generation. */
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static unsigned long *memory, pages;

static unsigned long draw(unsigned long *state) {
    *state = *state * 6364136223846793005UL + 1442695040888963407UL;
    return *state >> 33;
}

/* A quarter of a page is noise: it compresses to some third. */
static void fill(unsigned long page, unsigned to) {
    unsigned long *word = memory + page * WORDS, state = page * 2654435761UL + to;
    for (int i = 0; i < WORDS; i++)
        word[i] = i % 4 == 1 ? draw(&state) : 0x6f637461766f2020UL;
    word[0] = page << 20 ^ to;
}

static void fill_all(unsigned to) {
    for (unsigned long page = 0; page < pages; page++)
        fill(page, to);
}

static int is_right(unsigned long page, unsigned of) {
    unsigned long *word = memory + page * WORDS, state = page * 2654435761UL + of;
    for (int i = 1; i < WORDS; i++)
        if (word[i] != (i % 4 == 1 ? draw(&state) : 0x6f637461766f2020UL))
            return 0;
    return word[0] == (page << 20 ^ of);
}
