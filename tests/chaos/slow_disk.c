/* Preloaded, it makes each write and each sync of files below one folder take longer, as a slow disk would.
 *
 * SLOW_DISK names a file that is looked at before each call: two numbers of 32 bits, the microseconds that a write and
 * a sync take longer, then the folder's path. What is written by a mapping of memory is not slowed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct told {
    uint32_t write_us, sync_us;
    char folder[4088];
};

static volatile struct told *told;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SLOW_DISK");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof *told, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        told = at;
    close(fd);
}

static void delay(int fd, int sync) {
    uint32_t us = told ? (sync ? told->sync_us : told->write_us) : 0;
    struct stat found;
    char link[40], path[4096];
    if (!us || fstat(fd, &found) || !(S_ISREG(found.st_mode) || S_ISDIR(found.st_mode)))
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return;
    path[n] = 0;
    const char *folder = (const char *)told->folder;
    if (strncmp(path, folder, strlen(folder)))
        return;
    struct timespec wait = {us / 1000000, us % 1000000 * 1000L};
    nanosleep(&wait, NULL);
}

#define SLOWED(type, name, sync, given, passed)      \
    type name given {                                \
        static type(*real) given;                    \
        if (!real)                                   \
            real = (type(*) given)dlsym(RTLD_NEXT, #name); \
        delay(fd, sync);                             \
        return real passed;                          \
    }

SLOWED(ssize_t, write, 0, (int fd, const void *data, size_t size), (fd, data, size))
SLOWED(ssize_t, pwrite, 0, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
SLOWED(ssize_t, pwrite64, 0, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
SLOWED(ssize_t, writev, 0, (int fd, const struct iovec *data, int count), (fd, data, count))
SLOWED(int, fsync, 1, (int fd), (fd))
SLOWED(int, fdatasync, 1, (int fd), (fd))
