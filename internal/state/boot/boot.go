// Package boot identifies the boot of the host. State that outlives the kernel names
// the boot in which it was written, because links, network namespaces and rules of an
// earlier boot do not exist any more.
package boot

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// ID returns the ID of this boot of the host, a UUID. It is the same for all processes
// and namespaces of the host. ID reads it once.
var ID = sync.OnceValues(func() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the ID of this boot: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" || strings.ContainsAny(id, "/\x00") || id[0] == '.' {
		return "", errors.New("read the ID of this boot: not an ID")
	}
	return id, nil
})
