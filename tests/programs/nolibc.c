/* Makes its memory calls without libc: a small allocator on mmap, brk, mremap, munmap, mprotect
 * and madvise in inline assembly, in a dynamic executable. Whoever learns of memory only from
 * libc's functions never hears of it. */
#include "common.h"
#include <sys/syscall.h>

static long call(long nr, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static uint64_t *get(size_t size) {
    return (uint64_t *)call(SYS_mmap, 0, (long)size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

enum { BLOCKS = 256, BLOCK_PAGES = 256 };

static struct block {
    uint64_t *p, id;
    size_t pages;
} block[BLOCKS];
static uint64_t ids, checked;

static void fill(struct block *b, size_t from) {
    for (size_t i = from * 512; i < b->pages * 512; i++)
        b->p[i] = page_word(b->id + i / 512, i % 512);
}

static void check(struct block *b) {
    for (size_t i = 0; i < b->pages * 512; i++)
        if (b->p[i] != page_word(b->id + i / 512, i % 512))
            wrong(&b->p[i], page_word(b->id + i / 512, i % 512), b->p[i]);
    checked += b->pages;
}

static void step(uint64_t x) {
    struct block *b = &block[x % BLOCKS];
    if (!b->p) {
        b->pages = 1 + (x >> 16) % BLOCK_PAGES;
        b->id = ids += BLOCK_PAGES * 4;
        b->p = get(b->pages * PAGE);
        fill(b, 0);
        return;
    }
    check(b);
    switch ((x >> 40) % 4) {
    case 0:
        call(SYS_munmap, (long)b->p, (long)(b->pages * PAGE), 0, 0, 0, 0);
        b->p = NULL;
        break;
    case 1: {
        size_t old = b->pages;
        b->pages = 1 + (x >> 16) % (BLOCK_PAGES * 2);
        b->p = (uint64_t *)call(SYS_mremap, (long)b->p, (long)(old * PAGE),
                                (long)(b->pages * PAGE), MREMAP_MAYMOVE, 0, 0);
        if (b->pages > old)
            fill(b, old);
        check(b);
        break;
    }
    case 2:
        call(SYS_madvise, (long)b->p, (long)(b->pages * PAGE), MADV_DONTNEED, 0, 0, 0);
        for (size_t i = 0; i < b->pages * 512; i += 100)
            if (b->p[i])
                wrong(&b->p[i], 0, b->p[i]);
        b->id = ids += BLOCK_PAGES * 4;
        fill(b, 0);
        break;
    default:
        call(SYS_mprotect, (long)b->p, (long)(b->pages * PAGE), PROT_NONE, 0, 0, 0);
        call(SYS_mprotect, (long)b->p, (long)(b->pages * PAGE), PROT_READ | PROT_WRITE, 0, 0, 0);
        check(b);
    }
}

int main(void) {
    uintptr_t base = ((uintptr_t)call(SYS_brk, 0, 0, 0, 0, 0, 0) + PAGE - 1) & ~(PAGE - 1);
    enum { HEAP = 64 << 20 };
    struct block heap = {(uint64_t *)base, 1ull << 40, HEAP / PAGE};
    if ((uintptr_t)call(SYS_brk, (long)(base + HEAP), 0, 0, 0, 0, 0) != base + HEAP)
        return 2;
    fill(&heap, 0);
    for (uint64_t i = 0; i < 4000; i++)
        step(mix(i));
    check(&heap);
    call(SYS_brk, (long)base, 0, 0, 0, 0, 0);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (block[i].p)
            check(&block[i]);
    char line[64];
    int n = snprintf(line, sizeof line, "checked %lu pages\n", checked);
    call(SYS_write, 1, (long)line, n, 0, 0, 0);
    return 0;
}
