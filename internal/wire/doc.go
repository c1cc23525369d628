// Package wire is what allocnetd and its clients say to each other beside the
// types of package allocnet: errors, and reports with an error beside them.
package wire
