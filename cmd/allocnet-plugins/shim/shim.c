// allocnet-plugins-shim selects the CNI plugin, such as bridge, by the name under which it
// is started (argv[0]): a link that `allocnet plugins install --daemon` creates. It sends the runtime's
// call to allocnetd, which runs the native plugin, and prints the answer. It executes
// allocnet-plugins from its own directory, which does the same work itself, if allocnetd
// does not serve the call or is not running. If the answer is lost, the daemon may have
// begun: an ADD then fails, and the runtime runs DEL; every other command can be repeated
// and is executed.
//
// The protocol is in cmd/internal/dropin.

#define PROGRAM "allocnet-plugins"
#include "../../allocnet-cni/shim/common.h"
#include <stdint.h>
#include <sys/auxv.h>

enum {
	MAX_NAME = 32,       // maximum length of a plugin's name
	MAX_ANSWER = 1 << 20, // maximum size of an answer
	IDLE = 5000,         // milliseconds to wait for an answer or a keepalive
};

// The variables of the runtime and the header fields in which they are sent.
static const struct {
	const char *variable, *field;
} fields[] = {
	{"CNI_COMMAND", "CNI-Command"}, {"CNI_CONTAINERID", "CNI-ContainerID"}, {"CNI_NETNS", "CNI-Netns"},
	{"CNI_IFNAME", "CNI-Ifname"},   {"CNI_ARGS", "CNI-Args"},               {"CNI_PATH", "CNI-Path"},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static char header[FIELDS * (MAX_VARIABLE + 32) + 512], answer[MAX_ANSWER + 1];

// plugin_name returns the name of the file that was executed: the plugin's, if it is a
// link.
static const char *plugin_name(void) {
	const char *path = (const char *)getauxval(AT_EXECFN);
	const char *slash = path ? strrchr(path, '/') : NULL;
	return slash ? slash + 1 : path ? path : "";
}

// is_name reports whether a text can be the name of a plugin.
static bool is_name(const char *name) {
	return *name && strlen(name) <= MAX_NAME && !name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")];
}

// is_value reports whether a header field can have the value without a change.
static bool is_value(const char *v) {
	size_t n = strlen(v);
	for (size_t i = 0; i < n; i++)
		if (v[i] < ' ' || v[i] > '~')
			return false;
	return n <= MAX_VARIABLE && (n == 0 || v[0] != ' ' && v[n - 1] != ' ');
}

// identify appends the device and the inode of a file, and reports whether it exists.
static bool identify(char **to, const char *path) {
	struct stat s;
	if (stat(path, &s))
		return false;
	*to += sprintf(*to, "%ju:%ju", (uintmax_t)s.st_dev, (uintmax_t)s.st_ino);
	return true;
}

// send_call sends the call and returns the connection, or -1 if the call could not be
// sent completely.
static int send_call(const char *name) {
	char *to = header + sprintf(header, "POST /cni/plugins/%s HTTP/1.1\r\nHost: allocnetd\r\nConnection: close\r\n"
		"Content-Type: application/json\r\nContent-Length: %zu\r\n", name, length);
	for (size_t i = 0; i < FIELDS; i++) {
		const char *v = value_of(fields[i].variable);
		if (!is_value(v))
			return -1;
		to += sprintf(to, "%s: %s\r\n", fields[i].field, v);
	}
	// The plugin's work is the same in the daemon only if both have the same network and
	// mount namespace and the same root, and CNI_NETNS leads both to the same file.
	static const char *const places[] = {"/proc/self/ns/net", "/proc/self/ns/mnt", "/"};
	to += sprintf(to, "Allocnet-Host:");
	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		if (*to++ = ' ', !identify(&to, places[i]))
			return -1;
	to += sprintf(to, "\r\nAllocnet-Netns: ");
	identify(&to, value_of("CNI_NETNS"));
	to += sprintf(to, "\r\n\r\n");
	return send_to(DEFAULT_SOCKET, sizeof DEFAULT_SOCKET - 1,
		(struct iovec[]){{header, to - header}, {config, length}}, 2);
}

// number_of returns the number in a header field, or SIZE_MAX. The field's name includes
// the line feed before it and the colon and space behind it.
static size_t number_of(const char *head, const char *field) {
	const char *at = strstr(head, field), *value = at ? at + strlen(field) : "";
	return *value >= '0' && *value <= '9' ? strtoul(value, NULL, 10) : SIZE_MAX;
}

// print prints what the plugin has said: lines of the header on stderr, the body on
// stdout.
static _Noreturn void print(char *head, const char *body, size_t n, int status) {
	static const char field[] = "\nAllocnet-Stderr: ";
	for (char *at = head, *end; (at = strstr(at, field)) && (end = strchr(at += sizeof field - 1, '\r')); at = end)
		if (!write_all(2, at, end - at) || !write_all(2, "\n", 1))
			break;
	exit(write_all(1, body, n) ? status : 1);
}

// receive waits for the answer. It prints an answer of the plugin and ends the program.
// Otherwise it returns the HTTP status of the daemon's refusal, or 0 if there is no
// complete answer.
static int receive(int fd) {
	char *head = answer; // of the first response that is not a keepalive
	for (size_t n = 0; n < MAX_ANSWER;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t k = poll(&p, 1, IDLE) == 1 ? recv(fd, answer + n, MAX_ANSWER - n, 0) : 0;
		if (k <= 0)
			break;
		answer[n += k] = 0;
		for (char *end; (end = strstr(head, "\r\n\r\n")); head = end + 4) {
			if (strncmp(head, "HTTP/1.1 ", 9))
				return 0;
			size_t status = number_of(head, "HTTP/1.1 ");
			if (status < 200)
				continue;
			end[2] = 0; // so that nothing is found in the body
			if (status == 204)
				print(head, "", 0, 0);
			if (status != 200)
				return status < 600 ? status : 0;
			size_t size = number_of(head, "\nContent-Length: "), exit_status = number_of(head, "\nAllocnet-Exit-Status: ");
			size_t got = answer + n - (end + 4);
			if (size > MAX_ANSWER || exit_status > 1 || got > size)
				return 0;
			if (got == size)
				print(head, end + 4, got, exit_status);
			end[2] = '\r';
			break;
		}
	}
	return 0;
}

int main(void) {
	open_standard();
	const char *name = plugin_name();
	char *const argv[] = {(char *)name, NULL};
	// The daemon may use another bus to reach firewalld.
	if (!is_served() || *value_of("DBUS_SYSTEM_BUS_ADDRESS") || !is_name(name) || !read_config())
		execute(argv);
	int fd = length < MAX_CONFIG ? send_call(name) : -1;
	if (fd >= 0) {
		int status = receive(fd);
		close(fd);
		if (status == 408 || status == 429 || status == 503 || status == 504)
			give_up("call allocnetd", "it is busy");
		if ((status == 0 || status == 500) && !strcmp(value_of("CNI_COMMAND"), "ADD"))
			give_up("call allocnetd", "its answer is lost");
	}
	restore_stdin();
	execute(argv);
}
