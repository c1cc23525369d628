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

// OwnFileName is the default name of the own file. It sorts before the usual names of other
// files.
const OwnFileName = "00-allocnet.conflist"

// Options configure a Manager. Only ConfDir is required.
type Options struct {
	ConfDir string // directory of the networks; need not exist
	OwnFile string // name of the manager's file in ConfDir, ending in .conflist; default OwnFileName

	// Owner distinguishes managers that write to the same directory. Once the own file
	// exists, the manager removes files that a manager with the same Owner has written
	// under other names. "" removes none.
	Owner string

	// Primary is the name of the network to delegate to; "" is the first valid one
	// by file name. Embedded is the network that needs no file; it is primary only
	// if named.
	Primary  string
	Embedded *conflist.Network

	// Name is the name of the manager's network; "" stands for the primary network's
	// name.
	Name string

	// Plugin holds additional keys for the plugin's configuration in the own file, Capabilities
	// those that it declares besides those of the primary network.
	Plugin       map[string]any
	Capabilities []string

	// PluginDirs are watched. Usable returns why a network is not ready although its
	// configuration is valid. It is called after every change and must be fast. By default
	// every plugin needs a program in PluginDirs, if there are any.
	PluginDirs []string
	Usable     func(*conflist.Network) error

	// ReadinessFile must exist for the network to be ready; "" for none.
	ReadinessFile string

	// OnRead, if set, is called after the manager has read the directory and before it
	// publishes the State, so that another reader can read the directory as well.
	OnRead func()
	// OnChange, if set, is called with every new State, one call at a time.
	OnChange func(State)
	Logger   hclog.Logger // default: none
}

// New returns a Manager, which has not read the directory yet. It returns an error for an
// invalid option.
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

// complete validates the options and sets the defaults.
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

// validate returns an error for an option that the manager cannot use.
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

// installed returns an error for each plugin without a program.
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
