package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// TestRun describes the program of this test.
func TestRun(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, "1.2.3", filepath.Dir(program), []string{program}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("two runs differ")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(&first, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if got := bom.Metadata.Timestamp; got != "2023-11-14T22:13:20Z" {
		t.Errorf("timestamp %s", got)
	}
	for _, name := range []string{"/" + filepath.Base(program), "std", "github.com/CycloneDX/cyclonedx-go"} {
		if !slices.ContainsFunc(*bom.Components, func(c cdx.Component) bool { return c.Name == name }) {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	if err := run(nil, "", "/", nil); err == nil {
		t.Error("no version and no program")
	}
	t.Setenv("SOURCE_DATE_EPOCH", "")
	if err := run(nil, "1", "/", []string{"/bin/true"}); err == nil {
		t.Error("no SOURCE_DATE_EPOCH")
	}
}
