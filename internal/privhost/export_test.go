package privhost

// For the tests, which live in another package because they run inside a private
// host themselves.
const (
	Marker       = marker
	MarkedLeft   = markedLeft
	MarkedInside = markedInside
)

var (
	StateDirs = stateDirs
	Identity  = identity
)
