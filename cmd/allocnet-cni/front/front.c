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
	DEEPEST = 100,   // how deep values may be nested
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

static bool seen(const char *bytes) { return at < end && *at && strchr(bytes, *at); }

static char next(void) {
	while (at < end && memchr(" \t\r\n", *at, 4))
		at++;
	return at < end ? *at : 0;
}

// string reads one, which begins here.
static bool string(text *t) {
	for (t->at = ++at; at < end && *at != '"'; at++) {
		if ((unsigned char)*at < ' ')
			return false;
		if (*at != '\\')
			continue;
		at++;
		if (!seen("\"\\/bfnrtu"))
			return false;
		for (int i = *at == 'u' ? 4 : 0; i > 0; i--)
			if (at++, !seen("0123456789abcdefABCDEF"))
				return false;
	}
	if (at >= end)
		return false;
	t->n = at++ - t->at;
	return true;
}

static bool word(const char *w) {
	size_t n = strlen(w);
	if ((size_t)(end - at) < n || memcmp(at, w, n))
		return false;
	at += n;
	return true;
}

static bool digits(void) {
	const char *from = at;
	while (seen("0123456789"))
		at++;
	return at > from;
}

static bool number(void) {
	if (seen("-"))
		at++;
	if (!word("0") && !digits())
		return false;
	if (word(".") && !digits())
		return false;
	if (!seen("eE"))
		return true;
	if (at++, seen("+-"))
		at++;
	return digits();
}

// value passes over one that is JSON.
static bool value(int depth) {
	text key;
	char c = next();
	if (c == '"')
		return string(&key);
	if (c != '{' && c != '[')
		return word("true") || word("false") || word("null") || number();
	char close = c == '{' ? '}' : ']';
	if (at++, next() == close)
		return at++, true;
	for (; depth < DEEPEST; at++) {
		if (c == '{' && (next() != '"' || !string(&key) || next() != ':' || !word(":")))
			return false;
		if (!value(depth + 1))
			return false;
		if (next() == close)
			return at++, true;
		if (!seen(","))
			return false;
	}
	return false;
}

// object reads one that begins here, each of whose members reads its own value.
static bool object(bool (*member)(text key)) {
	if (!word("{"))
		return false;
	if (next() == '}')
		return word("}");
	for (text key; next() == '"' && string(&key) && plain(key) && next() == ':' && word(":") && member(key);) {
		if (next() == '}')
			return word("}");
		if (!word(","))
			break;
	}
	return false;
}

// nothing reports whether nothing follows.
static bool nothing(void) { return next() == 0 && at == end; }

// plain_string reads one.
static bool plain_string(text *t) { return next() == '"' && string(t) && plain(*t); }

// What the configuration says for the plugin itself.
static text version = {"", 0}, sock = {DEFAULT_SOCKET, sizeof DEFAULT_SOCKET - 1};

static bool option(text key) {
	static bool given;
	if (is(key, "cniVersion"))
		return plain_string(&version);
	if (!is(key, "socket"))
		return !is(key, "patience") && value(0);
	if (given || !plain_string(&sock) || sock.n == 0 || sock.at[0] != '/')
		return false;
	return given = true;
}

// options reads the configuration, if it is an object in which all is plain that is for
// the plugin itself.
static bool options(void) {
	at = config, end = config + length;
	next();
	return object(option) && nothing();
}

// environment puts the variables into the request, and returns its new end.
static char *environment(char *to) {
	static const char *const names[] = {
		"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE",
	};
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
static int send_request(void) {
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
	char *size = strstr(answer, field), *behind;
	if (!size || size >= content || strcasestr(answer, "transfer-encoding"))
		return false;
	size += sizeof field - 1;
	body->at = content + 4;
	body->n = strtoul(size, &behind, 10);
	return *size >= '0' && *size <= '9' && *behind == '\r' && !strcasestr(behind, "content-length:") &&
		body->n == (size_t)(answer + n - body->at);
}

// What a result or an error has that must have it.
static bool versioned, coded, said;

static bool result_member(text key) {
	text t;
	if (is(key, "cniVersion"))
		return versioned = plain_string(&t) && t.n == version.n && memcmp(t.at, version.at, t.n) == 0;
	return value(0);
}

static bool error_member(text key) {
	text t;
	next();
	const char *from = at;
	if (is(key, "code"))
		return coded = seen("123456789") && digits() && at - from < 10;
	if (is(key, "msg"))
		return said = seen("\"") && string(&t);
	return value(0);
}

// print prints the body's result, for an ADD, or its error, and ends the program. What is
// not just that is left to allocnet-cni.
static void print(text body, bool add) {
	at = body.at, end = body.at + body.n;
	if (!add && word("{}") && nothing())
		exit(0);
	at = body.at;
	bool good = word("{\"result\":");
	if (!good && !word("{\"error\":"))
		return;
	const char *from = at;
	if (!object(good ? result_member : error_member) || !(good ? add && versioned : coded && said))
		return;
	const char *to = at;
	if (next() == '}' && word("}") && nothing())
		exit(write_all(1, from, to - from) ? !good : 1);
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
	text body;
	if (length < MOST && options())
		fd = send_request();
	if (fd >= 0 && receive(fd, &body))
		print(body, strcmp(command, "ADD") == 0);
	put_back();
	hand_over(fd);
}
