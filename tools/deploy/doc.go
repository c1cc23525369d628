// Package deploy tests the files of the directory deploy with the types and
// parsers of the programs that read them.
package deploy
