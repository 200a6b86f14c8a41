/* Memory mapped right behind the zeroed data of a shared object: one mapping with them, as the kernel has it. It
 * leaves memory like any other, though a pager may not touch data of its own in front of it.
 *
 * Without Octavo nothing leaves memory, and nothing is asked for. */
#include "common.h"

enum { PLACES = 8, MOST = 32, PATIENCE_S = 20 };

struct place {
    char *at;
    size_t pages;
};

/* Takes up to MOST pages behind each object's zeroed data: a mapping of no file behind one of a library. */
static int take(struct place places[PLACES], bool *managed) {
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned long ends[PLACES], begin, end, inode;
    int n = 0, taken = 0;
    bool library = false;
    while (f && fgets(line, sizeof line, f)) {
        char rights[8] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &begin, &end, rights, &inode) != 4)
            continue;
        *managed |= strstr(line, "liboctavo") != NULL;
        if (library && inode == 0 && !strcmp(rights, "rw-p") && !strchr(line, '[') && n < PLACES)
            ends[n++] = end;
        library = strstr(line, ".so") != NULL;
    }
    for (int i = 0; i < n; i++)
        for (size_t pages = MOST; pages > 0; pages /= 2) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            char *at = mmap((void *)ends[i], pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
            if (at == MAP_FAILED)
                continue;
            places[taken++] = (struct place){at, pages};
            break;
        }
    fclose(f);
    return taken;
}

static uint64_t id(int place, size_t page) { return (uint64_t)place << 32 | page; }

static bool is_away(const struct place *place) {
    unsigned char there[MOST];
    return mincore(place->at, place->pages * PAGE, there) == 0 && !memchr(there, 1, place->pages);
}

/* Writes memory until each place has been away, or the time is over. */
static void write_until_away(char *memory, size_t size, const struct place *places, bool *away, int n, double end) {
    for (int pass = 0, left = n; left > 0 && (pass == 0 || seconds() < end); pass++) {
        for (size_t page = 0; page < size / PAGE; page++)
            fill_page(memory + page * PAGE, page + (size_t)pass);
        left = 0;
        for (int i = 0; i < n; i++)
            left += !(away[i] |= is_away(&places[i]));
    }
}

int main(int argc, char **argv) {
    size_t size = size_argument(argc, argv, 1);
    struct place places[PLACES];
    bool managed = false, away[PLACES] = {false};
    int n = take(places, &managed);
    if (n == 0)
        return 2;
    for (int i = 0; i < n; i++)
        for (size_t page = 0; page < places[i].pages; page++)
            fill_page(places[i].at + page * PAGE, id(i, page));
    write_until_away(map(size, 0), size, places, away, n, seconds() + (managed ? PATIENCE_S : 0));
    for (int i = 0; i < n; i++) {
        if (managed && !away[i]) {
            printf("what is at %p never left memory\n", (void *)places[i].at);
            return 1;
        }
        for (size_t page = 0; page < places[i].pages; page++)
            check_page(places[i].at + page * PAGE, id(i, page));
    }
    puts("all of it can leave memory, and is the same");
    return 0;
}
