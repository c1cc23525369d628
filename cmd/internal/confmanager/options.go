package confmanager

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// OwnFileName is what the own file is called unless Options say otherwise. It
// sorts before what others usually install.
const OwnFileName = "00-allocnet.conflist"

// Options say what to manage. Only ConfDir is required.
type Options struct {
	ConfDir string // where the networks are; need not exist
	OwnFile string // name of our file in ConfDir, ending in .conflist; default OwnFileName

	// Owner tells managers apart that write into the same directory. Other files that
	// one of the same Owner has written, when the own file had another name, are
	// removed once ours is there. "" leaves all.
	Owner string

	// Primary is the name of the network to delegate to; "" is the first valid one
	// by file name. Embedded is the network that needs no file; it is primary only
	// if named.
	Primary  string
	Embedded *conflist.Network

	// Name is that of our network; "" takes over the primary's.
	Name string

	// Plugin holds further keys for our plugin's configuration.
	Plugin map[string]any

	// PluginDirs are watched. Usable says what a network lacks beside its
	// configuration: it is not ready then, and stays the primary one. It is asked
	// again at every change, and has to be quick. The default wants every plugin's
	// program in PluginDirs, if there are any.
	PluginDirs []string
	Usable     func(*conflist.Network) error

	// ReadinessFile has to be there for the network to be ready; "" is none.
	ReadinessFile string

	// OnRead, if set, is called after every look at the directory, before its State is
	// known: for others who read it, and keep what was good the last time.
	OnRead func()
	// OnChange, if set, is called with every new State, one call at a time.
	OnChange func(State)
	Logger   hclog.Logger // default: none
}

// New makes a Manager, without looking at the directory yet. The error is that of
// an option.
func New(o Options) (*Manager, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("configuration manager: %w", err)
	}
	first, looked := context.WithCancel(context.Background())
	m := &Manager{
		first: first.Done(), looked: looked,
		o:     o,
		dir:   conflist.New(o.ConfDir, o.Embedded),
		own:   ownFile{path: filepath.Join(o.ConfDir, o.OwnFile)},
		now:   time.Now,
		timer: newTimer,
		watch: fsnotify.NewWatcher,
	}
	m.state = State{OwnFile: m.own.path, NotReady: errors.New("the network configuration has not been read yet: try again")}
	return m, nil
}

// complete checks the options and fills in the defaults.
func (o Options) complete() (Options, error) {
	if o.ConfDir == "" {
		return o, errors.New("no configuration directory: set ConfDir")
	}
	o.OwnFile = cmp.Or(o.OwnFile, OwnFileName)
	paths := []*string{&o.ConfDir}
	if o.ReadinessFile != "" {
		paths = append(paths, &o.ReadinessFile)
	}
	o.PluginDirs = append([]string(nil), o.PluginDirs...)
	for i := range o.PluginDirs {
		paths = append(paths, &o.PluginDirs[i])
	}
	for _, p := range paths {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return o, fmt.Errorf("path %q: %w: use an absolute one", *p, err)
		}
		*p = abs
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Usable == nil {
		o.Usable = o.installed
	}
	return o, o.validate()
}

func (o *Options) validate() error {
	if filepath.Base(o.OwnFile) != o.OwnFile || filepath.Ext(o.OwnFile) != ".conflist" || o.OwnFile[0] == '.' {
		return fmt.Errorf("own file %q: give a file name that ends in .conflist, without a directory", o.OwnFile)
	}
	if o.Name != "" {
		if err := names.ValidateNetwork(o.Name); err != nil {
			return fmt.Errorf("network name %q: %w: use letters, digits, '_', '.' and '-', a letter or digit first", o.Name, err)
		}
	}
	for _, key := range []string{"type", "delegates", "capabilities"} {
		if _, taken := o.Plugin[key]; taken {
			return fmt.Errorf("plugin key %q is set by the manager: remove it", key)
		}
	}
	if _, err := json.Marshal(o.Plugin); err != nil {
		return fmt.Errorf("plugin keys: %w", err)
	}
	return nil
}

// installed looks for the programs of all plugins.
func (o *Options) installed(n *conflist.Network) error {
	if len(o.PluginDirs) == 0 {
		return nil
	}
	var errs []error
	for _, t := range append(n.PluginTypes(), n.IPAMTypes()...) {
		if _, err := invoke.FindInPath(t, o.PluginDirs); err != nil {
			errs = append(errs, fmt.Errorf("network %q: plugin %q is not in %q: install it", n.Name, t, o.PluginDirs))
		}
	}
	return errors.Join(errs...)
}
