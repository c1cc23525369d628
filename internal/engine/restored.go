package engine

// Restored is the outcome of a restoration for one of several allocations.
type Restored struct {
	// Changed reports that an object of the allocation was missing and has been
	// restored. An object that allocations share counts for the first of them.
	Changed bool
	// Check reports that only CHECK can tell whether the network is complete.
	Check bool
	// Err is the reason why an object could not be restored.
	Err error
}
