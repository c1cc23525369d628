package hosts

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// actVariable makes the test program act as a program inside a host or an allocation: serve
// or ask.
const actVariable = "ALLOCNET_TEST_HOSTS_ACT"

// askTime bounds the wait for one answer.
const askTime = 2 * time.Second

func perform(act string, args []string) error {
	switch {
	case act == "serve" && len(args) == 1:
		return serve(args[0])
	case act == "ask" && len(args) == 2:
		return ask(args[0], args[1])
	}
	return fmt.Errorf("%s %q: no such act", act, args)
}

// serve answers everyone on a port, over TCP and UDP, with the address from which the question
// came. It prints a line when it listens.
func serve(port string) error {
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	u, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	ended := make(chan error, 2)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			go answer(c)
		}
	}()
	go func() {
		question := make([]byte, 16)
		for {
			_, from, err := u.ReadFrom(question)
			if err == nil {
				_, err = u.WriteTo([]byte(addressOf(from)), from)
			}
			if errors.Is(err, net.ErrClosed) {
				ended <- err
				return
			}
		}
	}()
	return <-ended
}

// answer sends the address, and then everything that it receives.
func answer(c net.Conn) {
	defer c.Close()
	if _, err := io.WriteString(c, addressOf(c.RemoteAddr())+"\n"); err == nil {
		_, _ = io.Copy(c, c)
	}
}

func addressOf(a net.Addr) string {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap().String()
}

// ask prints the answer of a server.
func ask(protocol, address string) error {
	c, err := net.DialTimeout(protocol, address, askTime)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(askTime)); err != nil {
		return err
	}
	if protocol == "udp" {
		if _, err := io.WriteString(c, "?"); err != nil {
			return err
		}
	}
	text := make([]byte, 64)
	n, err := c.Read(text)
	if err != nil {
		return err
	}
	fmt.Print(string(text[:n]))
	return nil
}
