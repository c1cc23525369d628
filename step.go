package allocnet

// Step is an operation, or one step of an operation, as an Observer gets it.
type Step struct {
	// Operation is setup, update, attach, detach, check, teardown, remove, gc, repair or
	// recover. A remove is the part of a teardown that follows after Teardown has returned.
	Operation string `json:"operation"`
	// Name is one of the Step constants, or "" for the operation as a whole.
	Name string `json:"step,omitempty"`
	// ID is the ID of the allocation. It is "" for a whole gc, repair or recover.
	ID       string   `json:"id,omitempty"`
	Networks []string `json:"networks,omitempty"`
	Engine   Engine   `json:"engine,omitempty"`
	// Args are the Args of the Record: the runtime's names of the allocation. They are
	// set at the end of a whole operation.
	Args map[string]string `json:"args,omitempty"`
}

// The steps of operations. A step that is retried ends several times.
const (
	StepLock     = "lock"      // wait for other operations on the allocation
	StepPlan     = "plan"      // find networks, engine and plugins
	StepTake     = "take"      // take a prepared network namespace from a pool
	StepReserve  = "reserve"   // reserve ports and namespace, record the intent
	StepAdd      = "add"       // run ADD of all plugins
	StepPublish  = "publish"   // change the host ports
	StepLimit    = "limit"     // change the limits of bandwidth
	StepEnforce  = "enforce"   // change the network policy and the labels
	StepRecord   = "record"    // record the result
	StepCheck    = "check"     // run CHECK of all plugins
	StepRepair   = "repair"    // restore what is missing on the host
	StepRollBack = "roll back" // undo a failed ADD
	StepWait     = "wait"      // wait before the next attempt of an ADD
	// StepDisconnect: remove everything through which the allocation can be reached.
	StepDisconnect = "disconnect"
	StepDel        = "del"   // run DEL of all plugins
	StepAudit      = "audit" // search the host for leftovers
	StepForce      = "force" // remove leftovers without running plugins
)
