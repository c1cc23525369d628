package accept

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// memory is a directory that tells one process what another has found out: an
// empty file for each opening that iptables showed to be whole, named by what the
// kernel says of its rules. What bears that name is whole, whenever and wherever
// it is seen. The zero value remembers nothing.
type memory string

// Remember has openings recognised by what processes wrote into a directory, which
// is made when needed. A process that lives for one operation would otherwise run
// iptables four times, which takes it longer than everything else. It is to be
// called before the Opener is used.
//
// Only an iptables on nf_tables is recognised: of the other the kernel says too
// little.
func (o *Opener) Remember(dir string) { o.memory = memory(dir) }

// recognise returns a watch over an opening that is remembered; nil if what is
// there is not.
func (o *Opener) recognise(f *family, admins []string) watch {
	if o.memory == "" {
		return nil
	}
	w, ok := o.netfilter.watch(f.Family).(nftWatch)
	if !ok {
		return nil
	}
	path, err := o.memory.path(f, admins, w)
	if err != nil {
		return nil
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || statedir.CheckDirs(string(o.memory)) != nil {
		return nil
	}
	return w
}

// remember makes an opening one that is recognised. Where that cannot be written,
// iptables will be asked again.
func (o *Opener) remember(f *family, admins []string, w watch) {
	seen, ok := w.(nftWatch)
	if o.memory == "" || !ok {
		return
	}
	path, err := o.memory.path(f, admins, seen)
	if err != nil || os.MkdirAll(string(o.memory), 0o700) != nil || statedir.CheckDirs(string(o.memory)) != nil {
		return
	}
	o.memory.trim()
	if file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
		_ = file.Close()
	}
}

// mostRemembered is more than a host has openings at one time.
const mostRemembered = 256

// trim forgets all where there are too many: rules that are made anew are others.
func (m memory) trim() {
	entries, err := os.ReadDir(string(m))
	if err != nil || len(entries) < mostRemembered {
		return
	}
	for _, e := range entries {
		_ = os.Remove(filepath.Join(string(m), e.Name()))
	}
}

// path is the file of an opening as one program, which may be exchanged for the
// other variant, shows it.
func (m memory) path(f *family, admins []string, w nftWatch) (string, error) {
	program, err := exec.LookPath(f.program)
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(program)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d %q %d %d %q\n", f.Family, program, info.Size(), info.ModTime().UnixNano(), admins)
	for _, r := range w.rules {
		fmt.Fprintf(sum, "%q %q\n", r.chain, r.text)
	}
	return filepath.Join(string(m), hex.EncodeToString(sum.Sum(nil)[:16])), nil
}
