// What the shims allocnet-cni-shim and allocnet-plugins-shim share. Before it includes
// this file, a shim defines PROGRAM, the Go program beside it that does the work if the
// shim cannot.

#define _GNU_SOURCE
#ifdef NOLIBC
#undef _FORTIFY_SOURCE // needs the library
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>
#ifdef NOLIBC
#include "nolibc.h"
#endif

#define DEFAULT_SOCKET "/run/allocnet/allocnetd.sock"

enum {
	MAX_CONFIG = 64 << 10, // maximum size of a configuration, in bytes
	MAX_STDIN = 1 << 20,   // maximum size of stdin for PROGRAM, which accepts less
	MAX_VARIABLE = 1024,   // maximum length of a variable's value
};

static char config[MAX_CONFIG];
static size_t length; // bytes of the configuration

// give_up prints a CNI error with code 11, which makes the runtime try again, and exits.
static _Noreturn void give_up(const char *act, const char *cause);

// fail gives up because of an error of the system.
static _Noreturn void fail(const char *act) { give_up(act, strerror(errno)); }

// again reports whether a failed call must be repeated. It first waits until the
// descriptor is ready, because the runtime's descriptors may be non-blocking.
static bool again(int fd, short events) {
	struct pollfd p = {.fd = fd, .events = events};
	return errno == EINTR || errno == EAGAIN && (poll(&p, 1, -1) >= 0 || errno == EINTR);
}

// write_all writes n bytes and reports whether it has succeeded.
static bool write_all(int fd, const char *data, size_t n) {
	while (n > 0) {
		ssize_t k = write(fd, data, n);
		if (k < 0 && again(fd, POLLOUT))
			continue;
		if (k <= 0)
			return false;
		data += k, n -= k;
	}
	return true;
}

static _Noreturn void give_up(const char *act, const char *cause) {
	char text[1024];
	write_all(1, text, sprintf(text, "{\"cniVersion\":\"1.0.0\",\"code\":11,\"msg\":\"" PROGRAM "-shim cannot go on\","
		"\"details\":\"%s: %s\"}\n", act, cause));
	exit(1);
}

// open_standard opens descriptors 0 to 2 if they are closed, so that the connection
// gets a higher one.
static void open_standard(void) {
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			exit(1);
}

// value_of returns the value of a variable, "" if it is not set.
static const char *value_of(const char *variable) {
	const char *value = getenv(variable);
	return value ? value : "";
}

// is_served reports whether the daemon serves the command in the environment. It does
// not serve a plugin that it has started itself.
static bool is_served(void) {
	static const char *const commands[] = {"ADD", "DEL", "CHECK", "GC", "STATUS", NULL};
	const char *command = value_of("CNI_COMMAND");
	const char *const *c = commands;
	while (*c && strcmp(*c, command))
		c++;
	return *c && !*value_of("ALLOCNET_CALLER");
}

// read_config reads the configuration, or the beginning of one that is too long, and
// reports whether it could be read. It is complete if it is shorter than MAX_CONFIG.
static bool read_config(void) {
	for (ssize_t k = 1; k != 0 && length < MAX_CONFIG; length += k) {
		do
			k = read(0, config + length, MAX_CONFIG - length);
		while (k < 0 && again(0, POLLIN));
		if (k < 0)
			return false;
	}
	return true;
}

// restore_stdin replaces stdin by a file with the whole configuration: the part that
// was already read and the rest.
static void restore_stdin(void) {
	static char rest[MAX_CONFIG];
	int fd = memfd_create("config", MFD_CLOEXEC);
	if (fd < 0 || !write_all(fd, config, length))
		fail("keep the configuration");
	for (size_t total = 0; total <= MAX_STDIN;) {
		ssize_t k = read(0, rest, sizeof rest);
		if (k < 0 && again(0, POLLIN))
			continue;
		if (k < 0)
			fail("read the configuration");
		if (k == 0)
			break;
		if (!write_all(fd, rest, k))
			fail("keep the configuration");
		total += k;
	}
	if (lseek(fd, 0, SEEK_SET) < 0 || dup2(fd, 0) < 0)
		fail("keep the configuration");
}

// execute executes PROGRAM in the directory of this program.
static _Noreturn void execute(char *const argv[]) {
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof PROGRAM);
	if (n == sizeof path - sizeof PROGRAM) // the path may be truncated
		errno = ENAMETOOLONG, n = -1;
	if (n < 0)
		fail("find " PROGRAM);
	path[n] = 0;
	char *slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, PROGRAM);
	execv(path, argv);
	fail("run " PROGRAM " in the directory of this program: install it there");
}

// send_to sends a request to the socket at a path of n bytes and returns the
// connection, or -1 if the request could not be sent completely. The daemon ignores an
// incomplete request.
static int send_to(const char *path, size_t n, struct iovec *parts, size_t count) {
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (n >= sizeof address.sun_path)
		return -1;
	memcpy(address.sun_path, path, n);
	ssize_t all = 0;
	for (size_t i = 0; i < count; i++)
		all += parts[i].iov_len;
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&address, sizeof address) || fcntl(fd, F_SETFL, 0) < 0 ||
		sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != all) {
		close(fd);
		return -1;
	}
	return fd;
}
