package cleanup

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// The names that the reference plugins give, and have always given, to what they make.

const (
	chainLength   = 28
	ifbLength     = 15
	nftHashLength = 16

	masqPrefix = "CNI-"
	dnatPrefix = "CNI-DN-"
	snatPrefix = "CNI-SN-" // made by old versions of portmap
	ifbPrefix  = "bwp"

	forwardChain = "CNI-FORWARD"

	commentLength = 255 // longest comment of an iptables rule
)

// ownChain matches the chains that one allocation has for itself.
var ownChain = regexp.MustCompile(`^CNI-([0-9a-f]{24}|[DS]N-[0-9a-f]{21})$`)

// hashed is prefix, filled up to length with the hash of text.
func hashed(length int, prefix, text string) string {
	sum := sha512.Sum512([]byte(text))
	return (prefix + hex.EncodeToString(sum[:]))[:length]
}

// chainNames are the chains in the nat table that belong to one attachment.
func chainNames(network, id string) []string {
	var names []string
	for _, prefix := range []string{masqPrefix, dnatPrefix, snatPrefix} {
		names = append(names, hashed(chainLength, prefix, network+id))
	}
	return names
}

// ifbName is the device through which the bandwidth plugin shapes what an allocation sends.
func ifbName(network, id string) string {
	return hashed(ifbLength, ifbPrefix, network+id)
}

// comments are the comments of the iptables rules that belong to one attachment.
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

// isComment reports whether an iptables rule's comment is that of some allocation.
func isComment(comment string) bool {
	for _, prefix := range []string{`name: "`, `dnat name: "`, `snat name: "`} {
		if strings.HasPrefix(comment, prefix) {
			return true
		}
	}
	return false
}

// commentHasID reports whether an iptables rule's comment is one of the allocation's, in whatever network. The
// quotes on both sides keep IDs apart of which one begins or ends with the other.
func commentHasID(comment, id string) bool {
	return isComment(comment) && strings.HasSuffix(comment, fmt.Sprintf(` id: "%s"`, id))
}

// masqHash begins the comment of the nftables masquerade rules that belong to one attachment.
func masqHash(network, ifName, id string) string {
	return hashed(nftHashLength, "", network) + "-" + instanceHash(ifName, id)
}

func instanceHash(ifName, id string) string {
	return hashed(nftHashLength, "", ifName+":"+id)
}

// masqHashHasID reports whether an nftables masquerade rule's comment is one of the allocation's, in whatever
// network. The comment's end may be cut off, so the hash decides; only the interface is taken from the text.
func masqHashHasID(comment, id string) bool {
	hashes, text, _ := strings.Cut(comment, ",")
	_, instance, _ := strings.Cut(hashes, "-")
	_, text, found := strings.Cut(text, ", if: ")
	ifName, _, _ := strings.Cut(text, ",")
	return found && instance == instanceHash(ifName, id)
}
