// allocnet-cni-shim is the program that runtimes start as the CNI plugin of type
// "allocnet". It serves the usual case of allocnet-cni: it sends the runtime's request
// to allocnetd and prints an answer that arrives soon and in one piece. A Go program
// needs a millisecond or two to start, which is most of the cost of an ADD through the
// daemon; the shim needs a fraction of that. In every other case it executes
// allocnet-cni from its own directory. At that time it has either sent nothing, or
// passes on the connection, from which it has read nothing.
//
// The protocol is in cmd/internal/cni.

#define PROGRAM "allocnet-cni"
#include "common.h"

enum {
	MAX_HEADER = 512, // maximum length of the request's header
	MAX_DEPTH = 100,  // maximum depth of nested values
	WAIT = 250,       // milliseconds to wait for an answer, less than the interval of keepalives
	HANDED = 3,       // descriptor of the connection that allocnet-cni gets
};

static const char *const variables[] = {
	"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE",
};
enum {
	VARIABLES = sizeof variables / sizeof *variables,
	// The header, the variables with their punctuation, the enclosing JSON and the
	// configuration.
	MAX_REQUEST = MAX_HEADER + VARIABLES * (MAX_VARIABLE + 32) + 64 + MAX_CONFIG,
};

static char request[MAX_REQUEST], answer[MAX_CONFIG];

// hand_over executes allocnet-cni, with the connection unless fd is negative.
static _Noreturn void hand_over(int fd) {
	if (fd < 0)
		execute((char *[]){PROGRAM, NULL});
	if (fd == HANDED ? fcntl(fd, F_SETFD, 0) < 0 : dup2(fd, HANDED) < 0)
		fail("hand over the connection");
	execute((char *[]){PROGRAM, (char[]){'0' + HANDED, 0}, NULL});
}

// text is a part of the configuration.
typedef struct {
	const char *at;
	size_t n;
} text;

// is reports whether a text is equal to a word.
static bool is(text t, const char *word) { return t.n == strlen(word) && memcmp(t.at, word, t.n) == 0; }

// plain reports whether a text is written in JSON without escapes: it is printable
// ASCII without quotes and backslashes.
static bool plain(text t) {
	for (size_t i = 0; i < t.n; i++)
		if (t.at[i] < ' ' || t.at[i] > '~' || t.at[i] == '"' || t.at[i] == '\\')
			return false;
	return true;
}

static const char *at, *end; // the parser's position and the end of its input

// seen reports whether the next byte is one of the given bytes.
static bool seen(const char *bytes) { return at < end && *at && strchr(bytes, *at); }

// next skips white space and returns the next byte, or 0 at the end.
static char next(void) {
	while (at < end && memchr(" \t\r\n", *at, 4))
		at++;
	return at < end ? *at : 0;
}

// string parses a string, whose first quote must be the next byte. The text is the part
// between the quotes, with unresolved escapes.
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

// word skips the bytes of w if they come next, and reports whether they did.
static bool word(const char *w) {
	size_t n = strlen(w);
	if ((size_t)(end - at) < n || memcmp(at, w, n))
		return false;
	at += n;
	return true;
}

// digits skips one or more digits.
static bool digits(void) {
	const char *from = at;
	while (seen("0123456789"))
		at++;
	return at > from;
}

// number skips a JSON number.
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

// value skips a JSON value.
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
	for (; depth < MAX_DEPTH; at++) {
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

// object parses an object with plain keys; member parses the value of each key.
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

// at_end reports whether only white space follows.
static bool at_end(void) { return next() == 0 && at == end; }

// plain_string parses a string whose text is plain.
static bool plain_string(text *t) { return next() == '"' && string(t) && plain(*t); }

// The values of the configuration that the shim itself uses.
static text version = {"", 0}, sock = {DEFAULT_SOCKET, sizeof DEFAULT_SOCKET - 1};

// option parses one key of the configuration. It rejects an idle timeout, which only
// allocnet-cni implements.
static bool option(text key) {
	static bool given;
	if (is(key, "cniVersion"))
		return plain_string(&version);
	if (!is(key, "socket"))
		return !is(key, "idleTimeout") && !is(key, "patience") && value(0);
	if (given || !plain_string(&sock) || sock.n == 0 || sock.at[0] != '/')
		return false;
	return given = true;
}

// options parses the configuration. It must be an object with plain keys and plain
// values of the keys that the shim uses.
static bool options(void) {
	at = config, end = config + length;
	next();
	return object(option) && at_end();
}

// environment appends the variables to the request and returns its new end, or NULL if
// a value is too long or not plain.
static char *environment(char *to) {
	for (int i = 0; i < VARIABLES; i++) {
		const char *v = value_of(variables[i]);
		text t = {v, strlen(v)};
		if (t.n > MAX_VARIABLE || !plain(t))
			return NULL;
		to += sprintf(to, "%s\"%s\":\"%s\"", i ? "," : "", variables[i], t.at);
	}
	return to;
}

// send_request sends the request and returns the connection, or -1 if the request could
// not be sent completely.
static int send_request(void) {
	char *body = request + MAX_HEADER; // the header's length is not known yet
	char *to = environment(body + sprintf(body, "{\"env\":{"));
	if (!to)
		return -1;
	to += sprintf(to, "},\"config\":");
	memcpy(to, config, length);
	to += length;
	*to++ = '}';
	char header[MAX_HEADER];
	int n = sprintf(header,
		"POST /cni HTTP/1.1\r\nHost: allocnetd\r\nContent-Type: application/json\r\n"
		"Connection: close\r\nContent-Length: %zu\r\n\r\n", (size_t)(to - body));
	memcpy(body - n, header, n);

	return send_to(sock.at, sock.n, &(struct iovec){body - n, to - body + n}, 1);
}

// receive waits for the answer and finds its body if the whole answer has arrived. It
// does not consume the answer, so that allocnet-cni can read it.
static bool receive(int fd, text *body) {
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (poll(&p, 1, WAIT) != 1)
		return false;
	ssize_t n = recv(fd, answer, sizeof answer - 1, MSG_PEEK);
	if (n <= 0)
		return false;
	answer[n] = 0;
	static const char status[] = "HTTP/1.1 200 ", field[] = "Content-Length: ";
	char *content = strstr(answer, "\r\n\r\n"), *rest;
	if (strncmp(answer, status, sizeof status - 1) || !content)
		return false;
	content[2] = 0; // ends the header
	char *size = strcasestr(answer, "content-length");
	if (!size || size[-1] != '\n' || strncmp(size, field, sizeof field - 1))
		return false;
	if (strcasestr(answer, "transfer-encoding") || strstr(answer, "\n\n"))
		return false;
	size += sizeof field - 1;
	body->at = content + 4;
	body->n = strtoul(size, &rest, 10);
	return *size >= '0' && *size <= '9' && *rest == '\r' && rest[1] == '\n' && !strcasestr(rest, "content-length") &&
		body->n == (size_t)(answer + n - body->at);
}

// The members found in the answer: a result's version, an error's code and message.
static bool versioned, coded, said;

// result_member checks one key of a result: its version must be that of the
// configuration.
static bool result_member(text key) {
	text t;
	if (is(key, "cniVersion"))
		return versioned = plain_string(&t) && t.n == version.n && memcmp(t.at, version.at, t.n) == 0;
	return value(0);
}

// error_member checks one key of an error: the code is a positive number, the message a
// string.
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

// print prints the result of an ADD or the error in the body, and ends the program. For
// any other body it returns, and allocnet-cni handles the answer.
static void print(text body, bool add) {
	at = body.at, end = body.at + body.n;
	if (!add && word("{}") && at_end())
		exit(0);
	at = body.at;
	bool good = word("{\"result\":");
	if (!good && !word("{\"error\":"))
		return;
	const char *from = at;
	if (!object(good ? result_member : error_member) || !(good ? add && versioned : coded && said))
		return;
	const char *to = at;
	if (next() == '}' && word("}") && at_end())
		exit(write_all(1, from, to - from) ? !good : 1);
}

int main(void) {
	open_standard();
	if (!is_served())
		hand_over(-1);
	if (!read_config())
		hand_over(-1); // allocnet-cni reports the error
	int fd = -1;
	text body;
	if (length < MAX_CONFIG && options())
		fd = send_request();
	if (fd >= 0 && receive(fd, &body))
		print(body, strcmp(value_of("CNI_COMMAND"), "ADD") == 0);
	restore_stdin();
	hand_over(fd);
}
