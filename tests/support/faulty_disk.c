/* Fails, tears or delays the calls by which the files below a folder are written, or read. Loaded by LD_PRELOAD into every process.
 *
 * DISK_FILE: a file of `struct disk`, shared by all processes, which say in it how many calls there were. It may be written anew at any time.
 * fault: a number of errno; "short": half is written; "tear": half is written, and the process dies; "delay": it takes two seconds.
 */
#define _GNU_SOURCE
#include <dirent.h>
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
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static struct disk {
	uint64_t count;	/* the calls so far */
	uint64_t at;	/* the first call that is met; 0: none */
	uint64_t lasts; /* how many are met */
	uint64_t reads; /* whether calls that read, and folders, belong to them; an error that a call cannot have is EIO then */
	uint64_t error; /* of the newest one that was met */
	char fault[16];
	char under[PATH_MAX];
	char first[PATH_MAX + 32]; /* the first call that was met, and of which file */
} *disk;
static __thread char place[PATH_MAX * 2];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void)
{
	const char *file = getenv("DISK_FILE");
	int fd = file ? ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64"))(file, O_RDWR) : -1;

	if (fd < 0)
		return;
	disk = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (disk == MAP_FAILED)
		disk = NULL;
}

static int below(int folder, const char *path)
{
	char link[64];
	ssize_t length = 0;
	int kept = errno;

	if (!disk || !path || !disk->under[0])
		return 0;
	if (path[0] != '/' && folder == AT_FDCWD)
		length = getcwd(place, PATH_MAX) ? (ssize_t)strlen(place) : 0;
	else if (path[0] != '/') {
		snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
		length = readlink(link, place, PATH_MAX - 1);
	}
	errno = kept;
	snprintf(place + (length > 0 ? length : 0), PATH_MAX, "%s%s", length > 0 && path[0] ? "/" : "", path);
	return place[0] == '/' && strncmp(place, disk->under, strlen(disk->under)) == 0;
}

static int is_ours(int fd)
{
	return below(fd, "");
}

/* Whether this call, of the file that was looked at last, is one that is met. */
static int met(const char *name)
{
	uint64_t number = __atomic_add_fetch(&disk->count, 1, __ATOMIC_SEQ_CST);

	if (disk->at && number == disk->at)
		snprintf(disk->first, sizeof disk->first, "%s %s", name, place);
	return disk->at && number >= disk->at && number < disk->at + disk->lasts;
}

/* Whether a call fails, and its errno. never: those that such a call cannot have, to the 0. "short" and "tear" have none. */
static int refused_but(const int *never)
{
	int number = atoi(disk->fault);

	if (strcmp(disk->fault, "delay") == 0)
		return sleep(2), 0;
	if (strcmp(disk->fault, "tear") == 0)
		return kill(getpid(), SIGKILL), 0;
	for (; disk->reads && *never; never++)
		number = number == *never ? EIO : number;
	disk->error = number;
	return errno = number;
}

static const int any[] = {0}, opened[] = {EMFILE, EACCES, 0}, named[] = {EMFILE, EFBIG, 0}, unwritten[] = {EROFS, ENOSPC, EFBIG, 0};
static const int flowing[] = {EMFILE, EACCES, EROFS, ENOSPC, EFBIG, 0};

ssize_t write(int fd, const void *data, size_t size)
{
	if (is_ours(fd) && met(__func__)) {
		if ((strcmp(disk->fault, "tear") == 0 || strcmp(disk->fault, "short") == 0) && size > 1) {
			ssize_t done = REAL(write)(fd, data, size / 2);
			return strcmp(disk->fault, "tear") == 0 ? (kill(getpid(), SIGKILL), done) : done;
		}
		if (refused_but(opened))
			return -1;
	}
	return REAL(write)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int number)
{
	return is_ours(fd) && met(__func__) && refused_but(opened) ? -1 : REAL(writev)(fd, parts, number);
}

int fsync(int fd)
{
	return is_ours(fd) && met(__func__) && refused_but(opened) ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd)
{
	return is_ours(fd) && met(__func__) && refused_but(opened) ? -1 : REAL(fdatasync)(fd);
}

int rename(const char *from, const char *to)
{
	return below(AT_FDCWD, to) && met(__func__) && refused_but(named) ? -1 : REAL(rename)(from, to);
}

/* What reads a file that is open has one error: the disk's. */
static int unread(int fd, const char *name)
{
	return disk && disk->reads && is_ours(fd) && met(name) && refused_but(flowing);
}

ssize_t read(int fd, void *data, size_t size)
{
	return unread(fd, __func__) ? -1 : REAL(read)(fd, data, size);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t at)
{
	return unread(fd, __func__) ? -1 : REAL(pread64)(fd, data, size, at);
}

ssize_t pread(int fd, void *data, size_t size, off_t at)
{
	return unread(fd, __func__) ? -1 : REAL(pread)(fd, data, size, at);
}

/* Folders: no number of an open file is needed. */
static int folder_refused(int folder, const char *path, const char *name)
{
	return disk && disk->reads && below(folder, path) && met(name) && refused_but(named);
}

int mkdir(const char *path, mode_t mode)
{
	return folder_refused(AT_FDCWD, path, __func__) ? -1 : REAL(mkdir)(path, mode);
}

int rmdir(const char *path)
{
	return folder_refused(AT_FDCWD, path, __func__) ? -1 : REAL(rmdir)(path);
}

int unlink(const char *path)
{
	return folder_refused(AT_FDCWD, path, __func__) ? -1 : REAL(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags)
{
	return folder_refused(folder, path, __func__) ? -1 : REAL(unlinkat)(folder, path, flags);
}

DIR *opendir(const char *path)
{
	return disk && disk->reads && below(AT_FDCWD, path) && met(__func__) && refused_but(unwritten) ? NULL : REAL(opendir)(path);
}

static int unopened(int folder, const char *path, int flags, const char *name)
{
	int writes = flags & (O_WRONLY | O_RDWR | O_CREAT);

	if (!disk || !(writes || disk->reads) || !below(folder, path))
		return 0;
	return met(name) && refused_but(writes ? any : unwritten);
}

#define MODE(flags)                                                              \
	va_list rest;                                                                \
	mode_t mode;                                                                 \
	va_start(rest, flags);                                                       \
	mode = ((flags) & (O_CREAT | __O_TMPFILE)) ? va_arg(rest, mode_t) : 0;       \
	va_end(rest);

#define OPENS(name)                                                              \
	int name(const char *path, int flags, ...)                                   \
	{                                                                            \
		MODE(flags)                                                              \
		return unopened(AT_FDCWD, path, flags, __func__) ? -1 : REAL(name)(path, flags, mode); \
	}
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                           \
	int name(int folder, const char *path, int flags, ...)                       \
	{                                                                            \
		MODE(flags)                                                              \
		return unopened(folder, path, flags, __func__) ? -1 : REAL(name)(folder, path, flags, mode); \
	}
OPENS_AT(openat)
OPENS_AT(openat64)
