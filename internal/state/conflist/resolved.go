package conflist

import (
	"bytes"
	"slices"
	"time"

	"github.com/allocnet/allocnet/internal/state/subnetenv"
)

// Resolving makes d return networks in which each flannel plugin is replaced by the plugin to
// which it delegates, with the subnets that flanneld has leased for the host. The record of an
// allocation then has all that its DEL needs, and other subnets are another configuration.
// While there are no subnets, d returns the network as its file has it, and the ADD of flannel
// fails. Call Resolving before d is used.
func (d *Dir) Resolving() *Dir {
	d.leased = map[*Network]*leased{}
	return d
}

// leased is a network with the subnets of the host.
type leased struct {
	network *Network // nil if there are no subnets
	stamps  []stamp  // of the files with the subnets
	settled bool     // whether equal stamps mean equal content
}

// withSubnets returns a network with the present subnets of the host. The caller holds d.mu.
func (d *Dir) withSubnets(n *Network) *Network {
	if d.leased == nil || !slices.Contains(n.PluginTypes(), subnetenv.Type) {
		return n
	}
	l := d.leased[n]
	if l == nil {
		if len(d.leased) >= maxRecorded {
			clear(d.leased)
		}
		l = &leased{}
		d.leased[n] = l
	}
	if now := d.now(); !l.settled || !slices.Equal(l.stamps, stampsOfAll(l.stamps)) {
		l.read(n, now)
	}
	if l.network == nil {
		return n
	}
	return l.network
}

func stampsOfAll(files []stamp) (now []stamp) {
	for _, f := range files {
		now = append(now, stampOf(f.path))
	}
	return now
}

// read derives the network, and keeps the former Network if its content is the same.
func (l *leased) read(n *Network, now time.Time) {
	l.stamps = nil
	derived, err := l.derive(n)
	switch {
	case err != nil:
		l.network = nil
	case l.network == nil || !bytes.Equal(derived.Bytes, l.network.Bytes):
		l.network = derived
	}
	l.settled = settled(l.stamps, now)
}

// derive notes the stamp of each file before it reads the file.
func (l *leased) derive(n *Network) (*Network, error) {
	d, err := parseList(n.Bytes)
	if err != nil {
		return nil, err
	}
	for i, p := range d.plugins {
		if n.List.Plugins[i].Network.Type != subnetenv.Type {
			continue
		}
		conf, err := subnetenv.ParseConf(p)
		if err != nil {
			return nil, err
		}
		l.stamps = append(l.stamps, stampOf(conf.SubnetFile))
		env, err := subnetenv.ReadEnv(conf.SubnetFile)
		if err == nil {
			d.plugins[i], err = conf.Derive(env)
		}
		if err != nil {
			return nil, err
		}
	}
	resolved, err := d.network()
	if err == nil {
		resolved.File, resolved.Source = n.File, n
	}
	return resolved, err
}
