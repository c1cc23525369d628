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
