// Package spoofcheck drops frames of a bridge port whose source is not the MAC of its
// sandbox, as the bridge plugin's macspoofchk asks. The rules lie in the nftables table
// "nat" of family bridge, as the reference plugin lays them out, so that each of the
// two removes what the other made. The comment of the last chain's rules is the owner,
// which the reference plugin does not look at.
package spoofcheck
