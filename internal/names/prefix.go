package names

import "net/netip"

// special are the prefixes that no network can use (RFC 6890 and RFC 4291), and their uses.
var special = []struct {
	prefix netip.Prefix
	use    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "0.0.0.0/8, this host on this network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "127.0.0.0/8, the loopback addresses"},
	{netip.MustParsePrefix("169.254.0.0/16"), "169.254.0.0/16, the link-local addresses, among them that of metadata services"},
	{netip.MustParsePrefix("224.0.0.0/4"), "224.0.0.0/4, the multicast groups"},
	{netip.MustParsePrefix("240.0.0.0/4"), "240.0.0.0/4, which is reserved"},
	{netip.MustParsePrefix("::/127"), "::/127, the unspecified and the loopback address"},
	{netip.MustParsePrefix("fe80::/10"), "fe80::/10, the link-local addresses"},
	{netip.MustParsePrefix("ff00::/8"), "ff00::/8, the multicast groups"},
}

// ReservedPrefix returns the use of a special prefix that overlaps with the prefix, or "".
func ReservedPrefix(p netip.Prefix) string {
	for _, r := range special {
		if r.prefix.Overlaps(p) {
			return r.use
		}
	}
	return ""
}
