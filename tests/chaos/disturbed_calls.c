/* Preloaded into the processes of a disturbed run: system calls on files of one folder fail, and the clock jumps, while the
 * settings say so. The settings are a file that the test program and all these processes map. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct settings {
    int32_t error;         /* errno of the calls that fail */
    int32_t reads_one_in;  /* one read in so many fails, on average; 0: none */
    int32_t writes_one_in; /* the same for writes and flushes */
    int32_t failures;      /* the count of calls that failed */
    int64_t clock_seconds; /* added to the time of day */
};

static struct settings *settings;
static const char *folder;
static __thread uint64_t state;

__attribute__((constructor)) static void open_settings(void) {
    const char *path = getenv("DISTURBED_SETTINGS");
    folder = getenv("DISTURBED_FOLDER");
    int file = path && folder ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(struct settings), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) settings = mapped;
}

static uint64_t draw(void) {
    if (!state) state = (uint64_t)getpid() * 0x9E3779B97F4A7C15ull ^ (uint64_t)(uintptr_t)&state ^ (uint64_t)clock();
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int lies_in_folder(int file) {
    char link[64], path[4096], *digits = link + sizeof link;
    *--digits = 0;
    for (unsigned rest = (unsigned)file; digits > link + 20; rest /= 10) {
        *--digits = (char)('0' + rest % 10);
        if (rest < 10) break;
    }
    digits -= strlen("/proc/self/fd/");
    memcpy(digits, "/proc/self/fd/", strlen("/proc/self/fd/"));
    ssize_t length = readlink(digits, path, sizeof path - 1);
    size_t prefix = strlen(folder);
    return length > (ssize_t)prefix && !memcmp(path, folder, prefix) && path[prefix] == '/';
}

static int fails(int file, int32_t one_in) {
    if (!one_in || file < 0 || draw() % (uint64_t)one_in || !lies_in_folder(file)) return 0;
    __sync_fetch_and_add(&settings->failures, 1);
    errno = settings->error;
    return 1;
}

#define DISTURBED(result, name, parameters, arguments, file, field)                          \
    result name parameters {                                                                 \
        static result(*real) parameters;                                                     \
        if (!real) real = (result(*) parameters)dlsym(RTLD_NEXT, #name);                     \
        if (settings && fails(file, settings->field)) return -1;                             \
        return real arguments;                                                               \
    }

DISTURBED(ssize_t, read, (int file, void *to, size_t count), (file, to, count), file, reads_one_in)
DISTURBED(ssize_t, pread64, (int file, void *to, size_t count, off64_t at), (file, to, count, at), file, reads_one_in)
DISTURBED(ssize_t, write, (int file, const void *from, size_t count), (file, from, count), file, writes_one_in)
DISTURBED(ssize_t, pwrite64, (int file, const void *from, size_t count, off64_t at), (file, from, count, at), file, writes_one_in)
DISTURBED(int, fsync, (int file), (file), file, writes_one_in)
DISTURBED(int, fdatasync, (int file), (file), file, writes_one_in)

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (settings && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += settings->clock_seconds;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
