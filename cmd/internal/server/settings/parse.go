package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

func anyText(t string) (string, error) { return t, nil }

// optional returns a parser that also accepts the empty text.
func optional(parse parser[string]) parser[string] {
	return func(t string) (string, error) {
		if t == "" {
			return "", nil
		}
		return parse(t)
	}
}

func absolutePath(t string) (string, error) {
	if !filepath.IsAbs(t) || strings.ContainsRune(t, 0) {
		return "", errors.New("is not an absolute path: begin it with /")
	}
	return filepath.Clean(t), nil
}

// longestSocket is the longest path that fits into the kernel's sockaddr_un.
const longestSocket = 107

func socketPath(t string) (string, error) {
	path, err := absolutePath(t)
	if err == nil && len(path) > longestSocket {
		err = fmt.Errorf("is too long for a socket: use at most %d bytes", longestSocket)
	}
	return path, err
}

func oneOf[T ~string](these ...T) parser[T] {
	return func(t string) (T, error) {
		if !slices.Contains(these, T(t)) {
			return "", fmt.Errorf("is not one of %q", these)
		}
		return T(t), nil
	}
}

func networkName(t string) (string, error) {
	if err := names.ValidateNetwork(t); err != nil {
		return "", errors.New("is not the name of a network: use letters, digits, '_', '.' and '-', and begin with a letter or digit")
	}
	return t, nil
}

func interfacePrefix(t string) (string, error) {
	if err := names.ValidateNewInterface(t + "00"); err != nil || t == "" {
		return "", errors.New("cannot begin the name of an interface: use at most 13 characters without '/', ':', '%' and blanks")
	}
	return t, nil
}

func argumentName(t string) (string, error) {
	if err := names.ValidateArgument(t); err != nil {
		return "", errors.New("is not the name of one of CNI_ARGS, such as ALLOCNET_POLICY")
	}
	return t, nil
}

// conflistName accepts names of files that CNI runtimes read in their directory.
func conflistName(t string) (string, error) {
	if filepath.Base(t) != t || filepath.Ext(t) != ".conflist" || strings.HasPrefix(t, ".") {
		return "", errors.New(`is not the name of a file that ends in ".conflist", without a directory`)
	}
	return t, nil
}

func httpURL(t string) (string, error) {
	u, err := url.Parse(t)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", errors.New(`is not a URL: write for example "http://localhost:4318"`)
	}
	return t, nil
}

// listenAddress accepts the TCP addresses on which a server can listen. Names are refused:
// they may have several addresses, and need a resolver at the start.
func listenAddress(t string) (string, error) {
	port, all := strings.CutPrefix(t, ":")
	if !all {
		address, err := netip.ParseAddrPort(t)
		if err != nil || address.Port() == 0 {
			return "", errors.New(`is not an address with a port: write for example "127.0.0.1:9653", "[::1]:9653" or ":9653"`)
		}
		return address.String(), nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("does not end with a port from 1 to 65535")
	}
	return t, nil
}

// LoopbackAddress accepts loopback addresses with a port.
func LoopbackAddress(t string) (string, error) {
	address, err := netip.ParseAddrPort(t)
	if err != nil || !address.Addr().IsLoopback() || address.Addr().Is4In6() {
		return "", errors.New(`is not a loopback address with a port: write for example "127.0.0.1:9654" or "[::1]:9654"`)
	}
	return address.String(), nil
}

// unlike refuses a list that contains a text twice.
func unlike(these []string) error {
	for i, t := range these {
		if slices.Contains(these[:i], t) {
			return fmt.Errorf("%q occurs twice: remove one", t)
		}
	}
	return nil
}

// subnets validates the subnets of the embedded network.
func subnets(these []netip.Prefix) error {
	_, err := conflist.Embedded(conflist.EmbeddedOptions{StateDir: configurator.DefaultStateDir, Subnets: these})
	return err
}

// clusterNetworks validates the networks to which the embedded network does not masquerade.
func clusterNetworks(these []netip.Prefix) error {
	_, err := conflist.Embedded(conflist.EmbeddedOptions{
		StateDir: configurator.DefaultStateDir, Routes: conflist.EmbeddedRoutes{Cluster: these},
	})
	return err
}
