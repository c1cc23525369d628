package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestRun writes an image of two architectures twice.
func TestRun(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "usr/bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/bin/allocnetd"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	o := options{name: "localhost/allocnet:1.2.3", version: "1.2.3"}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, o, []string{"amd64=" + root, "arm64=" + root}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two runs differ")
	}
	files := map[string][]byte{}
	for r := tar.NewReader(&first); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
			Platform    struct{ Architecture string }
		}
	}
	read := func(name string) {
		t.Helper()
		index.Manifests = nil
		if err := json.Unmarshal(files[name], &index); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	read("index.json")
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != o.name {
		t.Fatalf("%s", files["index.json"])
	}
	read("blobs/sha256/" + index.Manifests[0].Digest[len("sha256:"):])
	if len(index.Manifests) != 2 || index.Manifests[1].Platform.Architecture != "arm64" {
		t.Fatalf("%+v", index)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	o := options{name: "n:t", version: "1"}
	for _, roots := range [][]string{nil, {"amd64"}, {"amd64=/nonexistent"}} {
		if err := run(io.Discard, o, roots); err == nil {
			t.Errorf("%q", roots)
		}
	}
}
