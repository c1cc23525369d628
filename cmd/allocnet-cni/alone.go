package main

import (
	"os"
	"strings"
	"syscall"

	"github.com/allocnet/allocnet/internal/cniwire/thin"
)

// aloneProgram does the daemon's work without it.
const aloneProgram = "allocnet-cni-alone"

// alone makes the process that program, with the configuration as its stdin. It
// returns only with an error; away is why it is needed.
func alone(config []byte, away error) error {
	path, err := aloneFile()
	if err == nil {
		err = stdin(config)
	}
	if err == nil {
		err = syscall.Exec(path, []string{aloneProgram}, os.Environ())
	}
	return &thin.Error{
		Code: thin.CodeTryAgainLater, Msg: thin.ErrAway.Error() + ", and the plugin cannot do its work",
		Details: away.Error() + "; run " + path + ": " + err.Error() + ": start allocnetd, or install " + aloneProgram + " there",
	}
}

// aloneFile is in the directory of this program, whatever links lead there.
func aloneFile() (string, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return aloneProgram, err
	}
	self = strings.TrimSuffix(self, " (deleted)") // by an upgrade
	return self[:strings.LastIndexByte(self, '/')+1] + aloneProgram, nil
}

// stdin puts a configuration in the place of the one that was read: in a file that has
// no name and ends with the process.
func stdin(config []byte) error {
	fd, err := memfd()
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "config")
	if _, err := f.Write(config); err != nil {
		return err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return err
	}
	return os.NewSyscallError("dup3", syscall.Dup3(fd, 0, 0)) // unlike f, it stays open
}
