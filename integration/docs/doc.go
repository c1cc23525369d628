// Package docs tests the documents: README.md and docs/.
//
// # Commands in documents
//
// Every fenced block in the language console or sh is run, in the order of the
// document, with the built programs, on the document's own private host. A
// console block has commands after "$ ", each followed by its output: "..."
// within a line matches any text, a line "..." matches any lines, and runs of
// blanks are equal. A command without output may print anything. A sh block is
// one script. A command must succeed.
//
// A comment directly above a block changes that:
//
//	<!-- exit: 3 -->         the last command ends with this code
//	<!-- file: PATH -->      the block is not run, but written to this file of the host
//	<!-- not run: REASON --> the block is not run; TestCommands bounds their number
//
// The host is in the state after "make install": the plugin of type allocnet is
// in /opt/cni/bin, /etc/cni/net.d is empty, and there are no settings. sudo
// runs its command, and systemctl starts, stops and reloads a daemon in place
// of systemd.
package docs
