// image writes a container image as an OCI layout, in a tar archive that
// containerd, Podman and skopeo read. It needs neither a daemon nor root, and
// the same files give the same archive.
//
// Each argument is ARCH=DIR, where DIR is the root directory of the image for
// that architecture. The time of everything is SOURCE_DATE_EPOCH, in seconds.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	var o options
	flag.StringVar(&o.name, "name", "", "`name` of the image with its tag, required")
	flag.StringVar(&o.version, "version", "", "`version` of the product, required")
	flag.StringVar(&o.commit, "commit", "", "`commit` of the sources")
	flag.Parse()
	if err := run(os.Stdout, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

type options struct {
	name, version, commit string
	at                    time.Time
}

func run(out io.Writer, o options, roots []string) error {
	if o.name == "" || o.version == "" || len(roots) == 0 {
		return errors.New("usage: image -name NAME:TAG -version VERSION [-commit COMMIT] ARCH=DIR...")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	o.at = time.Unix(seconds, 0).UTC()
	platforms := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, root := range roots {
		arch, dir, ok := strings.Cut(root, "=")
		if !ok {
			return fmt.Errorf("%q is not ARCH=DIR", root)
		}
		image, err := o.image(arch, dir)
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		platforms = mutate.AppendManifests(platforms, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return o.write(out, platforms)
}

// image returns the image of one architecture: one layer on nothing.
func (o options) image(arch, dir string) (v1.Image, error) {
	content, err := archive(dir, o.at, nil)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: o.at}, CreatedBy: "make release"}})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, o.config(image, arch))
}

// config returns the configuration of an image.
func (o options) config(image v1.Image, arch string) *v1.ConfigFile {
	c, err := image.ConfigFile()
	if err != nil { // images that are made of layers in memory have one
		panic(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = "linux", arch, v1.Time{Time: o.at}
	c.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/allocnetd"},
		Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "allocnet",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.commit,
			"org.opencontainers.image.source":   "https://github.com/allocnet/allocnet",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return c
}

// write writes the layout with one index, the image for all architectures.
func (o options) write(out io.Writer, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	_, tag, _ := strings.Cut(filepath.Base(o.name), ":")
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          o.name,
		"org.opencontainers.image.ref.name": tag,
	}))
	if err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	_, err = archive(dir, o.at, out)
	return err
}

// archive writes the content of a directory as a tar archive, or returns it if
// out is nil. Owners and times are the same for all files.
func archive(dir string, at time.Time, out io.Writer) ([]byte, error) {
	var content bytes.Buffer
	if out == nil {
		out = &content
	}
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // in the order of names
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(info.Mode().Perm() & 0o755), Size: info.Size(), ModTime: at, Format: tar.FormatPAX}
		if d.IsDir() {
			h.Name, h.Typeflag, h.Mode, h.Size = name+"/", tar.TypeDir, 0o755, 0
			return w.WriteHeader(h)
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%q is neither a file nor a directory", path)
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	err = errors.Join(err, w.Close())
	return content.Bytes(), err
}
