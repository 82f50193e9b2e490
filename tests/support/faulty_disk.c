/* Fails, tears or delays the calls by which the files below a folder are written. Loaded by LD_PRELOAD into every process of a run.
 *
 * DISK_UNDER: the folder; DISK_COUNT: a file of 8 bytes, the calls so far of all processes; DISK_AT: the first call that is met;
 * DISK_FOR: how many are met; DISK_FAULT: a number of errno; "short": half is written; "tear": half is written, and the process dies;
 * "delay": it takes two seconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static uint64_t *count;
static const char *under, *fault;
static uint64_t at, lasts;

__attribute__((constructor)) static void begin(void)
{
	int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
	const char *file = getenv("DISK_COUNT");
	int fd;

	under = getenv("DISK_UNDER");
	fault = getenv("DISK_FAULT");
	if (!file || !under || !fault || !real || (fd = real(file, O_RDWR)) < 0)
		return;
	at = strtoull(getenv("DISK_AT"), NULL, 10);
	lasts = strtoull(getenv("DISK_FOR"), NULL, 10);
	count = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (count == MAP_FAILED)
		count = NULL;
}

static int below(const char *path)
{
	char whole[PATH_MAX];

	if (path[0] != '/' && getcwd(whole, sizeof whole))
		return strstr(whole, under) == whole;
	return strncmp(path, under, strlen(under)) == 0;
}

static int is_ours(int fd)
{
	char link[64], path[PATH_MAX];
	ssize_t length;
	int kept = errno;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	length = count ? readlink(link, path, sizeof path - 1) : -1;
	errno = kept;
	if (length <= 0)
		return 0;
	path[length] = 0;
	return below(path);
}

/* Whether this call is one that is met. */
static int met(void)
{
	uint64_t number = __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);

	return at && number >= at && number < at + lasts;
}

/* The error of a call that has none of "short" and "tear"; 0 where it goes on. */
static int refused(void)
{
	if (strcmp(fault, "delay") == 0)
		return sleep(2), 0;
	if (strcmp(fault, "tear") == 0)
		return kill(getpid(), SIGKILL), 0;
	return strcmp(fault, "short") ? (errno = atoi(fault)) : 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size)
{
	if (is_ours(fd) && met()) {
		if ((strcmp(fault, "tear") == 0 || strcmp(fault, "short") == 0) && size > 1) {
			ssize_t done = REAL(write)(fd, data, size / 2);
			return strcmp(fault, "tear") == 0 ? (kill(getpid(), SIGKILL), done) : done;
		}
		if (refused())
			return -1;
	}
	return REAL(write)(fd, data, size);
}

int fsync(int fd)
{
	return is_ours(fd) && met() && refused() ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd)
{
	return is_ours(fd) && met() && refused() ? -1 : REAL(fdatasync)(fd);
}

int rename(const char *from, const char *to)
{
	return count && below(to) && met() && refused() ? -1 : REAL(rename)(from, to);
}

#define OPENS(name)                                                                                   \
	int name(const char *path, int flags, ...)                                                        \
	{                                                                                                 \
		va_list rest;                                                                                 \
		mode_t mode;                                                                                  \
		va_start(rest, flags);                                                                        \
		mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;                            \
		va_end(rest);                                                                                 \
		if (count && (flags & (O_WRONLY | O_RDWR | O_CREAT)) && below(path) && met() && refused())    \
			return -1;                                                                                \
		return REAL(name)(path, flags, mode);                                                         \
	}
OPENS(open)
OPENS(open64)
