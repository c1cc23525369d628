package conflist

import (
	"syscall"
	"time"
)

// stamp identifies one state of a file without reading it. Stamps are compared
// with ==.
type stamp struct {
	path         string
	errno        error // of stat; the rest is zero then
	dev, ino     uint64
	mode         uint32
	size         int64
	mtime, ctime syscall.Timespec
}

// stampsOf stamps a configuration file and its sidecar directory.
func stampsOf(path, sidecar string) []stamp {
	return append([]stamp{stampOf(path)}, sidecarStamps(sidecar)...)
}

// sidecarStamps stamps a directory and the plugin files in it; "" is none.
func sidecarStamps(dir string) []stamp {
	if dir == "" {
		return nil
	}
	stamps := []stamp{stampOf(dir)}
	if stamps[0].errno != nil {
		return stamps
	}
	// An unreadable directory shows when it is read for its content.
	paths, _ := sidecarFiles(dir)
	for _, p := range paths {
		stamps = append(stamps, stampOf(p))
	}
	return stamps
}

// stampOf follows symlinks, so that a new target is a new state.
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
		// ctime shows what mtime can hide: content written in place with the
		// old modification time put back, and changed permissions.
		ctime: st.Ctim,
	}
}

// settled reports whether a further change would show in the stamps.
func settled(stamps []stamp, now time.Time) bool {
	for _, s := range stamps {
		if s.errno == nil && now.Sub(time.Unix(s.ctime.Unix())) < settleTime {
			return false
		}
	}
	return true
}
