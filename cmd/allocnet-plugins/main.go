// allocnet-plugins is the native plugins as CNI plugin binaries: called by the
// name of a plugin, through a link, it answers as that plugin.
package main

import (
	"os"
	"path/filepath"

	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

func main() { os.Exit(sdk.Main(filepath.Base(os.Args[0]), builtin.DropIns, builtin.Versions)) }
