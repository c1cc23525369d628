// Package ociimage makes an image for tests with containerd.
package ociimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Name is the name of the image.
const Name = "localhost/allocnet-test:1"

// Archive returns an OCI archive with an image of busybox, which must be a static program.
// Without arguments, its containers wait, as the infrastructure container of a pod has to.
func Archive(t testing.TB) []byte {
	t.Helper()
	path, err := exec.LookPath("busybox")
	require.NoError(t, err)
	busybox, err := os.ReadFile(path)
	require.NoError(t, err)
	layer := tarball(t, []tarFile{{"etc/", nil}, {"proc/", nil}, {"sys/", nil}, {"dev/", nil}, {"bin/busybox", busybox}})

	a := &ociArchive{t: t}
	config := a.blob(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Cmd": []string{"/bin/busybox", "sleep", "2147483647"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	const media = "application/vnd.oci.image."
	manifest := a.blob(map[string]any{
		"schemaVersion": 2, "mediaType": media + "manifest.v1+json",
		"config": descriptor(media+"config.v1+json", config),
		"layers": []any{descriptor(media+"layer.v1.tar", a.add(layer))},
	})
	named := descriptor(media+"manifest.v1+json", manifest)
	named["annotations"] = map[string]string{"io.containerd.image.name": Name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{named}})
	require.NoError(t, err)
	a.files = append(a.files, tarFile{"index.json", index}, tarFile{"oci-layout", []byte(`{"imageLayoutVersion": "1.0.0"}`)})
	return tarball(t, a.files)
}

// ociArchive collects the files of an OCI archive.
type ociArchive struct {
	t     testing.TB
	files []tarFile
}

// blob adds a value as JSON, and returns it.
func (a *ociArchive) blob(value any) []byte {
	data, err := json.Marshal(value)
	require.NoError(a.t, err)
	return a.add(data)
}

func (a *ociArchive) add(data []byte) []byte {
	a.files = append(a.files, tarFile{"blobs/sha256/" + digest(data)[len("sha256:"):], data})
	return data
}

func descriptor(media string, data []byte) map[string]any {
	return map[string]any{"mediaType": media, "digest": digest(data), "size": len(data)}
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// tarFile is a file, or a directory if its name ends with a slash.
type tarFile struct {
	name string
	data []byte
}

func tarball(t testing.TB, files []tarFile) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.data))}))
		_, err := w.Write(f.data)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}
