package cleanup

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// Names of objects that the reference plugins create. All versions use the same names.

const (
	chainLength   = 28
	nftHashLength = 16

	masqPrefix = "CNI-"
	dnatPrefix = "CNI-DN-"
	snatPrefix = "CNI-SN-" // made by old versions of portmap

	forwardChain = "CNI-FORWARD"

	commentLength = 255 // longest comment of an iptables rule
)

// ownChain matches chains that belong to a single allocation.
var ownChain = regexp.MustCompile(`^CNI-([0-9a-f]{24}|[DS]N-[0-9a-f]{21})$`)

// hashed returns prefix followed by the hash of text, cut to length.
func hashed(length int, prefix, text string) string {
	sum := sha512.Sum512([]byte(text))
	return (prefix + hex.EncodeToString(sum[:]))[:length]
}

// chainNames returns the names of the chains of one attachment in the nat table.
func chainNames(network, id string) []string {
	var names []string
	for _, prefix := range []string{masqPrefix, dnatPrefix, snatPrefix} {
		names = append(names, hashed(chainLength, prefix, network+id))
	}
	return names
}

// comments returns the comments of the iptables rules of one attachment.
func comments(network, id string) []string {
	list := []string{fmt.Sprintf("name: %q id: %q", network, id)}
	for _, kind := range []string{"dnat", "snat"} {
		comment := fmt.Sprintf(`%s name: "%s" id: "%s"`, kind, network, id)
		if len(comment) > commentLength {
			comment = comment[:commentLength-2] + "..."
		}
		list = append(list, comment)
	}
	return list
}

// isComment reports whether the comment of an iptables rule names an allocation.
func isComment(comment string) bool {
	for _, prefix := range []string{`name: "`, `dnat name: "`, `snat name: "`} {
		if strings.HasPrefix(comment, prefix) {
			return true
		}
	}
	return false
}

// commentHasID reports whether the comment of an iptables rule names the allocation, in
// any network. The quotes exclude IDs that contain this ID.
func commentHasID(comment, id string) bool {
	return isComment(comment) && strings.HasSuffix(comment, fmt.Sprintf(` id: "%s"`, id))
}

// masqHash returns the prefix in the comments of the nftables masquerade rules of one
// attachment.
func masqHash(network, ifName, id string) string {
	return hashed(nftHashLength, "", network) + "-" + instanceHash(ifName, id)
}

func instanceHash(ifName, id string) string {
	return hashed(nftHashLength, "", ifName+":"+id)
}

// masqHashHasID reports whether the comment of an nftables masquerade rule names the
// allocation, in any network. The comment may be truncated, so the hash decides; only
// the interface is taken from the text.
func masqHashHasID(comment, id string) bool {
	hashes, text, _ := strings.Cut(comment, ",")
	_, instance, _ := strings.Cut(hashes, "-")
	_, text, found := strings.Cut(text, ", if: ")
	ifName, _, _ := strings.Cut(text, ",")
	return found && instance == instanceHash(ifName, id)
}
