package sock

import (
	"context"

	"golang.org/x/sys/unix"
)

// LinkIndex returns the index of the link with a name in the network namespace of the
// socket. The ioctl (netdevice(7)) does not wait for the kernel's configuration lock (rtnl),
// as RTM_GETLINK does. If there is no such link, the error is ENODEV.
func (s *Socket) LinkIndex(name string) (int, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, unix.ENODEV // too long for a name
	}
	if err := s.acquire(context.Background()); err != nil {
		return 0, err
	}
	defer s.release()
	if err := unix.IoctlIfreq(s.fd, unix.SIOCGIFINDEX, request); err != nil {
		return 0, err
	}
	return int(request.Uint32()), nil
}

// LinkState returns the index and the flags of a link: see LinkIndex.
func (s *Socket) LinkState(name string) (index int, flags uint16, err error) {
	if index, err = s.LinkIndex(name); err != nil {
		return 0, 0, err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, 0, err
	}
	if err := s.acquire(context.Background()); err != nil {
		return 0, 0, err
	}
	defer s.release()
	if err := unix.IoctlIfreq(s.fd, unix.SIOCGIFFLAGS, request); err != nil {
		return 0, 0, err
	}
	return index, request.Uint16(), nil
}
