// Microvm runs a virtual machine monitor, such as Firecracker, in the network of an
// allocation. As root:
//
//	go run ./examples/microvm -id vm-1 -port 8080:80 -- ./monitor
//
// It sets up the allocation, adds a tap to its network namespace, and redirects all
// frames between the allocation's interface and the tap. There is no bridge and no
// second address: the guest takes over the MAC and IP address of the interface, so
// host ports and firewall rules of the allocation are those of the guest. The monitor
// is started in the network namespace. When it ends, everything is removed.
//
// The environment has what the guest needs: TAP, MAC, MTU, ADDRESS (with prefix
// length) and GATEWAY; for IPv6, ADDRESS_IPV6 and GATEWAY_IPV6. A script for Firecracker writes TAP and MAC into its
// configuration, as host_dev_name and guest_mac, and executes it.
//
// Networks of the plugin ptp, such as the default, route between allocations, so the
// guest must reach all addresses through the gateway:
//
//	ip address add ${ADDRESS%/*}/32 dev eth0
//	ip route add $GATEWAY dev eth0
//	ip route add default via $GATEWAY
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func main() {
	var network string
	var alloc allocnet.Allocation
	flag.StringVar(&alloc.ID, "id", "vm", "`ID` of the allocation")
	flag.StringVar(&network, "network", "allocnet", "`name` of the network")
	flag.Func("port", "host `port` to publish, as hostPort[:guestPort][/protocol]; may be repeated", func(text string) error {
		p, err := portmap.Parse(text)
		alloc.Ports = append(alloc.Ports, p)
		return err
	})
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("name the virtual machine monitor after --")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, network, alloc, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// run runs a monitor in the network of an allocation, from Setup to Teardown.
func run(ctx context.Context, network string, alloc allocnet.Allocation, monitor []string) (err error) {
	nets, err := configurator.New(configurator.Config{Network: network})
	if err != nil {
		return err
	}
	defer nets.Close()
	alloc.OwnNetns, alloc.RequireAddress = true, true
	alloc.MustBeNew = true // Teardown below is only of what this Setup made
	status, err := nets.Setup(ctx, alloc)
	if err != nil {
		return err // nothing is left, unless it is ErrIncomplete: see docs/embedding.md
	}
	defer func() {
		err = errors.Join(err, nets.Teardown(context.WithoutCancel(ctx), alloc))
	}()
	ns, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, alloc.ID))
	if err != nil {
		return err
	}
	defer ns.Close()
	nic, err := selected(status)
	if err != nil {
		return err
	}
	var mtu int
	err = ns.Do(func() (err error) {
		mtu, err = addTap(nic.Name)
		return err
	})
	if err != nil {
		return err
	}
	log.Printf("%s: %s is behind %s, with %s and %s", alloc.ID, tapName, nic.Name, nic.MAC, nic.Addresses[0].Address)

	cmd := exec.CommandContext(ctx, monitor[0], monitor[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second // then it is killed
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), environment(nic, mtu)...)
	// A process begins in the network namespace of the thread that starts it.
	if err := ns.Do(cmd.Start); err != nil {
		return err
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return nil // it was asked to end
	}
	return err
}

// selected returns the interface that the status selects.
func selected(status *allocnet.Status) (allocnet.Interface, error) {
	for _, i := range status.Interfaces {
		if i.Name == status.InterfaceName && i.Sandbox != "" {
			return i, nil
		}
	}
	return allocnet.Interface{}, fmt.Errorf("no interface %q in the network namespace", status.InterfaceName)
}

// environment returns variables with what the guest needs to know.
func environment(nic allocnet.Interface, mtu int) []string {
	list := []string{"TAP=" + tapName, "MAC=" + nic.MAC, "MTU=" + strconv.Itoa(mtu)}
	for _, a := range nic.Addresses {
		family := ""
		if strings.Contains(a.Address, ":") {
			family = "_IPV6"
		}
		list = append(list, "ADDRESS"+family+"="+a.Address, "GATEWAY"+family+"="+a.Gateway)
	}
	return list
}
