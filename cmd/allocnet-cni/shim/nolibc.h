// In place of the C library, whose start takes longer than all the work of a shim: it
// executes the CPUID instruction 68 times, and a virtual machine traps each time. This
// file has what the shims use of the library, with the same names, and starts the
// program. Other processors than x86-64 have no such instruction; there the library is
// used.

#include <elf.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#ifndef __x86_64__
#error "only for x86-64"
#endif

__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall begin\n");

static long call(long n, long a, long b, long c, long d, long e, long f) {
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return n;
}

static int error; // errno
int *__errno_location(void) { return &error; }

// result returns what the library's function returns for the result of a system call.
static long result(long r) {
	if (r >= 0 || r < -4095)
		return r;
	error = -r;
	return -1;
}

#define SYSCALL(n, a, b, c, d, e, f) result(call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f)))

ssize_t read(int fd, void *to, size_t n) { return SYSCALL(SYS_read, fd, to, n, 0, 0, 0); }
ssize_t write(int fd, const void *from, size_t n) { return SYSCALL(SYS_write, fd, from, n, 0, 0, 0); }
int open(const char *path, int flags, ...) { return SYSCALL(SYS_openat, AT_FDCWD, path, flags, 0, 0, 0); }
int close(int fd) { return SYSCALL(SYS_close, fd, 0, 0, 0, 0, 0); }
int dup2(int from, int to) { return SYSCALL(SYS_dup3, from, to, 0, 0, 0, 0); } // from differs from to
off_t lseek(int fd, off_t at, int whence) { return SYSCALL(SYS_lseek, fd, at, whence, 0, 0, 0); }
int memfd_create(const char *name, unsigned flags) { return SYSCALL(SYS_memfd_create, name, flags, 0, 0, 0, 0); }
ssize_t readlink(const char *path, char *to, size_t n) { return SYSCALL(SYS_readlinkat, AT_FDCWD, path, to, n, 0, 0); }
int stat(const char *path, struct stat *to) { return SYSCALL(SYS_newfstatat, AT_FDCWD, path, to, 0, 0, 0); }
int socket(int family, int type, int protocol) { return SYSCALL(SYS_socket, family, type, protocol, 0, 0, 0); }
int connect(int fd, const struct sockaddr *to, socklen_t n) { return SYSCALL(SYS_connect, fd, to, n, 0, 0, 0); }
ssize_t sendmsg(int fd, const struct msghdr *m, int flags) { return SYSCALL(SYS_sendmsg, fd, m, flags, 0, 0, 0); }
ssize_t recv(int fd, void *to, size_t n, int flags) { return SYSCALL(SYS_recvfrom, fd, to, n, flags, 0, 0); }

int fcntl(int fd, int command, ...) {
	va_list list;
	va_start(list, command);
	int argument = va_arg(list, int);
	va_end(list);
	return SYSCALL(SYS_fcntl, fd, command, argument, 0, 0, 0);
}

int poll(struct pollfd *fds, nfds_t n, int milliseconds) {
	struct timespec limit = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
	return SYSCALL(SYS_ppoll, fds, n, milliseconds < 0 ? NULL : &limit, 0, 0, 0);
}

_Noreturn void exit(int status) {
	for (;;)
		call(SYS_exit_group, status, 0, 0, 0, 0, 0);
}

static char **environment_of_process;
static const Elf64_auxv_t *auxiliary;

int execv(const char *path, char *const argv[]) {
	return SYSCALL(SYS_execve, path, argv, environment_of_process, 0, 0, 0);
}

unsigned long getauxval(unsigned long type) {
	for (const Elf64_auxv_t *a = auxiliary; a->a_type != AT_NULL; a++)
		if (a->a_type == type)
			return a->a_un.a_val;
	return 0;
}

// The compiler calls the first four itself.
void *memcpy(void *to, const void *from, size_t n) {
	for (size_t i = 0; i < n; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

void *memset(void *to, int c, size_t n) {
	for (size_t i = 0; i < n; i++)
		((char *)to)[i] = c;
	return to;
}

int memcmp(const void *a, const void *b, size_t n) {
	const unsigned char *x = a, *y = b;
	for (; n > 0; x++, y++, n--)
		if (*x != *y)
			return *x - *y;
	return 0;
}

size_t strlen(const char *s) {
	size_t n = 0;
	while (s[n])
		n++;
	return n;
}

void *memchr(const void *s, int c, size_t n) {
	for (const char *p = s; n > 0; p++, n--)
		if (*p == (char)c)
			return (void *)p;
	return NULL;
}

char *strchr(const char *s, int c) { return memchr(s, c, strlen(s) + 1); }

char *strrchr(const char *s, int c) {
	char *last = NULL;
	for (; *s; s++)
		if (*s == c)
			last = (char *)s;
	return last;
}

int strcmp(const char *a, const char *b) {
	for (; *a && *a == *b; a++, b++)
		;
	return (unsigned char)*a - (unsigned char)*b;
}

int strncmp(const char *a, const char *b, size_t n) {
	for (; n > 0 && *a && *a == *b; a++, b++, n--)
		;
	return n == 0 ? 0 : (unsigned char)*a - (unsigned char)*b;
}

char *strcpy(char *to, const char *from) { return memcpy(to, from, strlen(from) + 1); }

size_t strspn(const char *s, const char *accepted) {
	size_t n = 0;
	while (s[n] && strchr(accepted, s[n]))
		n++;
	return n;
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; }

char *strcasestr(const char *s, const char *part) {
	for (;; s++) {
		size_t i = 0;
		while (part[i] && lower(s[i]) == lower(part[i]))
			i++;
		if (!part[i])
			return (char *)s;
		if (!*s)
			return NULL;
	}
}

char *strstr(const char *s, const char *part) {
	size_t n = strlen(part);
	for (; *s; s++)
		if (!strncmp(s, part, n))
			return (char *)s;
	return NULL;
}

// strtoul reads decimal digits, of which there must be one at least. A number that is
// too large is ULONG_MAX.
unsigned long strtoul(const char *s, char **end, int base) {
	unsigned long n = 0;
	for (; *s >= '0' && *s <= '9'; s++)
		if (__builtin_mul_overflow(n, base, &n) || __builtin_add_overflow(n, *s - '0', &n))
			n = -1UL / base;
	if (end)
		*end = (char *)s;
	return n;
}

char *getenv(const char *name) {
	size_t n = strlen(name);
	for (char **e = environment_of_process; *e; e++)
		if (!strncmp(*e, name, n) && (*e)[n] == '=')
			return *e + n + 1;
	return NULL;
}

// vsprintf knows %s and decimal numbers of the size of a pointer: %zu and %ju.
int vsprintf(char *to, const char *format, va_list list) {
	char *from = to, digits[24];
	for (; *format; format++) {
		if (*format != '%') {
			*to++ = *format;
			continue;
		}
		const char *text = digits + sizeof digits - 1;
		if (*++format == 's') {
			text = va_arg(list, const char *);
		} else {
			uintptr_t n = va_arg(list, uintptr_t);
			char *at = digits + sizeof digits;
			for (*--at = 0; n > 9; n /= 10)
				*--at = '0' + n % 10;
			*--at = '0' + n;
			text = at, format++;
		}
		size_t n = strlen(text);
		memcpy(to, text, n);
		to += n;
	}
	*to = 0;
	return to - from;
}

int sprintf(char *to, const char *format, ...) {
	va_list list;
	va_start(list, format);
	int n = vsprintf(to, format, list);
	va_end(list);
	return n;
}

char *strerror(int number) {
	static char text[32];
	switch (number) {
	case ENOENT:
		return "No such file or directory";
	case EACCES:
		return "Permission denied";
	}
	sprintf(text, "error %zu", (size_t)number);
	return text;
}

// The canary that the compiler puts behind arrays on the stack.
uintptr_t __stack_chk_guard;
_Noreturn void __stack_chk_fail(void) {
	__builtin_trap();
}

int main(void);
extern const Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden")));
extern const Elf64_Dyn _DYNAMIC[] __attribute__((visibility("hidden")));

// relocate adds the program's address to the pointers in its data, and makes them
// read-only.
static inline __attribute__((always_inline)) void relocate(void) {
	char *const base = (char *)&__ehdr_start;
	const Elf64_Rela *table = NULL;
	size_t size = 0;
	for (const Elf64_Dyn *d = _DYNAMIC; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_RELA)
			table = (const Elf64_Rela *)(base + d->d_un.d_ptr);
		if (d->d_tag == DT_RELASZ)
			size = d->d_un.d_val;
	}
	for (size_t i = 0; i < size / sizeof *table; i++)
		if (ELF64_R_TYPE(table[i].r_info) == R_X86_64_RELATIVE)
			*(uintptr_t *)(base + table[i].r_offset) = (uintptr_t)base + table[i].r_addend;
	const Elf64_Phdr *p = (const Elf64_Phdr *)(base + __ehdr_start.e_phoff);
	for (int i = 0; i < __ehdr_start.e_phnum; i++) {
		uintptr_t from = (uintptr_t)base + p[i].p_vaddr & -4096UL, to = (uintptr_t)base + p[i].p_vaddr + p[i].p_memsz & -4096UL;
		if (p[i].p_type == PT_GNU_RELRO)
			call(SYS_mprotect, from, to - from, PROT_READ, 0, 0, 0);
	}
}

// begin is called with the stack of a new process: the number of arguments, pointers to
// the arguments, the environment and the auxiliary vector.
__attribute__((used, no_stack_protector)) _Noreturn void begin(uintptr_t *stack) {
	relocate();
	environment_of_process = (char **)stack + 1 + stack[0] + 1;
	char **e = environment_of_process;
	while (*e)
		e++;
	auxiliary = (const Elf64_auxv_t *)(e + 1);
	const uintptr_t *canary = (const uintptr_t *)getauxval(AT_RANDOM);
	__stack_chk_guard = canary ? *canary : 0;
	exit(main());
}
