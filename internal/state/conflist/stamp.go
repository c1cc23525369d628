package conflist

import (
	"syscall"
	"time"
)

// stamp identifies the state of a file by its metadata. Stamps are compared with ==.
type stamp struct {
	path         string
	errno        error // of stat; if it is not nil, the fields below are zero
	dev, ino     uint64
	mode         uint32
	size         int64
	mtime, ctime syscall.Timespec
}

// stampsOf returns the stamps of a configuration file and its sidecar directory.
func stampsOf(path, sidecar string) []stamp {
	return append([]stamp{stampOf(path)}, sidecarStamps(sidecar)...)
}

// sidecarStamps returns the stamps of a sidecar directory and the plugin files in it;
// none for "".
func sidecarStamps(dir string) []stamp {
	if dir == "" {
		return nil
	}
	stamps := []stamp{stampOf(dir)}
	if stamps[0].errno != nil {
		return stamps
	}
	// The error of an unreadable directory is returned when its plugins are read.
	paths, _ := sidecarFiles(dir)
	for _, p := range paths {
		stamps = append(stamps, stampOf(p))
	}
	return stamps
}

// stampOf follows symlinks, so that a new target changes the stamp.
func stampOf(path string) stamp {
	var st syscall.Stat_t
	err := syscall.Stat(path, &st)
	for err == syscall.EINTR {
		err = syscall.Stat(path, &st)
	}
	if err != nil {
		return stamp{path: path, errno: err}
	}
	return stamp{
		path:  path,
		dev:   uint64(st.Dev),
		ino:   st.Ino,
		mode:  st.Mode,
		size:  st.Size,
		mtime: st.Mtim,
		// Unlike mtime, ctime changes if a program restores the old
		// modification time, and if permissions change.
		ctime: st.Ctim,
	}
}

// settled reports whether any further change would change the stamps.
func settled(stamps []stamp, now time.Time) bool {
	for _, s := range stamps {
		if s.errno == nil && now.Sub(time.Unix(s.ctime.Unix())) < settleTime {
			return false
		}
	}
	return true
}
