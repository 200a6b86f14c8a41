/* A page's bytes from its stamp.
 *
 * A stamp is unique to one write of one page: worker, serial number, and in the low bits the kind
 * of bytes, so that pages compress well, badly, not at all, or are one word repeated. Word 0 of
 * most kinds is the stamp itself: a page found in the wrong place names the write it came from.
 *
 * A poke is a write of one word to a page; which word and what value follow from the stamp and
 * the poke's number, so a model needs only to count them.
 */
#include "torture.h"

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

unsigned poke_word(uint64_t stamp, unsigned n) {
    return mix(stamp ^ ((uint64_t)n << 40) ^ 0x706f6b65) % WORDS;
}

uint64_t poke_value(uint64_t stamp, unsigned n) {
    return mix(stamp + 0x76616c7565ull * n) | 1;
}

static uint64_t word(uint64_t stamp, unsigned i) {
    switch (stamp % 8) {
    case TEXT: /* four small letters a word, out of few: about 4 to 1 */
        return 0x6161616161616161ull | (mix(stamp + i / 2) & 0x0303000003030000ull);
    case SAME:
        return mix(stamp);
    case SPARSE: /* pointers among zeros */
        return i % 16 ? 0 : 0x7f0000000000ull | (mix(stamp + i) & 0xfffffff8);
    case RAMP:
        return stamp + 8ull * i;
    case HALF:
        return i < WORDS / 2 ? mix(stamp + i) : 0;
    case BLANK:
        return 0;
    default:
        return mix(stamp + i);
    }
}

void content_fill(uint64_t out[WORDS], uint64_t stamp, unsigned pokes) {
    for (unsigned i = 0; i < WORDS; i++)
        out[i] = word(stamp, i);
    if (stamp % 8 != BLANK && stamp % 8 != SAME)
        out[0] = stamp;
    for (unsigned n = 1; n <= pokes; n++)
        out[poke_word(stamp, n)] = poke_value(stamp, n);
}

bool all_zero(const void *page) {
    const uint64_t *p = page;
    uint64_t any = 0;
    for (unsigned i = 0; i < WORDS; i++)
        any |= p[i];
    return any == 0;
}
