module github.com/allocnet/allocnet/integration/hosts

go 1.26.0

replace github.com/allocnet/allocnet => ../..

require (
	github.com/allocnet/allocnet v0.0.0-00010101000000-000000000000
	github.com/stretchr/testify v1.12.1
	github.com/vishvananda/netlink v1.3.1
)

require (
	github.com/Masterminds/semver/v3 v3.5.0 // indirect
	github.com/containernetworking/cni v1.3.1 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/google/nftables v0.3.0 // indirect
	github.com/mdlayher/netlink v1.11.2 // indirect
	github.com/mdlayher/socket v0.6.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	go.uber.org/automaxprocs v1.6.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
