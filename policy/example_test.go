package policy_test

import (
	"fmt"
	"net/netip"

	"github.com/allocnet/allocnet/policy"
)

func ExamplePolicy_Decide() {
	p, err := policy.Parse([]byte(`{
		"presets": ["egress-only"],
		"egress": {"rules": [
			{"name": "database", "peers": [{"labels": {"app": "db"}}], "services": [{"protocol": "tcp", "ports": "5432"}]}
		]}
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	const tcp = 6
	db := policy.Remote{Addr: netip.MustParseAddr("10.77.0.5"), Known: true, Allocation: "db-1", Labels: map[string]string{"app": "db"}}
	fmt.Println(p.Decide(policy.Egress, db, policy.Flow{Protocol: tcp, Port: 5432}))
	fmt.Println(p.Decide(policy.Egress, db, policy.Flow{Protocol: tcp, Port: 22}))
	fmt.Println(p.Decide(policy.Egress, policy.Remote{Addr: netip.MustParseAddr("8.8.8.8")}, policy.Flow{Protocol: tcp, Port: 443}))
	// Output:
	// {allow database}
	// {deny default}
	// {allow preset egress-only}
}

// The error names the place of the fault.
func ExampleParse() {
	_, err := policy.Parse([]byte(`{"egress": {"rules": [{"services": [{"protocol": "tcp", "ports": "http"}]}]}}`))
	fmt.Println(err)
	// Output:
	// check policy: egress.rules[0].services[0].ports: "http": a port is a number from 1 to 65535; examples of ports are "80" and "8000-9000"
}
