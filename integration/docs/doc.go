// Package docs has the tests of the documents: README.md and docs/.
//
// # What a document says is run
//
// Every fenced block in the language console or sh is run, in the order of the document,
// with the built programs, on a private host of the document's own. A console block has
// commands after "$ " and the output of each below it: "..." within a line stands for any
// text, a line "..." for any lines, and runs of blanks are equal. A command without output
// below it may print anything. A sh block is one script. A command has to succeed.
//
// A comment directly above a block changes that:
//
//	<!-- exit: 3 -->         the last command ends with this code
//	<!-- file: PATH -->      the block is not run, but written to this file of the host
//	<!-- not run: REASON --> the block is not run; TestCommands bounds how many there are
//
// The host is as after "make install": the plugin of type allocnet lies in /opt/cni/bin,
// /etc/cni/net.d is empty, and there are no settings. sudo runs its command, and systemctl
// starts, stops and reloads a daemon in systemd's place.
package docs
