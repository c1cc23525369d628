package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Dir is a directory of network configurations. It is safe for concurrent use.
type Dir struct {
	path string
	now  func() time.Time

	mu       sync.Mutex
	embedded *Network
	// next returns the embedded network while its subnets are not settled: see Follow.
	next    func(fresh bool) (n *Network, settled bool, err error)
	files   []*file              // sorted by name, from the last read of the directory
	err     *FileError           // of the last read
	stamp   stamp                // of the directory, taken before the last read
	settled bool                 // whether an equal stamp means that the names are the same
	leased  map[*Network]*leased // by the network of the file; nil without Resolving
	// recorded are networks that Recorded has parsed, by their text.
	recorded map[string]*Network
}

// maxRecorded bounds the recorded networks that are kept: some versions of each network
// of a host.
const maxRecorded = 64

// New returns the directory at path, without reading it. The embedded network, which
// may be nil, is used if no file has its name. It is never the default network.
func New(path string, embedded *Network) *Dir {
	return &Dir{path: path, embedded: embedded, now: time.Now}
}

// Follow makes each lookup of the embedded network, which asks for a fresh one, and Networks take it from next, until
// next reports that it is settled. After an error the former one stays. Call Follow before the first read.
func (d *Dir) Follow(next func(fresh bool) (n *Network, settled bool, err error)) { d.next = next }

func (d *Dir) follow(fresh bool) {
	if d.next == nil {
		return
	}
	n, settled, err := d.next(fresh)
	if err != nil {
		return
	}
	if !bytes.Equal(n.Bytes, d.embedded.Bytes) {
		d.embedded = n
	}
	if settled {
		d.next = nil
	}
}

// Load reads what has changed in the directory. It returns a *FileError if the
// directory cannot be read; errors.Is finds fs.ErrNotExist if it does not exist. The
// networks of the last read then stay active. Broken files are not an error of Load:
// see Networks.
func (d *Dir) Load() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	if d.err != nil {
		return d.err
	}
	return nil
}

// Lookup reads what has changed in the directory and returns the network with a name.
// For "", it returns the default network, which is the first one by file name. The
// error is a *NotFoundError.
func (d *Dir) Lookup(name string) (*Network, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	if name == EmbeddedName {
		d.follow(true)
	}
	networks, problems := d.resolve()
	for _, n := range networks {
		if name == "" && n != d.embedded || name == n.Name {
			return d.withSubnets(n), nil
		}
	}
	return nil, d.notFound(name, networks, problems)
}

// Recorded returns the network of a recorded configuration: the Bytes of a Network with
// that name. If the directory has a network with the same content, or an earlier call
// has parsed it, Recorded returns that one without parsing. It does not read the
// directory again. The errors are those of Parse.
func (d *Dir) Recorded(name string, data []byte) (*Network, error) {
	if n := d.unchanged(name, data); n != nil {
		return n, nil
	}
	n, err := Parse(data)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.recorded == nil || len(d.recorded) >= maxRecorded {
		d.recorded = make(map[string]*Network)
	}
	d.recorded[string(data)] = n
	return n, nil
}

func (d *Dir) unchanged(name string, data []byte) *Network {
	is := func(n *Network) bool { return n != nil && n.Name == name && bytes.Equal(n.Bytes, data) }
	d.mu.Lock()
	defer d.mu.Unlock()
	if is(d.embedded) {
		return d.embedded
	}
	for _, f := range d.files {
		if is(f.good) {
			return f.good
		}
	}
	return d.recorded[string(data)]
}

// Networks reads what has changed in the directory and returns the networks by file
// name, the embedded one last. It also returns the errors: first that of the directory,
// if it cannot be read, then those of the skipped files by name.
func (d *Dir) Networks() ([]*Network, []*FileError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	d.follow(false)
	networks, problems := d.resolve()
	for i, n := range networks {
		networks[i] = d.withSubnets(n)
	}
	return networks, problems
}

// Ours reads what has changed in the directory and returns, by file name, the networks
// whose plugin is allocnet. They are for runtimes.
func (d *Dir) Ours() []*Network {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	var ours []*Network
	for _, f := range d.files {
		if f.good != nil && f.good.IsOurs() {
			ours = append(ours, f.good)
		}
	}
	return ours
}

// refresh reads the directory if it has changed, and the files that have changed. If
// the directory cannot be read, the known files stay.
func (d *Dir) refresh() {
	now, state := d.now(), stampOf(d.path)
	if !d.settled || state != d.stamp {
		d.stamp, d.settled = state, false
		if err := d.read(); err != nil {
			d.err = &FileError{File: d.path, Err: directoryError(err)}
			return
		}
		d.err, d.settled = nil, state.errno == nil && settled([]stamp{state}, now)
	}
	for _, f := range d.files {
		f.refresh(now)
	}
}

// read updates the list of files from the names in the directory.
func (d *Dir) read() error {
	names, err := d.list()
	if err != nil {
		return err
	}
	known := d.byName()
	files := make([]*file, 0, len(names))
	for _, name := range names {
		f := known[name]
		if f == nil {
			f = &file{path: filepath.Join(d.path, name)}
		}
		files = append(files, f)
	}
	d.files = files
	return nil
}

// list returns the names of the configuration files, sorted.
func (d *Dir) list() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conflist", ".conf", ".json":
			names = append(names, e.Name())
		}
	}
	return d.addMissed(names), nil
}

// addMissed adds known files that still exist but are not in the listing. A listing may
// miss a file that is replaced by a rename at the same time.
func (d *Dir) addMissed(names []string) []string {
	for _, f := range d.files {
		name := filepath.Base(f.path)
		i, listed := slices.BinarySearch(names, name)
		if listed {
			continue
		}
		if _, err := os.Lstat(f.path); err == nil {
			names = slices.Insert(names, i, name)
		}
	}
	return names
}

func (d *Dir) byName() map[string]*file {
	files := make(map[string]*file, len(d.files))
	for _, f := range d.files {
		files[filepath.Base(f.path)] = f
	}
	return files
}

// resolve selects the first file for each network name, whether its content is new or
// the last valid one.
func (d *Dir) resolve() (networks []*Network, problems []*FileError) {
	if d.err != nil {
		problems = append(problems, d.err)
	}
	holder := map[string]string{}
	for _, f := range d.files {
		if p := f.problem(); p != nil {
			problems = append(problems, p)
		}
		if f.good == nil || f.good.IsOurs() {
			continue
		}
		if first, taken := holder[f.good.Name]; taken {
			problems = append(problems, shadowed(f, first))
			continue
		}
		holder[f.good.Name] = filepath.Base(f.path)
		networks = append(networks, f.good)
	}
	if d.embedded != nil && holder[d.embedded.Name] == "" {
		networks = append(networks, d.embedded)
	}
	return networks, problems
}

func shadowed(f *file, first string) *FileError {
	return &FileError{File: f.path, Err: fmt.Errorf("%w: %q is in %q: rename the network or remove one of the files",
		ErrShadowed, f.good.Name, first)}
}

func (d *Dir) notFound(name string, networks []*Network, problems []*FileError) error {
	e := &NotFoundError{Name: name, Dir: d.path, empty: d.err == nil && len(d.files) == 0}
	for _, n := range networks {
		e.Known = append(e.Known, n.Name)
	}
	for _, f := range d.files {
		if f.good != nil && f.good.Name == name && f.good.IsOurs() {
			e.ours = f.path
		}
	}
	for _, p := range problems {
		// A shadowed file is not broken, and its network is known.
		if !errors.Is(p, ErrShadowed) {
			e.Broken = append(e.Broken, p)
		}
	}
	return e
}

// directoryError adds a remedy to the error of reading the directory.
func directoryError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: create the directory and put a network configuration list there", err)
	}
	if errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%w: name the directory that holds the configurations, not a file", err)
	}
	return fmt.Errorf("%w: make the directory readable", err)
}
