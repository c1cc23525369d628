// allocnet-cni is the CNI plugin of type "allocnet". It hands what a runtime asks
// for to allocnetd, and returns its answer. With the daemon away, it becomes the
// program allocnet-cni-alone, which has to be in the same directory and does the same
// on the same records.
//
// In the configuration it looks at two keys only, the rest is for the daemon:
// "socket", the path of the daemon's socket, and "patience", how long the daemon may
// show no sign of life, such as "5s".
//
// It refuses to run as a plugin of the daemon, or of itself.
//
// It is a process per operation, so what it imports counts: no package net, and
// nothing from outside the standard library. What runtimes start is faster still,
// allocnet-cni-front, a program of C in the directory front: it becomes this one where
// an answer does not come at once, and hands the connection over as its only argument.
package main
