package faultinject

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// caller is a thread of the process under test that is blocked in a system
// call.
type caller struct {
	pidfd int
	tid   int
	args  [6]uint64
}

// Limits on what is read from the process.
const (
	longestPath    = unix.PathMax
	longestMessage = 1 << 20
	longestVector  = 1 << 10
)

// read reads up to n bytes that an argument points to. It returns fewer if the
// mapped memory ends before.
func (c *caller) read(at, n int) ([]byte, error) { return c.readAt(c.args[at], n) }

func (c *caller) readAt(address uint64, n int) ([]byte, error) {
	buffer := make([]byte, n)
	got, err := unix.ProcessVMReadv(c.tid, []unix.Iovec{iovec(buffer)}, []unix.RemoteIovec{{Base: uintptr(address), Len: n}}, 0)
	if err != nil {
		return nil, fmt.Errorf("read memory: %w", err)
	}
	return buffer[:got], nil
}

func iovec(buffer []byte) unix.Iovec {
	v := unix.Iovec{Base: &buffer[0]}
	v.SetLen(len(buffer))
	return v
}

// text reads a string page by page, because the next page may not be mapped.
func (c *caller) text(at int) (string, error) { return c.textAt(c.args[at]) }

func (c *caller) textAt(address uint64) (string, error) {
	var all []byte
	for len(all) < longestPath {
		n := os.Getpagesize() - int(address)%os.Getpagesize()
		part, err := c.readAt(address, n)
		if err != nil {
			return "", err
		}
		if end := bytes.IndexByte(part, 0); end >= 0 {
			return string(append(all, part[:end]...)), nil
		}
		all, address = append(all, part...), address+uint64(n)
	}
	return "", errors.New("a path is too long")
}

// texts reads a null-terminated list of strings.
func (c *caller) texts(at int) ([]string, error) {
	var all []string
	for i := range uint64(longestVector) {
		entry, err := c.readAt(c.args[at]+8*i, 8)
		if err != nil {
			return nil, err
		}
		address := binary.NativeEndian.Uint64(entry)
		if address == 0 {
			break
		}
		text, err := c.textAt(address)
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, nil
}

// path resolves a directory descriptor and the path in the next argument.
// Without a path it returns the file of the descriptor.
func (c *caller) path(at int) (string, error) {
	var path string
	if c.args[at+1] != 0 {
		var err error
		if path, err = c.text(at + 1); err != nil {
			return "", err
		}
	}
	if own, ok := strings.CutPrefix(path, "/proc/self/"); ok {
		return fmt.Sprintf("/proc/%d/%s", c.tid, own), nil
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	directory := "cwd"
	if fd := int32(c.args[at]); fd != unix.AT_FDCWD {
		directory = fmt.Sprintf("fd/%d", fd)
	}
	base, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", c.tid, directory))
	return filepath.Join(base, path), err
}

// file returns the kernel's name for the file behind a descriptor.
func (c *caller) file(at int) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.tid, int32(c.args[at])))
}

// socket returns the domain and the protocol of a socket descriptor.
func (c *caller) socket(at int) (domain, protocol int, err error) {
	fd, err := unix.PidfdGetfd(c.pidfd, int(int32(c.args[at])), 0)
	if err != nil {
		return 0, 0, fmt.Errorf("take socket: %w", err)
	}
	defer unix.Close(fd)
	if domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		return 0, 0, fmt.Errorf("socket domain: %w", err)
	}
	if protocol, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil {
		return 0, 0, fmt.Errorf("socket protocol: %w", err)
	}
	return domain, protocol, nil
}
