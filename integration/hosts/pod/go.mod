module github.com/allocnet/allocnet/integration/hosts/pod

go 1.26.0

require (
	google.golang.org/grpc v1.76.0
	k8s.io/cri-api v0.35.0
)

require (
	golang.org/x/net v0.47.0 // indirect
	golang.org/x/sys v0.38.0 // indirect
	golang.org/x/text v0.31.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250804133106-a7a43d27e69b // indirect
	google.golang.org/protobuf v1.36.8 // indirect
)
