// Package ruleset is allocnet's own nftables tables: one of family ip and one of
// family ip6, with fixed chains, maps and sets, so that an allocation only adds
// and removes elements, and a packet's way does not grow.
package ruleset
