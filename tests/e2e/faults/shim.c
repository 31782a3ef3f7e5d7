/* Loaded in front of the C library: lets one call on files under a folder fail, fall short, or end the process.
 *
 * A process arms it after its fork; until then, and for everything outside the folder, calls go through untouched.
 * The counter lies in memory that is shared with the parent. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum effect { NONE, FAIL, SHORT, LATE };

static char root[PATH_MAX];
static size_t root_length;
static long place, *seen;
static int number, effect_wanted, for_good, no_exchange, writing_only;

__attribute__((constructor)) static void begin(void) {
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* `number` is an errno for FAIL and LATE (which does what was asked, and reports an error), and a signal for NONE. */
void fault_arm(const char *folder, long at, int effect, int value, int always, int without_exchange) {
    place = at, effect_wanted = effect, number = value, for_good = always, no_exchange = without_exchange;
    writing_only = effect != NONE && (value == ENOSPC || always);
    *seen = 0;
    strcpy(root, folder);
    root_length = strlen(root);
}

long fault_seen(void) { return *seen; }

static int under(const char *path) { return root_length && !strncmp(path, root, root_length); }

static int concerns_descriptor(int descriptor) {
    char name[32], target[PATH_MAX];
    if (!root_length || descriptor < 0) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    long length = syscall(SYS_readlink, name, target, sizeof target - 1);
    if (length < 0) return 0;
    target[length] = 0;
    return under(target);
}

static int concerns(int folder, const char *path) {
    if (!root_length || !path) return 0;
    return path[0] == '/' ? under(path) : folder == AT_FDCWD ? 0 : concerns_descriptor(folder);
}

static enum effect hit(int concerned, int writes) {
    if (!concerned || (writing_only && !writes)) return NONE;
    long now = __atomic_fetch_add(seen, 1, __ATOMIC_SEQ_CST);
    if (now != place && !(for_good && place >= 0 && now > place)) return NONE;
    if (effect_wanted == NONE) kill(getpid(), number);
    return effect_wanted;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define WRAP(concerned, writes, call)                                   \
    do {                                                                \
        int saved = errno;                                              \
        enum effect effect = hit(concerned, writes);                    \
        errno = saved;                                                  \
        if (effect == FAIL) { errno = number; return -1; }              \
        __typeof__(call) result = call;                                 \
        if (effect == LATE) { errno = number; return -1; }              \
        return result;                                                  \
    } while (0)
#define TRANSFER(writes, call)                                          \
    do {                                                                \
        enum effect effect = hit(concerns_descriptor(descriptor), writes); \
        if (effect == FAIL || (effect == LATE && writes)) { errno = number; return -1; } \
        if (effect == SHORT && size > 1) size /= 2;                     \
        return call;                                                    \
    } while (0)

#define OPEN(name)                                                      \
    int name(const char *path, int flags, ...) {                        \
        REAL(name);                                                     \
        va_list rest; va_start(rest, flags);                            \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
        enum effect effect = hit(concerns(AT_FDCWD, path), flags & (O_CREAT | O_WRONLY | O_RDWR)); \
        if (effect == FAIL || effect == LATE) { errno = number; return -1; } \
        return real(path, flags, mode);                                 \
    }
#define OPENAT(name)                                                    \
    int name(int folder, const char *path, int flags, ...) {            \
        REAL(name);                                                     \
        va_list rest; va_start(rest, flags);                            \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
        enum effect effect = hit(concerns(folder, path), flags & (O_CREAT | O_WRONLY | O_RDWR)); \
        if (effect == FAIL || effect == LATE) { errno = number; return -1; } \
        return real(folder, path, flags, mode);                         \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

ssize_t read(int descriptor, void *data, size_t size) { REAL(read); TRANSFER(0, real(descriptor, data, size)); }
ssize_t write(int descriptor, const void *data, size_t size) { REAL(write); TRANSFER(1, real(descriptor, data, size)); }
#define POSITIONED(name, type, writes)                                  \
    ssize_t name(int descriptor, type data, size_t size, off_t offset) { \
        REAL(name); TRANSFER(writes, real(descriptor, data, size, offset)); }
POSITIONED(pread, void *, 0) POSITIONED(pread64, void *, 0)
POSITIONED(pwrite, const void *, 1) POSITIONED(pwrite64, const void *, 1)
#define VECTOR(name)                                                    \
    ssize_t name(int descriptor, const struct iovec *data, int size, off_t offset) { \
        REAL(name);                                                     \
        enum effect effect = hit(concerns_descriptor(descriptor), 0);   \
        if (effect == FAIL || effect == LATE) { errno = number; return -1; } \
        struct iovec first = {data->iov_base, data->iov_len / 2};       \
        if (effect == SHORT && size && first.iov_len) return real(descriptor, &first, 1, offset); \
        return real(descriptor, data, size, offset);                    \
    }
VECTOR(preadv) VECTOR(preadv64)

int fsync(int d) { REAL(fsync); WRAP(concerns_descriptor(d), 1, real(d)); }
int fdatasync(int d) { REAL(fdatasync); WRAP(concerns_descriptor(d), 1, real(d)); }
int ftruncate(int d, off_t size) { REAL(ftruncate); WRAP(concerns_descriptor(d), 1, real(d, size)); }
int ftruncate64(int d, off64_t size) { REAL(ftruncate64); WRAP(concerns_descriptor(d), 1, real(d, size)); }
int flock(int d, int how) { REAL(flock); WRAP(concerns_descriptor(d), 0, real(d, how)); }

#define ALLOCATE(name)                                                  \
    int name(int descriptor, off_t offset, off_t size) {                \
        REAL(name);                                                     \
        enum effect effect = hit(concerns_descriptor(descriptor), 1);   \
        return effect == FAIL || effect == LATE ? number : real(descriptor, offset, size); \
    }
ALLOCATE(posix_fallocate) ALLOCATE(posix_fallocate64)

int rename(const char *a, const char *b) { REAL(rename); WRAP(concerns(AT_FDCWD, b), 1, real(a, b)); }
int renameat(int f, const char *a, int g, const char *b) { REAL(renameat); WRAP(concerns(g, b), 1, real(f, a, g, b)); }
int renameat2(int f, const char *a, int g, const char *b, unsigned flags) {
    REAL(renameat2);
    if (no_exchange && flags) { errno = EINVAL; return -1; }
    WRAP(concerns(g, b), 1, real(f, a, g, b, flags));
}
int link(const char *a, const char *b) { REAL(link); WRAP(concerns(AT_FDCWD, b), 1, real(a, b)); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); WRAP(concerns(AT_FDCWD, path), 1, real(path, mode)); }
int mkdirat(int f, const char *path, mode_t mode) { REAL(mkdirat); WRAP(concerns(f, path), 1, real(f, path, mode)); }
int rmdir(const char *path) { REAL(rmdir); WRAP(concerns(AT_FDCWD, path), 1, real(path)); }
int unlink(const char *path) { REAL(unlink); WRAP(concerns(AT_FDCWD, path), 1, real(path)); }
int unlinkat(int f, const char *path, int flags) { REAL(unlinkat); WRAP(concerns(f, path), 1, real(f, path, flags)); }
int chmod(const char *path, mode_t mode) { REAL(chmod); WRAP(concerns(AT_FDCWD, path), 1, real(path, mode)); }

#define STAT(name, status)                                              \
    int name(const char *path, status *found) { REAL(name); WRAP(concerns(AT_FDCWD, path), 0, real(path, found)); }
#define STATAT(name, status)                                            \
    int name(int f, const char *path, status *found, int flags) {       \
        REAL(name); WRAP(concerns(f, path), 0, real(f, path, found, flags)); }
#define FSTAT(name, status)                                             \
    int name(int d, status *found) { REAL(name); WRAP(concerns_descriptor(d), 0, real(d, found)); }
STAT(stat, struct stat) STAT(lstat, struct stat) STAT(stat64, struct stat64) STAT(lstat64, struct stat64)
STATAT(fstatat, struct stat) STATAT(fstatat64, struct stat64)
FSTAT(fstat, struct stat) FSTAT(fstat64, struct stat64)

DIR *opendir(const char *path) {
    REAL(opendir);
    enum effect effect = hit(concerns(AT_FDCWD, path), 0);
    if (effect == FAIL || effect == LATE) { errno = number; return NULL; }
    return real(path);
}
#define READDIR(name, entry)                                            \
    entry *name(DIR *folder) {                                          \
        REAL(name);                                                     \
        enum effect effect = hit(concerns_descriptor(dirfd(folder)), 0); \
        if (effect == FAIL || effect == LATE) { errno = number; return NULL; } \
        return real(folder);                                            \
    }
READDIR(readdir, struct dirent) READDIR(readdir64, struct dirent64)
