package packaging

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// helperMode makes the test binary a program of the throwaway host: "serve
// ADDRESS" answers every line with itself, "connect ADDRESS" sends each line of
// standard input and prints the answer.
const helperMode = "ALLOCNET_PACKAGE_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperMode) != "" {
		if err := helper(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if releases != "" {
		_ = os.RemoveAll(releases)
	}
	os.Exit(code)
}

func helper(mode, address string) error {
	if mode == "connect" {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(c, os.Stdin) }()
		lines := bufio.NewScanner(c)
		for lines.Scan() {
			fmt.Println(lines.Text())
		}
		return lines.Err()
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(c, c) }()
	}
}

// top is the directory of the checkout.
func top(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
