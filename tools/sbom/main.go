// sbom writes the bill of materials of Go programs as CycloneDX JSON to
// standard output: what is linked into them, as they say themselves.
//
// The same programs, version and time give the same text. The time is that of
// SOURCE_DATE_EPOCH, in seconds.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

func main() {
	version := flag.String("version", "", "`version` of the product, required")
	root := flag.String("root", "/", "`directory` that stands for the host's root in the names of the programs")
	flag.Parse()
	if err := run(os.Stdout, *version, *root, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, version, root string, programs []string) error {
	if version == "" || len(programs) == 0 {
		return errors.New("usage: sbom -version VERSION [-root DIR] PROGRAM...")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	bom, err := describe(version, root, programs)
	if err != nil {
		return err
	}
	bom.Metadata.Timestamp = time.Unix(seconds, 0).UTC().Format(time.RFC3339)
	encoder := cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON)
	encoder.SetPretty(true)
	return encoder.Encode(bom)
}

// describe returns the bill of materials of the programs.
func describe(version, root string, programs []string) (*cdx.BOM, error) {
	modules := map[string]cdx.Component{}
	var files []cdx.Component
	for _, program := range programs {
		file, err := fileOf(root, program)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		info, err := buildinfo.ReadFile(program)
		if err != nil { // not a Go program, such as a shim
			continue
		}
		for _, c := range modulesOf(info) {
			modules[c.BOMRef] = c
		}
	}
	product := cdx.Component{
		BOMRef: "allocnet", Type: cdx.ComponentTypeApplication, Name: "allocnet", Version: version,
		PackageURL: "pkg:golang/github.com/allocnet/allocnet@v" + version,
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	components := files
	for _, c := range modules {
		components = append(components, c)
	}
	byRef := func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) }
	slices.SortFunc(components, byRef)
	var refs []string
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, []byte(version+hashes(files))).URN()
	bom.Metadata = &cdx.Metadata{Component: &product}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: product.BOMRef, Dependencies: &refs}}
	return bom, nil
}

// fileOf returns a program as a component.
func fileOf(root, program string) (cdx.Component, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return cdx.Component{}, fmt.Errorf("read program: %w", err)
	}
	name, err := filepath.Rel(root, program)
	if err != nil {
		return cdx.Component{}, fmt.Errorf("name program: %w", err)
	}
	sum := sha256.Sum256(content)
	return cdx.Component{
		BOMRef: "file:/" + name, Type: cdx.ComponentTypeFile, Name: "/" + name,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}, nil
}

// modulesOf returns the modules that are linked into a program, and Go's
// standard library. Modules of this checkout have no version of their own.
func modulesOf(info *debug.BuildInfo) []cdx.Component {
	std := strings.TrimPrefix(info.GoVersion, "go")
	all := []cdx.Component{library("std", std, "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if strings.HasPrefix(m.Path, "github.com/allocnet/allocnet") || strings.HasPrefix(m.Path, ".") {
			continue
		}
		all = append(all, library(m.Path, m.Version, m.Sum))
	}
	return all
}

// library returns a module as a component. The sum is that of go.sum, a SHA-256
// of the module's content.
func library(path, version, sum string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + version
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
	if hash, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(hash) == sha256.Size {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(hash)}}
	}
	return c
}

// hashes returns the hashes of files, as one text.
func hashes(files []cdx.Component) string {
	var b strings.Builder
	for _, f := range files {
		b.WriteString(f.Name + (*f.Hashes)[0].Value)
	}
	return b.String()
}
