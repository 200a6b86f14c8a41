/* Reads a whole file into fresh memory with few, large read()s: growth that happens inside one
 * system call. Prints a checksum that depends on every byte's place. */
#include "common.h"
#include <errno.h>
#include <fcntl.h>

int main(int argc, char **argv) {
    int fd = argc > 1 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size <= 0 || lseek(fd, 0, SEEK_SET)) {
        fprintf(stderr, "usage: %s FILE (which can be read and is not empty)\n", argv[0]);
        return 2;
    }
    char *p = map((size_t)size + PAGE, 0);
    for (off_t done = 0; done < size;) {
        ssize_t n = read(fd, p + done, (size_t)(size - done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            perror("read");
            return 1;
        }
        done += n;
    }
    uint64_t sum = 0, *word = (uint64_t *)p;
    for (size_t i = 0; i < ((size_t)size + 7) / 8; i++)
        sum = (sum ^ word[i]) * 0x100000001b3ull;
    printf("%ld bytes, checksum %016lx\n", (long)size, sum);
    return 0;
}
