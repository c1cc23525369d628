// Command containerd runs one container of containerd in the foreground, with the
// network of allocnet: a small runtime, as an example of how to embed the library.
//
//	containerd -publish 8080:80 web docker.io/library/nginx:latest
//
// The image has to be in containerd already, in the namespace "allocnet-example":
//
//	ctr -n allocnet-example image pull docker.io/library/nginx:latest
//
// SIGINT and SIGTERM stop the container. If this program is killed, its container keeps
// running until the program is started with the same name again. A name belongs to one
// process at a time. The output of the container is in /run/allocnet-example/NAME/log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	containerd "github.com/containerd/containerd/v2/client"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs a container until it ends or until ctx does.
func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("containerd", flag.ContinueOnError)
	address := flags.String("address", "/run/containerd/containerd.sock", "socket of containerd")
	network := flags.String("network", "allocnet", "name of the network")
	pool := flags.Int("pool", 0, "number of prepared network namespaces")
	var ports []portmap.Port
	flags.Func("publish", "HOST:CONTAINER, a port over tcp and udp; may be repeated", func(text string) error {
		port, err := parsePort(text)
		ports = append(ports, port)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() < 2 {
		return errors.New("usage: containerd [flags] NAME IMAGE [COMMAND...]")
	}

	client, err := containerd.New(*address, containerd.WithDefaultNamespace("allocnet-example"))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer client.Close()
	cfg := configurator.Config{Networks: []string{*network}}
	if *pool > 0 {
		cfg.Pools = []configurator.Pool{{Network: *network, Size: *pool}}
	}
	nets, err := configurator.New(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nets.Close()) }()

	r := &runtime{client: client, nets: nets}
	if err := r.recover(ctx); err != nil {
		return err
	}
	c, err := r.start(ctx, flags.Arg(0), flags.Arg(1), flags.Args()[2:], ports)
	if err != nil {
		return err
	}
	fmt.Printf("%s runs at %s\n", flags.Arg(0), c.status.Address)
	select {
	case <-ctx.Done():
	case <-c.exit:
	}
	return r.stop(context.WithoutCancel(ctx), flags.Arg(0))
}

func parsePort(text string) (portmap.Port, error) {
	host, inside, found := strings.Cut(text, ":")
	value, err := strconv.Atoi(host)
	if !found || err != nil {
		return portmap.Port{}, errors.New("not HOST:CONTAINER")
	}
	to, err := strconv.Atoi(inside)
	return portmap.Port{Value: value, To: to}, err
}
