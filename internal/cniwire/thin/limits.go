package thin

import "time"

const (
	// DefaultSocket is where the daemon listens.
	DefaultSocket = "/run/allocnet/allocnetd.sock"
	// Path is that of the requests.
	Path = "/cni"
	// MaxConfig is how long a configuration may be, in bytes, MaxRequest how long a
	// request, and MaxResponse how long a response.
	MaxConfig   = 512 << 10
	MaxRequest  = 1 << 20
	MaxResponse = 4 << 20
	// Heartbeat is how often the daemon shows that it is alive.
	Heartbeat = 500 * time.Millisecond
	// DefaultPatience is how long the plugin waits for a sign of life, and
	// LeastPatience how short that may be set.
	DefaultPatience = 5 * time.Second
	LeastPatience   = 2 * Heartbeat
	// Longest is how long the plugin waits for an answer at all.
	Longest = 15 * time.Minute
)

// The codes of the CNI specification that allocnet itself returns.
const (
	CodeIncompatible       uint = 1
	CodeUnknownContainer   uint = 3
	CodeInvalidEnvironment uint = 4
	CodeIOFailure          uint = 5
	CodeDecodingFailure    uint = 6
	CodeInvalidConfig      uint = 7
	CodeInvalidNetns       uint = 8
	CodeTryAgainLater      uint = 11
	CodeNotAvailable       uint = 50
	CodeInternal           uint = 999
)

// The commands of the CNI specification.
const (
	Add     = "ADD"
	Del     = "DEL"
	Check   = "CHECK"
	GC      = "GC"
	Status  = "STATUS"
	Version = "VERSION"
)

// Variables are those of the environment that allocnet looks at. No other ones leave
// the plugin.
var Variables = []string{
	"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE",
}

// Versions are those of the CNI specification that the plugin speaks, oldest first.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
