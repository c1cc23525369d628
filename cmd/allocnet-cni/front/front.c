// allocnet-cni-front is allocnet-cni for a runtime in a hurry. A program of Go takes a
// millisecond or two to start, most of what an ADD through the daemon costs; this one
// takes a fraction of that. It knows only how things go when all is well: it hands what a runtime
// asks for to allocnetd and prints an answer that comes soon and in one piece. In every
// other case it becomes allocnet-cni, beside it, which decides: before anything was
// sent, or with the connection on which the answer is to come, of which nothing was
// read.
//
// What it needs of the protocol is in package internal/cniwire/thin.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PROGRAM "allocnet-cni"
#define DEFAULT_SOCKET "/run/allocnet/allocnetd.sock"

enum {
	MOST = 64 << 10, // bytes of a configuration, and of an answer
	SOON = 250,      // milliseconds; the daemon's first sign of life comes later
	HANDED = 3,      // descriptor of the connection that is handed over
};

static char config[MOST], request[MOST + (8 << 10)], answer[MOST];
static size_t length; // of the configuration that was read

// fail prints an error as a CNI plugin does: one that may pass.
static _Noreturn void fail(const char *what) {
	printf("{\"cniVersion\":\"1.0.0\",\"code\":11,\"msg\":\"allocnet-cni-front cannot go on\","
		"\"details\":\"%s: %s\"}\n", what, strerror(errno));
	exit(1);
}

// again reports whether a call that failed is to be repeated, and waits until it can
// be: what a runtime gives us need not block.
static bool again(int fd, short events) {
	struct pollfd p = {.fd = fd, .events = events};
	return errno == EINTR || errno == EAGAIN && poll(&p, 1, -1) >= 0;
}

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

// put_back makes stdin what it was: what was read of it, and the rest.
static void put_back(void) {
	int fd = memfd_create("config", MFD_CLOEXEC);
	if (fd < 0 || !write_all(fd, config, length))
		fail("keep the configuration");
	for (size_t total = 0; total <= 16 * MOST;) { // allocnet-cni refuses less
		ssize_t k = read(0, answer, sizeof answer);
		if (k < 0 && again(0, POLLIN))
			continue;
		if (k <= 0)
			break;
		if (!write_all(fd, answer, k))
			fail("keep the configuration");
		total += k;
	}
	if (lseek(fd, 0, SEEK_SET) < 0 || dup2(fd, 0) < 0)
		fail("keep the configuration");
}

// hand_over has allocnet-cni go on, with the connection if there is one.
static _Noreturn void hand_over(int fd) {
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof PROGRAM - 1);
	if (n < 0)
		fail("find " PROGRAM);
	path[n] = 0;
	char *slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, PROGRAM);
	if (fd < 0) {
		execv(path, (char *[]){PROGRAM, NULL});
	} else {
		if (fd == HANDED ? fcntl(fd, F_SETFD, 0) < 0 : dup2(fd, HANDED) < 0)
			fail("hand over the connection");
		execv(path, (char *[]){PROGRAM, (char[]){'0' + HANDED, 0}, NULL});
	}
	fail("run " PROGRAM " in the directory of this program: install it there");
}

// text is a part of the configuration.
typedef struct {
	const char *at;
	size_t n;
} text;

static bool is(text t, const char *word) { return t.n == strlen(word) && memcmp(t.at, word, t.n) == 0; }

// plain tells a text that JSON has as it is.
static bool plain(text t) {
	for (size_t i = 0; i < t.n; i++)
		if (t.at[i] < ' ' || t.at[i] > '~' || t.at[i] == '"' || t.at[i] == '\\')
			return false;
	return true;
}

static const char *at, *end; // what comes next, and the end

static char next(void) {
	while (at < end && memchr(" \t\r\n", *at, 4))
		at++;
	return at < end ? *at : 0;
}

// string reads one, which begins here.
static bool string(text *t) {
	t->at = ++at;
	for (; at < end && *at != '"'; at++)
		if (*at == '\\')
			at++;
	if (at >= end)
		return false;
	t->n = at++ - t->at;
	return true;
}

// value passes over one. What is inside of it is for others to judge.
static bool value(void) {
	text t;
	char c = next();
	if (c == '"')
		return string(&t);
	if (c != '{' && c != '[') {
		const char *from = at;
		while (at < end && !memchr(" \t\r\n,:{}[]\"", *at, 11))
			at++;
		return at > from;
	}
	int depth = 0;
	do {
		if (c == '"') {
			if (!string(&t))
				return false;
		} else {
			depth += (c == '{' || c == '[') - (c == '}' || c == ']');
			at++;
		}
		c = depth > 0 ? next() : 0;
	} while (c);
	return depth == 0;
}

// options finds the socket in the configuration, if it is an object that has nothing
// else which is for the plugin itself.
static bool options(text *sock) {
	bool given = false;
	at = config, end = config + length;
	if (next() != '{')
		return false;
	do {
		at++;
		text key;
		if (next() == '}' && at[-1] == '{')
			break;
		if (next() != '"' || !string(&key) || !plain(key) || next() != ':')
			return false;
		at++;
		if (is(key, "socket")) {
			if (given || next() != '"' || !string(sock) || !plain(*sock) || sock->n == 0 || sock->at[0] != '/')
				return false;
			given = true;
		} else if (is(key, "patience") || !value()) {
			return false;
		}
	} while (next() == ',');
	if (next() != '}')
		return false;
	at++;
	return next() == 0 && at == end;
}

// environment puts the variables into the request, and returns its new end.
static char *environment(char *to) {
	static const char *const names[] = {"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *v = getenv(names[i]);
		text t = {v ? v : "", v ? strlen(v) : 0};
		if (t.n > 1024 || !plain(t))
			return NULL;
		to += sprintf(to, "%s\"%s\":\"%s\"", i ? "," : "", names[i], t.at);
	}
	return to;
}

// send_request has the daemon begin. -1 is that it has not heard of it.
static int send_request(text sock) {
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (sock.n >= sizeof address.sun_path)
		return -1;
	memcpy(address.sun_path, sock.at, sock.n);
	char *body = request + 512; // behind the header, whose length is not known yet
	char *to = environment(body + sprintf(body, "{\"env\":{"));
	if (!to)
		return -1;
	to += sprintf(to, "},\"config\":");
	memcpy(to, config, length);
	to += length;
	*to++ = '}';
	char header[512];
	int n = snprintf(header, sizeof header,
		"POST /cni HTTP/1.1\r\nHost: allocnetd\r\nContent-Type: application/json\r\n"
		"Connection: close\r\nContent-Length: %zu\r\n\r\n", (size_t)(to - body));
	memcpy(body - n, header, n);

	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	ssize_t all = to - body + n;
	if (connect(fd, (struct sockaddr *)&address, sizeof address) || fcntl(fd, F_SETFL, 0) < 0 ||
		send(fd, body - n, all, MSG_NOSIGNAL | MSG_DONTWAIT) != all) {
		close(fd); // what was sent is no request
		return -1;
	}
	return fd;
}

// receive looks at the answer, and finds the body of one that is there as a whole.
static bool receive(int fd, text *body) {
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (poll(&p, 1, SOON) != 1)
		return false;
	ssize_t n = recv(fd, answer, sizeof answer - 1, MSG_PEEK);
	if (n <= 0)
		return false;
	answer[n] = 0;
	static const char status[] = "HTTP/1.1 200 ", field[] = "\r\nContent-Length: ";
	char *content = strstr(answer, "\r\n\r\n");
	if (strncmp(answer, status, sizeof status - 1) || !content)
		return false;
	char *size = strstr(answer, field);
	if (!size || size >= content)
		return false;
	body->at = content += 4;
	body->n = strtoul(size + sizeof field - 1, NULL, 10);
	return body->n == (size_t)(answer + n - content);
}

// print prints the body's result or error, if it is nothing else, and ends the program.
static void print(text body) {
	static const char *const kinds[] = {"{\"result\":", "{\"error\":"};
	at = body.at, end = body.at + body.n;
	if (body.n >= 2 && memcmp(at, "{}", 2) == 0 && (at += 2, next() == 0) && at == end)
		exit(0);
	for (int failed = 0; failed <= 1; failed++) {
		size_t head = strlen(kinds[failed]);
		if (body.n <= head || memcmp(body.at, kinds[failed], head))
			continue;
		at = body.at + head;
		if (!value())
			return;
		const char *from = body.at + head, *to = at;
		if (next() != '}' || (at++, next() != 0) || at != end)
			return;
		exit(write_all(1, from, to - from) ? failed : 1);
	}
}

int main(void) {
	for (int fd = 0; fd <= 2; fd++) // else the connection would be one of these
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			return 1;
	static const char *const commands[] = {"ADD", "DEL", "CHECK", "GC", "STATUS", NULL};
	const char *command = getenv("CNI_COMMAND"), *caller = getenv("ALLOCNET_CALLER");
	const char *const *c = commands;
	while (*c && command && strcmp(*c, command))
		c++;
	if (!command || !*c || caller && *caller)
		hand_over(-1);
	for (ssize_t k = 1; k != 0 && length < MOST; length += k) {
		do
			k = read(0, config + length, MOST - length);
		while (k < 0 && again(0, POLLIN));
		if (k < 0)
			hand_over(-1); // which says why
	}
	int fd = -1;
	text sock = {DEFAULT_SOCKET, sizeof DEFAULT_SOCKET - 1}, body;
	if (length < MOST && options(&sock))
		fd = send_request(sock);
	if (fd >= 0 && receive(fd, &body))
		print(body);
	put_back();
	hand_over(fd);
}
