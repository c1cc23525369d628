// Package journal keeps the history of operations in a file below the state directory.
//
// Each operation is one line of JSON, a [allocnet.HistoryEntry]. Processes append to the
// same file. If it has half the maximum size, it is renamed, and replaces the previous
// one: so there are two files, which together have at most the maximum size.
package journal
