package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// sysctl is a kernel parameter with its requested value.
type sysctl struct{ key, value string }

// sysctls is a JSON object of sysctls that keeps its order, in which they are
// set. The order matters because a sysctl of all interfaces changes those of
// each interface.
type sysctls struct {
	list []sysctl
	// duplicate is a key that occurs twice, or "".
	duplicate string
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *sysctls) UnmarshalJSON(data []byte) error {
	*s = sysctls{}
	var values map[string]string
	if err := json.Unmarshal(data, &values); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if _, err := d.Token(); err != nil || values == nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if _, err := d.Token(); err != nil {
			return err
		}
		s.put(key.(string), values[key.(string)])
	}
	return nil
}

func (s *sysctls) errDuplicate() error {
	return sdk.Invalid(fmt.Errorf("sysctl %q is configured twice", s.duplicate))
}

// put adds a sysctl, or records that it is a duplicate.
func (s *sysctls) put(key, value string) {
	if slices.ContainsFunc(s.list, func(have sysctl) bool { return have.key == key }) {
		s.duplicate = key
		return
	}
	s.list = append(s.list, sysctl{key, value})
}

// with returns the list with the values of other in place of its own.
func (s *sysctls) with(other sysctls) []sysctl {
	list := slices.Clone(s.list)
	for _, o := range other.list {
		i := slices.IndexFunc(list, func(have sysctl) bool { return have.key == o.key })
		if i < 0 {
			list = append(list, o)
		} else {
			list[i] = o
		}
	}
	return list
}

const sysctlRoot = "/proc/sys/net/"

// file returns the path of the sysctl. IFNAME in the key stands for the
// interface, whose name may contain dots.
func (s sysctl) file(ifName string) (string, error) {
	key := strings.ReplaceAll(s.key, ".", "/")
	key = strings.Replace(key, "IFNAME", ifName, 1)
	file := filepath.Join("/proc/sys", key)
	if !strings.HasPrefix(file, sysctlRoot) || slices.Contains(strings.Split(key, "/"), "..") {
		return "", sdk.Invalid(fmt.Errorf("sysctl %q is not below net", s.key))
	}
	return file, nil
}

// files returns the paths of all sysctls, so that an invalid key is found
// before one is set.
func files(list []sysctl, ifName string) ([]string, error) {
	all := make([]string, len(list))
	for i, s := range list {
		var err error
		if all[i], err = s.file(ifName); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// undo is the previous value of a sysctl.
type undo struct{ file, value string }

// setSysctls sets the sysctls in the container's namespace. If one fails, it
// restores the previous ones. Otherwise it returns the previous values in
// reverse order.
func setSysctls(s *rtnl.Sandbox, list []sysctl, ifName string) (undos []undo, err error) {
	names, err := files(list, ifName)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	err = s.Do(func() error {
		for i, file := range names {
			before, readErr := os.ReadFile(file)
			if err := writeSysctl(file, list[i].value); err != nil {
				return errors.Join(fmt.Errorf("set sysctl %q: %w", list[i].key, err), restoreSysctls(undos))
			}
			// A sysctl that cannot be read cannot be restored: it is a command,
			// not a value.
			if readErr == nil {
				undos = slices.Insert(undos, 0, undo{file, strings.TrimSuffix(string(before), "\n")})
			}
		}
		return nil
	})
	return undos, err
}

// writeSysctl writes a sysctl. It never creates a file.
func writeSysctl(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// resetSysctls restores values in the container's namespace.
func resetSysctls(s *rtnl.Sandbox, undos []undo) error {
	if len(undos) == 0 {
		return nil
	}
	return s.Do(func() error { return restoreSysctls(undos) })
}

func restoreSysctls(undos []undo) error {
	var errs []error
	for _, u := range undos {
		if err := writeSysctl(u.file, u.value); err != nil {
			errs = append(errs, fmt.Errorf("restore sysctl: %w", err))
		}
	}
	return errors.Join(errs...)
}

// checkSysctls compares the values word by word, because the kernel separates
// words with tabs.
func checkSysctls(s *rtnl.Sandbox, list []sysctl, ifName string) error {
	names, err := files(list, ifName)
	if err != nil || len(names) == 0 {
		return err
	}
	return s.Do(func() error {
		for i, file := range names {
			current, err := os.ReadFile(file)
			if errors.Is(err, os.ErrPermission) {
				continue // a command, not a value
			}
			if err != nil {
				return fmt.Errorf("read sysctl %q: %w", list[i].key, err)
			}
			if !slices.Equal(strings.Fields(string(current)), strings.Fields(list[i].value)) {
				return fmt.Errorf("sysctl %q is %q, not %q", list[i].key, bytes.TrimSpace(current), list[i].value)
			}
		}
		return nil
	})
}
