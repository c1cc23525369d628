// Command plugin is the CNI plugin of package fakeplugin.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/sandbox"
)

const sleeper = "ALLOCNET_FAKEPLUGIN_SLEEPER"

func main() {
	if os.Getenv(sleeper) != "" {
		hang()
	}
	if err := run(os.Getenv("CNI_COMMAND")); err != nil {
		fmt.Fprintln(os.Stderr, "fake plugin:", err)
		os.Exit(3)
	}
}

func run(command string) error {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if command == "VERSION" {
		_, err := fmt.Print(`{"cniVersion":"1.1.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`)
		return err
	}
	var conf struct {
		Type       string            `json:"type"`
		CNIVersion string            `json:"cniVersion"`
		PrevResult json.RawMessage   `json:"prevResult"`
		Fake       fakeplugin.Config `json:"fake"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return err
	}
	before, err := fakeplugin.Commands(conf.Fake.Log)
	if err != nil {
		return err
	}
	if err := logCall(conf.Fake.Log, conf.Type, stdin); err != nil {
		return err
	}
	if len(conf.Fake.Interface) > 0 {
		if err := changeInterface(command, os.Getenv("CNI_IFNAME"), conf.Fake.Interface); err != nil {
			return err
		}
	}
	if line := conf.Fake.Inside[command]; line != "" {
		if err := runInside(line); err != nil {
			return err
		}
	}
	b := conf.Fake.On[command]
	if b.Only > 0 && strings.Count(strings.Join(before, "\n"), conf.Type+" "+command) >= b.Only {
		b = fakeplugin.Behaviour{Result: b.Result}
	}
	if b.Result == nil {
		b.Result = conf.PrevResult
	}
	if conf.Fake.VM != "" && command == "ADD" {
		if b.Result, err = withVM(b.Result, conf.Fake.VM); err != nil {
			return err
		}
	}
	return act(&b, command, conf.CNIVersion)
}

func act(b *fakeplugin.Behaviour, command, version string) error {
	if b.Grandchild {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), sleeper+"=1")
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			return err
		}
	}
	if b.KillGroup {
		_ = syscall.Kill(0, syscall.SIGKILL)
	}
	if b.Hang {
		hang()
	}
	fmt.Fprint(os.Stderr, b.Stderr)
	switch {
	case b.Stdout != "":
		fmt.Print(strings.Repeat(b.Stdout, max(b.Repeat, 1)))
	case b.Code != 0 || b.Msg != "":
		json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": version, "code": b.Code, "msg": b.Msg})
		os.Exit(1)
	case b.Exit == 0 && command == "ADD":
		fmt.Print(strings.ReplaceAll(string(b.Result), fakeplugin.Netns, os.Getenv("CNI_NETNS")))
	}
	os.Exit(b.Exit)
	return nil
}

func logCall(log, pluginType string, stdin []byte) error {
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewEncoder(f).Encode(fakeplugin.Call{
		Type: pluginType, Command: os.Getenv("CNI_COMMAND"), ID: os.Getenv("CNI_CONTAINERID"),
		Netns: os.Getenv("CNI_NETNS"), IfName: os.Getenv("CNI_IFNAME"), Args: os.Getenv("CNI_ARGS"),
		PID: os.Getpid(), Inode: inode(os.Getenv("CNI_NETNS")), Stdin: stdin,
	})
}

func inode(path string) uint64 {
	var stat syscall.Stat_t
	if syscall.Stat(path, &stat) != nil {
		return 0
	}
	return stat.Ino
}

// hang blocks forever in a way that the runtime does not report as a deadlock.
func hang() {
	for {
		syscall.Pause()
	}
}

// changeInterface makes the interface at ADD, and removes it at DEL if there is one.
func changeInterface(command, name string, addresses []string) error {
	if command != "ADD" && command != "DEL" || os.Getenv("CNI_NETNS") == "" {
		return nil
	}
	s, err := sandbox.Open(os.Getenv("CNI_NETNS"))
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Do(func() error {
		if command == "ADD" {
			return addInterface(name, addresses)
		}
		link, err := netlink.LinkByName(name)
		if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) {
			return nil
		}
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
}

func addInterface(name string, addresses []string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer-" + name}); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		ip, network, err := net.ParseCIDR(a)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: network.Mask}}); err != nil {
			return err
		}
	}
	return nil
}

// runInside runs a command line in the network namespace.
func runInside(line string) error {
	path := os.Getenv("CNI_NETNS")
	if path == "" {
		return nil
	}
	s, err := sandbox.Open(path)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Do(func() error {
		if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
		return nil
	})
}

// withVM returns a result with a link to a virtual machine, and with the interface of the machine.
func withVM(result json.RawMessage, link string) (json.RawMessage, error) {
	var r map[string]any
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, err
	}
	interfaces, _ := r["interfaces"].([]any)
	ips, _ := r["ips"].([]any)
	netns, machine := os.Getenv("CNI_NETNS"), len(interfaces)+1
	for _, ip := range slices.Clone(ips) {
		address, _ := ip.(map[string]any)
		index, _ := address["interface"].(float64)
		of, _ := interfaces[int(index)].(map[string]any)
		if of["name"] == os.Getenv("CNI_IFNAME") && of["sandbox"] == netns {
			address = maps.Clone(address)
			address["interface"] = machine
			ips = append(ips, address)
		}
	}
	r["ips"] = ips
	r["interfaces"] = append(interfaces, map[string]any{"name": link, "sandbox": netns}, map[string]any{"name": link, "sandbox": os.Getenv("CNI_CONTAINERID")})
	return json.Marshal(r)
}
